"""eagle3_speculators (llama block, norm_before_residual) and eagle31_speculators (qwen3 block, fc_norm, norm_output):
containers written by speculators' own save_pretrained, run with its modules.

    python make_speculators.py [name ...]      with speculators 0.9.0 installed
"""

import json
import os
import sys

import mini
import torch
import torch.nn.functional as F
from common import NEW, ROOT, Golden, load_target, states
from make_eagle import VD, train_data, vocab_map
from safetensors.torch import load_file

STEPS, K = int(os.environ.get("STEPS", "220")), 5
CASES = {
    # boundary ids: hs[2], hs[4], hs[5]
    "eagle3_speculators": dict(
        target="target_llama8", kind="llama", ids=[2, 4, 5], seed=81, flags=dict(norm_before_residual=True)
    ),
    "eagle31_speculators": dict(
        target="target_qwen3_8", kind="qwen3", ids=[2, 4, 8], seed=82, flags=dict(fc_norm=True, norm_output=True)
    ),
}


def run(name):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig, DynamicCache

    c = CASES[name]
    model = load_target(c["target"])
    s = load_file(os.path.join(ROOT, c["target"], "prompts.safetensors"))
    P, G = s["prompts"], s["greedy"]
    own = torch.cat([P[:1], G[:1]], -1)
    ids, hs, z, logits = train_data(model, own=[F.pad(own, (0, 96 - own.shape[1]), value=32)])
    d2t, t2d = vocab_map(ids)
    keep = torch.arange(VD) + d2t
    embed = model.model.embed_tokens.weight.detach()
    aux = torch.cat([hs[i] for i in c["ids"]], -1)
    eng = mini.Eagle(
        3,
        16,
        10000.0,
        1e-5,
        "layers.0.",
        c["flags"].get("norm_before_residual", False),
        c["kind"] == "qwen3",
        c["flags"].get("fc_norm", False),
        c["flags"].get("norm_output", False),
    )
    p = mini.init(eng.shapes(64, 4, 2, 80, VD), c["seed"])
    p["lm_head.weight"] = model.lm_head.weight.detach()[keep] + 0.05 * p["lm_head.weight"]
    gen = torch.Generator().manual_seed(5)

    def loss(p, i):
        b = torch.randint(0, len(ids), (8,), generator=gen)
        total = 0
        for t, lg in enumerate(eng.unroll(p, embed, ids[b], aux[b], 3)):
            teacher = torch.softmax(logits[b][:, 1 + t : 1 + t + lg.shape[1]][..., keep], -1)
            total = total + 0.8**t * -(teacher * torch.log_softmax(lg, -1)).sum(-1).mean()
        return total

    p = mini.train(p, loss, STEPS)
    p |= {"d2t": d2t, "t2d": t2d, "embed_tokens.weight": embed.clone()}

    block = AutoConfig.for_model(
        c["kind"],
        vocab_size=256,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    block._attn_implementation = "eager"
    sc = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=K)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=model.config.architectures or []),
    )
    cfg = Eagle3SpeculatorConfig(
        transformer_layer_config=block,
        draft_vocab_size=VD,
        speculators_config=sc,
        eagle_aux_hidden_state_layer_ids=c["ids"],
        tie_word_embeddings=False,
        **c["flags"],
    )
    draft = Eagle3DraftModel(cfg).float().eval()
    r = draft.load_state_dict(p, strict=False)
    assert not r.unexpected_keys and all(k.startswith("verifier_") for k in r.missing_keys), r
    draft.verifier_lm_head.weight.data.zero_()
    draft.verifier_norm.weight.data.fill_(1)
    g = Golden(
        name,
        c["target"],
        "original reference implementation (modules and forward); chain glue here",
        f"vllm-project/speculators, PyPI 0.9.0 (models/eagle3), transformers {__import__('transformers').__version__},"
        " torch 2.13.0 CPU fp32 eager",
    )
    draft.save_pretrained(g.dir)
    for f in os.listdir(g.dir):
        if f.endswith(".py") or f == "generation_config.json":
            os.remove(os.path.join(g.dir, f))
    saved = load_file(os.path.join(g.dir, "model.safetensors"))
    assert set(saved) == set(p), set(saved) ^ set(p)
    config = json.load(open(os.path.join(g.dir, "config.json")))
    g.j |= {
        "state_fed": f"concat of hs[L], L in {c['ids']} (boundary ids"
        + ("; hs[8] is the last residual BEFORE the final norm)" if 8 in c["ids"] else ")"),
        "drafts_per_round": K,
        "prompts": [],
    }
    layer, emb = draft.layers[0], draft.embed_tokens

    def rows(tok, g_, pos, cache, mask):
        x = torch.cat([emb(tok), g_], -1)
        return layer(
            x,
            attention_mask=mask,
            position_ids=pos,
            past_key_values=cache,
            position_embeddings=draft.rotary_emb(x, pos),
        )

    with torch.no_grad():
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i : i + 1])
            g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
            seq = torch.cat([P[i : i + 1], G[i : i + 1]], -1)
            H, _, _ = states(model, seq)
            st = torch.cat([H[k] for k in c["ids"]], -1)
            start, out, shown = P.shape[1], [], 0
            stable = DynamicCache()
            while start < P.shape[1] + NEW:
                lo = stable.get_seq_length()
                tok, new = seq[:, lo + 1 : start + 1], st[:, lo:start]
                h = new
                if draft.fc_norm is not None:
                    h = torch.cat([n(x) for n, x in zip(draft.fc_norm, h.chunk(3, -1))], -1)
                h = draft.fc(h)
                T = tok.shape[1]
                mask = torch.full((T, start), 0.0)
                mask[:, lo:] = torch.full((T, T), float("-inf")).triu(1)
                f = rows(tok, h, torch.arange(lo, start)[None] + 1, stable, mask[None, None])
                drafts, lgs = [], []
                cur, pos = f[:, -1:], start
                for k in range(K):
                    normed = draft.norm(cur)
                    lg = draft.lm_head(normed)
                    j = int(lg.argmax())
                    drafts.append(j + int(draft.d2t[j]))
                    lgs.append(lg[0, 0])
                    if k < K - 1:
                        fed = normed if cfg.norm_output else cur
                        cur = rows(torch.tensor([[drafts[-1]]]), fed, torch.tensor([[pos + 1]]), stable, None)
                        pos += 1
                stable.crop(start - stable.get_seq_length())
                lgs = torch.stack(lgs)
                first, mine, mlg = eng.draft(p, embed, seq[:, 1 : start + 1], st[:, :start], K, d2t, 1)
                assert mine == drafts and float((mlg - lgs).abs().max()) < 1e-3, (mine, drafts)
                a = 0
                while a < K and start + 1 + a < seq.shape[1] and drafts[a] == int(seq[0, start + 1 + a]):
                    a += 1
                row = {"committed": start, "root": int(seq[0, start]), "draft": drafts, "accepted": a}
                if not out:
                    # the library's own forward over the same rows
                    grabbed = []
                    hook = draft.lm_head.register_forward_hook(lambda m, x, o: grabbed.append(o.clone()))
                    draft(hidden_states=new, input_ids=tok, document_ids=torch.zeros_like(tok), ttt_steps=1)
                    hook.remove()
                    err = float((grabbed[0] - draft.lm_head(draft.norm(f))).abs().max())
                    print(
                        "  own forward - glue", err, " independent - reference", float((first - grabbed[0]).abs().max())
                    )
                    assert err < 1e-3
                    g.add(f"p{i}.prefill.input_ids", tok)
                    g.add(f"p{i}.prefill.state", new)
                    g.add(f"p{i}.prefill.feature", f)
                    g.add(f"p{i}.prefill.logits", grabbed[0])
                if shown < 4 and (not out or out[-1]["accepted"] < K):
                    pre = f"p{i}.r{len(out)}."
                    row["tensors"], shown = pre, shown + 1
                    g.add(pre + "state", new)
                    g.add(pre + "input_ids", tok)
                    g.add(pre + "logits", lgs)
                out.append(row)
                start += a + 1
            g.j["prompts"].append({"rounds": out})
    g.write(config, None)


if __name__ == "__main__":
    for n in sys.argv[1:] or CASES:
        run(n)
