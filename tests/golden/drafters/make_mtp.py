"""Native multi-token-prediction layers: a complete checkpoint (the weights of an existing golden target, with newly
trained MTP tensors) and reference drafts.

    python make_mtp.py [qwen3_5] [qwen3_next] [deepseek_v3] [glm4_moe] [glm4_moe_lite] [mimo]
    python make_mtp.py upstream deepseek_v3 ...      only the run through transformers' generate

The layer is transformers' MtpLayer around the family's own decoder layer. The chain (one layer applied K times, the
recycled state being the output of the last norm) is written here; for the families transformers can run end to end
(`generate(use_mtp=True)`, one draft a round) its accepted lengths are recorded too.
"""

import copy
import json
import os
import re
import sys

import mini
import torch
import torch.nn.functional as F
from common import GOLDEN, NEW, ROOT, Golden, dumps, load_target, pick_prompts, prompt_pool, self_data, states
from safetensors.torch import load_file
from transformers.modeling_layers import MtpLayer

K = 5
STEPS = int(os.environ.get("STEPS", "200"))
CASES = {
    "qwen3_5": "qwen",
    "qwen3_next": "qwen",
    "deepseek_v3": "deepseek",
    "glm4_moe": "deepseek",
    "glm4_moe_lite": "deepseek",
    "mimo": "mimo",
}
SOURCE = {"mimo": "qwen2"}


def mtp_layer(model, style):
    c = copy.deepcopy(model.config)
    c.num_hidden_layers = 1
    if getattr(c, "layer_types", None) is not None:
        c.layer_types = ["full_attention"]
    if getattr(c, "mlp_layer_types", None) is not None:
        c.mlp_layer_types = ["sparse"]
    if hasattr(c, "first_k_dense_replace"):
        c.first_k_dense_replace = 0
    if style == "mimo":
        c.mtp_hidden_states_first = True
    c._attn_implementation = "eager"
    base = model.model
    return MtpLayer(c, type(base.layers[-1]), type(base.norm), 0)


def to_file(sd, style, L):
    out = {}
    for k, v in sd.items():
        if style == "qwen":
            k = {
                "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
                "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
                "eh_proj.weight": "mtp.fc.weight",
                "post_norm.weight": "mtp.norm.weight",
            }.get(k, k)
            k = k.replace("mtp_block.", "mtp.layers.0.")
        elif style == "mimo":
            k = {
                "enorm.weight": "token_layernorm.weight",
                "hnorm.weight": "hidden_layernorm.weight",
                "eh_proj.weight": "input_proj.weight",
                "post_norm.weight": "final_layernorm.weight",
            }.get(k, k)
            k = "model.mtp_layers.0." + k.replace("mtp_block.", "")
        else:
            k = f"model.layers.{L}." + k.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
        m = re.search(r"experts\.(gate_up_proj|down_proj)$", k)
        if m:
            for e in range(v.shape[0]):
                if m[1] == "gate_up_proj":
                    a, b = v[e].chunk(2, 0)
                    out[k.replace("gate_up_proj", f"{e}.gate_proj.weight")] = a
                    out[k.replace("gate_up_proj", f"{e}.up_proj.weight")] = b
                else:
                    out[k.replace("down_proj", f"{e}.down_proj.weight")] = v[e]
        else:
            out[k] = v
    return {k: v.detach().contiguous().clone() for k, v in out.items()}


class Chain:
    """rows(ids, states) -> normed outputs; everything recomputed, so no cache can be wrong."""

    def __init__(self, model, layer):
        self.model, self.layer = model, layer

    def rows(self, tokens, state, offset=1):
        T = tokens.shape[1]
        pos = torch.arange(offset, offset + T)[None]
        emb = self.model.model.embed_tokens(tokens)
        mask = torch.full((T, T), float("-inf")).triu(1)[None, None]
        rot = self.model.model.rotary_emb(emb, pos)
        return self.layer(emb, state, position_embeddings=rot, attention_mask=mask, position_ids=pos, cache=None)

    def draft(self, tokens, state, k):
        """tokens = t_1..t_m (newest last), state = z_0..z_{m-1}; k chained drafts and their logits."""
        out, logits = [], []
        for _ in range(k):
            r = self.rows(tokens, state)
            lg = self.model.lm_head(r[:, -1])
            nxt = lg.argmax(-1, keepdim=True)
            out.append(int(nxt))
            logits.append(lg)
            tokens, state = torch.cat([tokens, nxt], 1), torch.cat([state, r[:, -1:]], 1)
        return out, torch.cat(logits)


def qwen_check(sd, model, tokens, state):
    """Independent gated-attention MTP layer of a dense Qwen3.5, from the format document."""
    c = model.config
    eps, hd, p = c.rms_norm_eps, c.head_dim, "mtp.layers.0."
    e = F.embedding(tokens, model.model.embed_tokens.weight)
    x = F.linear(
        torch.cat(
            [
                mini.rms(e, sd["mtp.pre_fc_norm_embedding.weight"], eps, 1.0),
                mini.rms(state, sd["mtp.pre_fc_norm_hidden.weight"], eps, 1.0),
            ],
            -1,
        ),
        sd["mtp.fc.weight"],
    )
    u = mini.rms(x, sd[p + "input_layernorm.weight"], eps, 1.0)
    qg = F.linear(u, sd[p + "self_attn.q_proj.weight"]).unflatten(-1, (-1, 2 * hd))
    q, gate = qg[..., :hd].transpose(1, 2), qg[..., hd:].flatten(-2)
    k, v = (mini.split(F.linear(u, sd[p + f"self_attn.{n}_proj.weight"]), hd) for n in "kv")
    pos, T = torch.arange(tokens.shape[1]), tokens.shape[1]
    rd = int(hd * c.rope_parameters["partial_rotary_factor"])
    q = mini.rope(mini.rms(q, sd[p + "self_attn.q_norm.weight"], eps, 1.0), pos, c.rope_parameters["rope_theta"], rd)
    k = mini.rope(mini.rms(k, sd[p + "self_attn.k_norm.weight"], eps, 1.0), pos, c.rope_parameters["rope_theta"], rd)
    o = mini.heads_attn(q, k, v, torch.ones(T, T, dtype=torch.bool).tril()) * torch.sigmoid(gate)
    x = x + F.linear(o, sd[p + "self_attn.o_proj.weight"])
    x = x + mini.mlp(sd, p + "mlp.", mini.rms(x, sd[p + "post_attention_layernorm.weight"], eps, 1.0))
    return mini.rms(x, sd["mtp.norm.weight"], eps, 1.0)


def mimo_check(sd, model, tokens, state):
    c = model.config
    eps, hd, p = c.rms_norm_eps, c.hidden_size // c.num_attention_heads, "model.mtp_layers.0."
    e = F.embedding(tokens, model.model.embed_tokens.weight)
    x = F.linear(
        torch.cat(
            [
                mini.rms(state, sd[p + "hidden_layernorm.weight"], eps),
                mini.rms(e, sd[p + "token_layernorm.weight"], eps),
            ],
            -1,
        ),
        sd[p + "input_proj.weight"],
    )
    u = mini.rms(x, sd[p + "input_layernorm.weight"], eps)
    q, k, v = (
        mini.split(F.linear(u, sd[p + f"self_attn.{n}_proj.weight"], sd[p + f"self_attn.{n}_proj.bias"]), hd)
        for n in "qkv"
    )
    pos, T = torch.arange(tokens.shape[1]), tokens.shape[1]
    th = c.rope_parameters["rope_theta"]
    o = mini.heads_attn(mini.rope(q, pos, th), mini.rope(k, pos, th), v, torch.ones(T, T, dtype=torch.bool).tril())
    x = x + F.linear(o, sd[p + "self_attn.o_proj.weight"])
    x = x + mini.mlp(sd, p + "mlp.", mini.rms(x, sd[p + "post_attention_layernorm.weight"], eps))
    return mini.rms(x, sd[p + "final_layernorm.weight"], eps)


@torch.no_grad()
def rounds(ch, seq, zz, start):
    rows, lgs, gap, end = [], [], float("inf"), start + NEW
    while start < end:
        k = min(K, seq.shape[1] - start - 1)
        d, lg = ch.draft(seq[:, 1 : start + 1], zz[:, :start], k)
        top = lg.topk(2, -1).values
        gap = min(gap, float((top[:, 0] - top[:, 1]).min()))
        a = 0
        while a < k and d[a] == int(seq[0, start + 1 + a]):
            a += 1
        rows.append({"committed": start, "root": int(seq[0, start]), "draft": d, "accepted": a})
        lgs.append(lg)
        start += a + 1
    return rows, lgs, gap


def make(name):
    style, src = CASES[name], SOURCE.get(name, name)
    model = load_target(src)
    for p in model.parameters():
        p.requires_grad_(False)
    P, G, M = pick_prompts(model, prompt_pool("random", 80, seed=17), min_margin=1e-3)
    print(name, "margins", M, flush=True)
    gen = torch.Generator().manual_seed(9)
    # The targets are random networks that a small layer cannot imitate in general, so it memorises two of the three
    # golden continuations, half of the third and one other sequence. Noise is then added to its weights until the
    # mean accepted length falls to about 2.5 of 5, so that accepted lengths vary.
    pool = torch.randint(3, 256, (1, 24), generator=gen)
    ids = torch.cat([self_data(model, pool, 72)] + [torch.cat([P[i], G[i]], -1)[:, :96] for i in range(3)])
    weight = torch.ones(4, 96)
    weight[3, 60:] = 0  # of the third continuation only the first half is learnt
    hs, z, logits = states(model, ids)
    torch.manual_seed(21)
    layer = mtp_layer(model, style).float().train()
    g2 = torch.Generator().manual_seed(22)
    for n, q in layer.named_parameters():
        if "norm" in n and q.dim() == 1:
            q.data = (0.0 if style == "qwen" else 1.0) + 0.2 * torch.randn(q.shape, generator=g2)
        elif q.dim() == 1:
            q.data = 0.1 * torch.randn(q.shape, generator=g2)
        else:
            q.data = torch.randn(q.shape, generator=g2) * 0.8 / q.shape[-1] ** 0.5
    for n, b in layer.named_buffers():
        if b.is_floating_point() and "inv_freq" not in n:
            b.copy_(0.1 * torch.randn(b.shape, generator=g2))
    ch = Chain(model, layer)
    opt = torch.optim.Adam(layer.parameters(), lr=4e-3)
    for i in range(STEPS):
        for gr in opt.param_groups:
            gr["lr"] = 4e-3 * (1 - 0.9 * i / STEPS)
        b = torch.arange(len(ids))
        state, total = z[b][:, :90], 0.0
        for s in range(3):  # later steps see their own output as the state of every row
            r = ch.rows(ids[b][:, 1 + s : 91 + s], state)
            lg = model.lm_head(r)
            tgt = logits[b][:, 1 + s : 91 + s].argmax(-1)
            ce = F.cross_entropy(lg[:, 16:].reshape(-1, 256), tgt[:, 16:].reshape(-1), reduction="none")
            total = total + (ce * weight[:, 16:90].reshape(-1)).mean() * 0.7**s
            state = r
        opt.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        opt.step()
        if i % 40 == 0 or i == STEPS - 1:
            print("  step", i, round(total.item(), 3), flush=True)
    layer.eval()
    clean = {k: v.clone() for k, v in layer.state_dict().items()}
    noise = {
        k: torch.randn(v.shape, generator=g2) * v.float().std() if v.is_floating_point() and v.dim() > 1 else 0
        for k, v in clean.items()
    }
    zs = [states(model, torch.cat([P[i], G[i]], -1)) for i in range(3)]
    for scale in (0.0, 0.05, 0.08, 0.11, 0.14, 0.17, 0.2, 0.24, 0.28, 0.33, 0.4):
        layer.load_state_dict({k: v + scale * noise[k] for k, v in clean.items()})
        acc = [r["accepted"] for i in range(3) for r in rounds(ch, torch.cat([P[i], G[i]], -1), zs[i][1], 24)[0]]
        print("  noise", scale, "mean accepted", round(sum(acc) / len(acc), 2), flush=True)
        if sum(acc) / len(acc) < 2.5:
            break
    L = model.config.num_hidden_layers
    old = load_file(os.path.join(GOLDEN, src, "model.safetensors"))
    sd = {k: v for k, v in old.items() if not (k.startswith("mtp.") or k.startswith(f"model.layers.{L}."))}
    mtp = to_file(layer.state_dict(), style, L)
    if style == "deepseek":  # published files repeat the shared embedding and head
        mtp[f"model.layers.{L}.embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
        mtp[f"model.layers.{L}.shared_head.head.weight"] = model.lm_head.weight.detach().clone()
    if src == name:
        gone = {k for k in old if k not in sd} ^ set(mtp)
        assert not gone, gone
    sd.update(mtp)
    cfg = json.load(
        open(
            os.path.join(
                GOLDEN,
                src,
                "config_hub.json" if os.path.exists(os.path.join(GOLDEN, src, "config_hub.json")) else "config.json",
            )
        )
    )
    if style == "mimo":
        cfg |= {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    folder = f"mtp_{name}"
    g = Golden(
        folder,
        folder,
        "layer: original (transformers MtpLayer and the family's decoder layer); chain of K "
        "drafts: independent reimplementation",
        "transformers 5.24.0 modeling_layers.MtpLayer, torch 2.13.0 CPU fp32 eager",
    )
    g.j |= {
        "state_fed": "z (after the target's final norm)",
        "recycled_state": "output of the MTP layer's last norm",
        "drafts_per_round": K,
        "target_weights_from": f"golden/{src}",
        "prompts": [],
    }
    with torch.no_grad():
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i])
            g.add(f"p{i}.greedy_ids", G[i][:, :NEW])
            seq = torch.cat([P[i], G[i]], -1)
            _, zz, _ = states(model, seq)
            rows, lgs, gap = rounds(ch, seq, zz, P[i].shape[1])
            for n, row in enumerate(rows):
                if n < 2 or (rows[n - 1]["accepted"] < K and n < 6):
                    row["tensors"] = f"p{i}.r{n}."
                    g.add(row["tensors"] + "logits", lgs[n])
                if n == 0:
                    start = row["committed"]
                    tokens, state = seq[:, 1 : start + 1], zz[:, :start]
                    r = ch.rows(tokens, state)
                    g.add(f"p{i}.prefill.input_ids", tokens)
                    g.add(f"p{i}.prefill.state", state)
                    g.add(f"p{i}.prefill.feature", r)
                    g.add(f"p{i}.prefill.logits", model.lm_head(r))
                    check = {"qwen3_5": qwen_check, "mimo": mimo_check}.get(name)
                    if check:
                        err = float((model.lm_head(check(mtp, model, tokens, state)) - model.lm_head(r)).abs().max())
                        print("  independent - reference", err)
                        assert err < 2e-3
            g.j["prompts"].append({"rounds": rows, "smallest_draft_logit_gap": gap})
            # all states the target hands over, so that any round can be checked without running the target
            g.add(f"p{i}.z", zz[:, : P[i].shape[1] + NEW])
    g.write(cfg, sd)
    if os.path.exists(os.path.join(GOLDEN, src, "config_hub.json")):
        c5 = json.load(open(os.path.join(GOLDEN, src, "config.json")))
        if style == "mimo":
            c5 = None
        else:
            json.dump(c5, open(os.path.join(g.dir, "config_transformers5.json"), "w"), indent=1)
    if style == "deepseek":
        upstream(name)


def upstream(name):
    """transformers' own MTP generation on the folder as written: loads the MTP tensors from disk, one draft a round."""
    from transformers.generation import candidate_generator as cg

    folder = f"mtp_{name}"
    d = os.path.join(ROOT, folder)
    j, t = json.load(open(os.path.join(d, "golden.json"))), load_file(os.path.join(d, "golden.safetensors"))
    P, G = ([t[f"p{i}.{k}_ids"] for i in range(3)] for k in ("prompt", "greedy"))
    model = load_target(folder)
    # transformers finds the MTP tensors by a list of layer numbers of the published models (61 for DeepSeek-V3)
    L = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{L}\..*"]
    if getattr(model.config, "num_mtp_layers", None) is None:
        model.config.num_mtp_layers = 1
    if getattr(model.config, "mlp_layer_types", None) is not None:
        model.config.mtp_mlp_layer_types = ["sparse"]
    lens = []
    orig = cg.MTPCandidateGenerator.get_candidates

    def spy(self, input_ids, *a, **k):
        out = orig(self, input_ids, *a, **k)
        lens[-1].append((input_ids.shape[1], out[0][0, input_ids.shape[1] :].tolist()))
        return out

    cg.MTPCandidateGenerator.get_candidates = spy
    try:
        j["transformers_generate_use_mtp"] = []
        for i in range(len(P)):
            lens.append([])
            out = model.generate(
                P[i], max_new_tokens=NEW, do_sample=False, use_mtp=True, eos_token_id=None, pad_token_id=0
            )
            assert torch.equal(out[0, P[i].shape[1] :], G[i][0, :NEW]), "transformers' MTP output differs from greedy"
            seq = torch.cat([P[i], G[i]], -1)[0].tolist()
            rows = [
                {"length_with_newest": n, "draft": d, "accepted": int(d == seq[n : n + 1])} for n, d in lens[-1] if d
            ]
            mine = {r["committed"] + 1: r["draft"][0] for r in j["prompts"][i]["rounds"]}
            same = [mine[r["length_with_newest"]] == r["draft"][0] for r in rows if r["length_with_newest"] in mine]
            print("  transformers rounds", len(rows), "first drafts equal to the chain's:", sum(same), "of", len(same))
            assert all(same)
            j["transformers_generate_use_mtp"].append({"rounds": rows})
        open(os.path.join(d, "golden.json"), "w").write(dumps(j) + "\n")
    finally:
        cg.MTPCandidateGenerator.get_candidates = orig


if __name__ == "__main__":
    if sys.argv[1:2] == ["upstream"]:
        for n in sys.argv[2:]:
            upstream(n)
    else:
        for n in sys.argv[1:] or CASES:
            make(n)
