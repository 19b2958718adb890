"""gemma4_assistant: a two-layer Q-only assistant for golden/gemma4_e with the centroid head.

    python make_gemma4_assistant.py

`rounds` follow the vLLM / SGLang rule (K/V of committed rows only, position of the last verified row), with transformers'
module and a loop written here; `rounds_transformers` come from transformers' own assisted generation (position of the
newest token, K/V cut to that length, so a stale row may be included).
"""

import json
import os

import torch
import torch.nn.functional as F
from common import NEW, Golden, load_target, pick_prompts, prompt_pool, states
from safetensors.torch import load_file
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4TextConfig
from transformers.generation import candidate_generator as cg

TARGET, K, W = "gemma4_e", 4, 16
STEPS = int(os.environ.get("STEPS", "34"))


def target_kv(model, ids):
    with torch.no_grad():
        o = model(input_ids=ids, use_cache=False, return_shared_kv_states=True)
    return {k: (v[0].detach(), v[1].detach()) for k, v in dict(o.shared_kv_states).items()}


def main():
    model = load_target(TARGET)
    for q in model.parameters():
        q.requires_grad_(False)
    P, G, M = pick_prompts(model, prompt_pool("random", 120, seed=27), min_margin=1e-3)
    print("margins", M)
    tc = model.config.to_dict()
    text = Gemma4TextConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        per_layer_config={"1": {"head_dim": 32}},
        sliding_window=W,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=2,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=False,
        use_double_wide_mlp=False,
        attention_k_eq_v=False,
        rope_parameters=tc["rope_parameters"],
        max_position_embeddings=256,
        final_logit_softcapping=None,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    cfg = Gemma4AssistantConfig(
        text_config=text,
        backbone_hidden_size=64,
        use_ordered_embeddings=True,
        num_centroids=16,
        centroid_intermediate_top_k=6,
        tie_word_embeddings=True,
    )
    cfg._attn_implementation = "eager"
    torch.manual_seed(95)
    a = Gemma4AssistantForCausalLM(cfg).float().train()
    gen = torch.Generator().manual_seed(96)
    for n, q in a.named_parameters():
        q.data = (
            1 + 0.2 * torch.randn(q.shape, generator=gen)
            if q.dim() == 1
            else torch.randn(q.shape, generator=gen) * 0.8 / q.shape[-1] ** 0.5
        )
    for n, b in a.named_buffers():
        if "layer_scalar" in n:
            b.fill_(0.8)
    perm = torch.randperm(256, generator=gen)
    a.masked_embedding.token_ordering.copy_(perm.to(a.masked_embedding.token_ordering.dtype))
    cluster = torch.empty(256, dtype=torch.long)
    cluster[perm] = torch.arange(256) // 16
    emb = model.get_input_embeddings()
    seqs = [torch.cat([P[i], G[i]], -1) for i in range(3)]
    data = [(s, states(model, s)[1], target_kv(model, s)) for s in seqs]
    params = [q for q in a.parameters() if q.requires_grad]
    opt = torch.optim.Adam(params, lr=4e-3)
    for step in range(STEPS):
        for gr in opt.param_groups:
            gr["lr"] = 4e-3 * (1 - 0.9 * step / STEPS)
        total = 0.0
        for n, (s, z, kv) in enumerate(data):
            i = torch.arange(20, 60 if n == 2 else 88)
            B, L = len(i), s.shape[1]
            k = torch.arange(L)[None]
            full = (k <= i[:, None])[:, None, None]
            swa = full & (k > i[:, None] - W)[:, None, None]
            neg = torch.finfo(torch.float32).min
            masks = {
                "full_attention": torch.zeros(full.shape).masked_fill(~full, neg),
                "sliding_attention": torch.zeros(swa.shape).masked_fill(~swa, neg),
            }
            kvb = {t: (v[0].expand(B, -1, -1, -1), v[1].expand(B, -1, -1, -1)) for t, v in kv.items()}
            h = z[0, i][:, None]
            for d in range(3):
                x = a.pre_projection(torch.cat([emb(s[0, i + 1 + d])[:, None], h], -1))
                o = a.model(
                    inputs_embeds=x,
                    attention_mask=masks,
                    position_ids=i[:, None],
                    shared_kv_states=kvb,
                    use_cache=False,
                ).last_hidden_state
                h = a.post_projection(o)
                want = s[0, i + 2 + d]
                total = (
                    total
                    + (
                        F.cross_entropy(a.lm_head(o)[:, 0], want)
                        + 0.3 * F.cross_entropy(a.masked_embedding.centroids(o)[:, 0], cluster[want])
                    )
                    * 0.7**d
                )
        opt.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        opt.step()
        if step % 20 == 0 or step == STEPS - 1:
            print("  step", step, round(total.item(), 3), flush=True)
    a.eval()
    g = Golden(
        "gemma4_assistant",
        TARGET,
        "rounds: modules original, loop here; rounds_transformers: original implementation end to end",
        "transformers 5.24.0 Gemma4AssistantForCausalLM and "
        "SinglePositionMultiTokenCandidateGenerator, torch 2.13.0 CPU fp32 eager",
    )
    a.save_pretrained(g.dir)
    a = Gemma4AssistantForCausalLM.from_pretrained(g.dir, dtype=torch.float32, attn_implementation="eager").eval()
    if os.path.exists(os.path.join(g.dir, "generation_config.json")):
        os.remove(os.path.join(g.dir, "generation_config.json"))
    g.j |= {
        "state_fed": "z (after the target's final norm) of the last verified row",
        "drafts_per_round": K,
        "rule": "position = committed - 1 for every step of a round; K/V rows 0..committed-1, on sliding layers the last 16",
        "prompts": [],
    }

    @torch.no_grad()
    def draft(token, h, kv, pos, k):
        out, lgs = [], []
        t = torch.tensor([[token]])
        for _ in range(k):
            o = a(inputs_embeds=torch.cat([emb(t), h], -1), position_ids=torch.tensor([[pos]]), shared_kv_states=kv)
            t, h = o.logits.argmax(-1), o.last_hidden_state
            out.append(int(t))
            lgs.append(o.logits[0, -1])
        return out, torch.stack(lgs)

    for i, (s, z, kv) in enumerate(data):
        g.add(f"p{i}.prompt_ids", P[i])
        g.add(f"p{i}.greedy_ids", G[i][:, :NEW])
        start, rows, shown = P[i].shape[1], [], 0
        while start < P[i].shape[1] + NEW:
            # transformers' mask shows the assistant W+1 sliding rows; the target's own window is W rows, so cut to those
            lo = {"sliding_attention": max(0, start - W), "full_attention": 0}
            cut = {t: (v[0][:, :, lo[t] : start], v[1][:, :, lo[t] : start]) for t, v in kv.items()}
            d, lg = draft(int(s[0, start]), z[:, start - 1 : start], cut, start - 1, K)
            n = 0
            while n < K and start + 1 + n < s.shape[1] and d[n] == int(s[0, start + 1 + n]):
                n += 1
            row = {"committed": start, "root": int(s[0, start]), "draft": d, "accepted": n}
            if shown < 4 and (not rows or rows[-1]["accepted"] < K):
                pre = f"p{i}.r{len(rows)}."
                row["tensors"], shown = pre, shown + 1
                g.add(pre + "state", z[:, start - 1 : start])
                g.add(pre + "logits", lg)
                if shown == 1 or (shown == 2 and i == 0):
                    for t, v in cut.items():
                        g.add(pre + t + ".k", v[0])
                        g.add(pre + t + ".v", v[1])
            rows.append(row)
            start += n + 1
        g.j["prompts"].append({"rounds": rows})
    # transformers' own loop
    cls = cg.SinglePositionMultiTokenCandidateGenerator
    orig, log = cls.get_candidates, []

    def spy(self, input_ids, *x, **k):
        out = orig(self, input_ids, *x, **k)
        new = out[0][0, input_ids.shape[1] :].tolist()
        if new:
            log.append((input_ids.shape[1] - 1, int(input_ids[0, -1]), new))
        return out

    cls.get_candidates = spy
    a.generation_config.num_assistant_tokens = K
    a.generation_config.num_assistant_tokens_schedule = "constant"
    try:
        for i in range(3):
            log.clear()
            out = model.generate(P[i], assistant_model=a, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
            same = torch.equal(out[0, P[i].shape[1] :], G[i][0, :NEW])
            full = data[i][0][0].tolist()
            rows = []
            for c, root, d in log:
                n = 0
                while n < len(d) and c + 1 + n < len(full) and d[n] == full[c + 1 + n]:
                    n += 1
                rows.append({"committed": c, "root": root, "draft": d, "accepted": n})
            g.j["prompts"][i]["rounds_transformers"] = rows
            print("  transformers lossless", same, [r["accepted"] for r in rows])
            assert same
    finally:
        cls.get_candidates = orig
    g.write(json.load(open(os.path.join(g.dir, "config.json"))), None)
    print(sorted(load_file(os.path.join(g.dir, "model.safetensors"))))


if __name__ == "__main__":
    main()
