"""dflash_speculators and dspark_speculators: containers written by speculators' save_pretrained, with a reduced
vocabulary (own lm_head, d2t, t2d), run through its own anchored-block forward.

    python make_dflash_speculators.py [name ...]      with speculators 0.9.0 installed
"""

import json
import os
import sys

import make_dflash as dm
import mini
import torch
import torch.nn.functional as F
from common import NEW, Golden, load_target, states
from make_eagle import VD, vocab_map
from safetensors.torch import load_file

B, MASK, BOUNDARY, RANK = 8, 255, [2, 4, 6], 24  # boundary ids = output-of-layer ids + 1
STEPS = int(os.environ.get("STEPS", "260"))


def shapes(dspark):
    s = dm.shapes() | {"lm_head.weight": (VD, 64)}
    if dspark:
        s |= {
            "markov_head.markov_w1.weight": (256, RANK),
            "markov_head.markov_w2.weight": (VD, RANK),
            "confidence_head.proj.weight": (1, 64 + RANK),
            "confidence_head.proj.bias": (1,),
        }
    return s


def corrected(p, h, prev):
    """Logits over the draft vocabulary of slots h with previous tokens prev, and confidence logits."""
    lg = F.linear(h, p["lm_head.weight"])
    if "markov_head.markov_w1.weight" not in p:
        return lg, None
    e = F.embedding(prev, p["markov_head.markov_w1.weight"])
    lg = lg + F.linear(e, p["markov_head.markov_w2.weight"])
    return lg, F.linear(torch.cat([h, e], -1), p["confidence_head.proj.weight"], p["confidence_head.proj.bias"])[..., 0]


def run(name, seed):
    import speculators.models.dflash.core as core
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig

    dspark = name == "dspark_speculators"
    if dspark:
        from speculators.models.dspark.config import DSparkSpeculatorConfig as Config
        from speculators.models.dspark.core import DSparkDraftModel as Model
    else:
        from speculators.models.dflash import DFlashSpeculatorConfig as Config
        from speculators.models.dflash.core import DFlashDraftModel as Model
    kinds = ["full_attention"] * 2 if dspark else ["sliding_attention", "full_attention"]
    first = 0 if dspark else 1
    K = B - first
    model = load_target(dm.TARGET)
    P, G = dm.prompts(model)
    ids, hs, z, logits = dm.data(model, own=dm.own_rows(P, G))
    d2t, t2d = vocab_map(ids)
    keep = torch.arange(VD) + d2t
    dm.B, dm.RULE = B, "anchor"
    emb = model.model.embed_tokens.weight.detach()

    def extra(p, h, _, ids_, logits_, start, w):
        n = h.shape[1]
        lg, conf = corrected(p, h, ids_[:, start : start + n])
        t = torch.softmax(logits_[:, start : start + n][..., keep], -1)
        total = (-(t * torch.log_softmax(lg, -1)).sum(-1) * w[:n]).mean()
        if conf is not None:
            hit = (keep[lg.argmax(-1)] == logits_[:, start : start + n].argmax(-1)).float()
            total = total + F.binary_cross_entropy_with_logits(conf, hit)
        return total

    p = mini.init(shapes(dspark), seed)
    p["lm_head.weight"] = emb[keep] + 0.05 * p["lm_head.weight"]
    p = dm.train(
        model, p, kinds, False if dspark else None, False, ids, hs, logits, shift=first, steps=STEPS, extra=extra
    )
    p |= {"d2t": d2t, "t2d": t2d}

    block = AutoConfig.for_model(
        "qwen3",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        attention_bias=False,
        layer_types=kinds,
        use_sliding_window=not dspark,
        sliding_window=None if dspark else dm.W,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    block._attn_implementation = "eager"
    kw = (
        dict(
            markov_rank=RANK, markov_head_type="vanilla", enable_confidence_head=True, confidence_head_with_markov=True
        )
        if dspark
        else {}
    )
    cfg = Config(
        transformer_layer_config=block,
        draft_vocab_size=VD,
        block_size=B,
        mask_token_id=MASK,
        aux_hidden_state_layer_ids=BOUNDARY,
        sample_from_anchor=dspark,
        sliding_window_non_causal=False,
        tie_word_embeddings=False,
        **kw,
        speculators_config=SpeculatorsConfig(
            algorithm=name.split("_")[0],
            default_proposal_method="greedy",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=K)],
            verifier=VerifierConfig(name_or_path=None, architectures=model.config.architectures or []),
        ),
    )
    draft = Model(cfg).float().eval()
    r = draft.load_state_dict(p | {"embed_tokens.weight": emb}, strict=False)
    assert not r.unexpected_keys and all(k.startswith("verifier_") for k in r.missing_keys), r
    draft.verifier_lm_head.weight.data.zero_()
    draft.verifier_norm.weight.data.fill_(1)
    g = Golden(
        name,
        dm.TARGET,
        "original reference implementation (the library's anchored-block training forward; "
        "there is no inference loop in it)",
        "vllm-project/speculators, PyPI 0.9.0 (models/"
        + name.split("_")[0]
        + "), transformers "
        + __import__("transformers").__version__
        + ", torch 2.13.0 CPU fp32 eager",
    )
    draft.save_pretrained(g.dir)
    for f in os.listdir(g.dir):
        if f.endswith(".py") or f == "generation_config.json":
            os.remove(os.path.join(g.dir, f))
    saved = load_file(os.path.join(g.dir, "model.safetensors"))
    print("saved beyond / without the trained set:", sorted(set(saved) ^ set(p)))
    config = json.load(open(os.path.join(g.dir, "config.json")))
    g.j |= {
        "block_size": B,
        "drafts_per_round": K,
        "alignment": f"slot j predicts position start+j{'+1' if dspark else ''}",
        "state_fed": "concat of hs[2], hs[4], hs[6] (boundary ids)",
        "prompts": [],
    }
    from torch.nn.attention.flex_attention import create_mask

    def float_mask(mod, B=None, H=None, Q_LEN=0, KV_LEN=0, device=None):
        m = create_mask(mod, B, H, Q_LEN, KV_LEN, device=device)
        return torch.zeros(m.shape).masked_fill(~m, float("-inf"))

    draft._create_mask_fn = float_mask  # the library's float mask is bfloat16: the same zeros and infinities
    with torch.no_grad():
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i : i + 1])
            g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
            seq = torch.cat([P[i : i + 1], G[i : i + 1], torch.full((1, B), MASK)], -1)
            H, zz, _ = states(model, seq)
            ctx = torch.cat([H[k] for k in BOUNDARY], -1)
            n = seq.shape[1]
            start, rows, shown = P.shape[1], [], 0
            while start < P.shape[1] + NEW:
                keep_select = core.select_anchors
                core.select_anchors = lambda *a: (torch.tensor([start]), torch.tensor([True]))
                try:
                    h, lg, *_ = draft._backbone_forward(
                        ctx, seq, torch.ones_like(seq), zz, torch.zeros_like(seq), max_anchors=1
                    )
                finally:
                    core.select_anchors = keep_select
                anchor = int(seq[0, start])
                drafts, prev, out, confs = [], anchor, [], []
                for j in range(first, B):
                    row = lg[0, j]
                    if dspark:
                        pt = torch.tensor([[prev]])
                        e = draft.markov_head.prev_embeddings(pt)
                        row = (
                            row
                            + draft.markov_head.block_bias(
                                prev_token_ids=pt, hidden_states=h[:, j : j + 1], prev_emb=e
                            )[0, 0]
                        )
                        confs.append(draft.confidence_head(torch.cat([h[:, j : j + 1], e], -1)).reshape(()))
                    k = int(row.argmax())
                    prev = k + int(draft.d2t[k])
                    drafts.append(prev)
                    out.append(row)
                out = torch.stack(out)
                slots = torch.full((1, B), MASK)
                slots[0, 0] = anchor
                args = (
                    p,
                    ctx[:, :start],
                    torch.arange(start),
                    F.embedding(slots, emb),
                    torch.arange(start, start + B),
                    kinds,
                    False if dspark else None,
                )
                mine = dm.block(*args)
                assert float((mine - h).abs().max()) < 1e-3, float((mine - h).abs().max())
                a = 0
                while a < K and start + 1 + a < n - B and drafts[a] == int(seq[0, start + 1 + a]):
                    a += 1
                row = {"committed": start, "anchor": anchor, "draft": drafts, "accepted": a}
                if confs:
                    row["confidence"] = [round(float(c.sigmoid()), 6) for c in confs]
                if not dspark:
                    other = dm.block(*args, rule="query")
                    ol = F.linear(other[0, first:], p["lm_head.weight"])
                    row["draft_if_window_is_per_query"] = (keep[ol.argmax(-1)]).tolist()
                if shown < 4 and (not rows or rows[-1]["accepted"] < K):
                    pre = f"p{i}.r{len(rows)}."
                    row["tensors"], shown = pre, shown + 1
                    g.add(pre + "state", ctx[:, :start])
                    g.add(pre + "block_ids", slots)
                    g.add(pre + "hidden", h)
                    g.add(pre + "base_logits", lg)
                    g.add(pre + "logits", out)
                    if confs:
                        g.add(pre + "confidence_logits", torch.stack(confs))
                    if not dspark:
                        g.add(pre + "logits_if_window_is_per_query", ol)
                rows.append(row)
                start += a + 1
            g.j["prompts"].append({"rounds": rows})
    g.write(config, None)


if __name__ == "__main__":
    for n, seed in (("dflash_speculators", 91), ("dspark_speculators", 92)):
        if n in (sys.argv[1:] or ["dflash_speculators", "dspark_speculators"]):
            run(n, seed)
