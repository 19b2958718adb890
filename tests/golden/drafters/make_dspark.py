"""dspark and dflash_deepspec (the same class with markov_rank 0): DeepSpec's files, run with DeepSpec's draft_ops.

REF_DEEPSPEC=<DeepSpec checkout> python make_dspark.py [dspark] [dflash_deepspec]
"""

import os
import sys

import make_dflash as dm
import mini
import torch
import torch.nn.functional as F
from common import NEW, Golden, load_target, ref, states

dm.B = B = 7
MASK, IDS, RANK = 255, [1, 3, 5], 24
STEPS = int(os.environ.get("STEPS", "260"))
CFG = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": B,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "layer_types": ["full_attention", "full_attention"],
    "mask_token_id": MASK,
    "target_layer_ids": IDS,
    "num_anchors": 512,
    "num_target_layers": 8,
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 256,
}
VARIANTS = {
    "dspark": {
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    "dflash_deepspec": {"markov_rank": 0, "enable_confidence_head": False},
}


def shapes(markov):
    s = dm.shapes()
    if markov:
        s |= {
            "markov_head.markov_w1.weight": (256, RANK),
            "markov_head.markov_w2.weight": (256, RANK),
            "confidence_head.proj.weight": (1, 64 + RANK),
            "confidence_head.proj.bias": (1,),
        }
    return s


def extra(p, h, lg, ids, logits, start, w):
    """Loss with the alignment slot j -> position start+j+1, Markov bias from the true previous token, and a
    confidence target (whether the draft's argmax is the target's)."""
    n = lg.shape[1]
    prev = ids[:, start : start + n]
    if "markov_head.markov_w1.weight" in p:
        e = F.embedding(prev, p["markov_head.markov_w1.weight"])
        lg = lg + F.linear(e, p["markov_head.markov_w2.weight"])
        conf = F.linear(torch.cat([h, e], -1), p["confidence_head.proj.weight"], p["confidence_head.proj.bias"])[..., 0]
        hit = (lg.argmax(-1) == logits[:, start : start + n].argmax(-1)).float()
        c = F.binary_cross_entropy_with_logits(conf, hit)
    else:
        c = 0.0
    t = torch.softmax(logits[:, start : start + n], -1)
    return (-(t * torch.log_softmax(lg, -1)).sum(-1) * w[:n]).mean() + c


def walk(p, h, lg, anchor):
    prev, path, out, conf = anchor, [], [], []
    for j in range(lg.shape[0]):
        row = lg[j]
        if "markov_head.markov_w1.weight" in p:
            e = p["markov_head.markov_w1.weight"][prev]
            row = row + p["markov_head.markov_w2.weight"] @ e
            conf.append(p["confidence_head.proj.weight"][0] @ torch.cat([h[j], e]) + p["confidence_head.proj.bias"][0])
        prev = int(row.argmax())
        path.append(prev)
        out.append(row)
    return path, torch.stack(out), (torch.stack(conf) if conf else None)


def run(name, seed):
    ref("DEEPSPEC")
    from deepspec.eval.dspark.draft_ops import build_dspark_proposal, forward_dspark_draft_block
    from deepspec.modeling.dspark.qwen3 import Qwen3DSparkModel
    from transformers import DynamicCache
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

    class Cache(DynamicCache):
        """The reference crops to a positive length, which transformers 5.24 no longer accepts."""

        def crop(self, n):
            super().crop(n - self.get_seq_length() if n > 0 else n)

    cfg = CFG | VARIANTS[name]
    model = load_target(dm.TARGET)
    P, G = dm.prompts(model)
    ids, hs, z, logits = dm.data(model, own=dm.own_rows(P, G))
    p = dm.train(
        model,
        mini.init(shapes(name == "dspark"), seed),
        cfg["layer_types"],
        False,
        False,
        ids,
        hs,
        logits,
        shift=0,
        steps=STEPS,
        extra=extra,
    )
    emb = model.model.embed_tokens.weight.detach()
    p["embed_tokens.weight"], p["lm_head.weight"] = emb.clone(), emb.clone()
    g = Golden(
        name,
        dm.TARGET,
        "original reference implementation of the drafter; verification loop by full recomputation of the target",
        "deepseek-ai/DeepSpec afdfa7c9382a3341a3e6f17756dd816da79f132c (deepspec/modeling/dspark/qwen3/modeling.py, "
        "deepspec/eval/dspark/draft_ops.py), transformers 5.24.0, torch 2.13.0 CPU fp32 sdpa",
    )
    g.write(cfg, p)
    config = Qwen3Config.from_pretrained(g.dir)
    config._attn_implementation = "sdpa"
    draft = Qwen3DSparkModel(config).float().eval()
    missing = draft.load_state_dict(p, strict=True)
    print("strict load:", missing)
    g.j |= {
        "block_size": B,
        "drafts_per_round": B,
        "alignment": "slot j (from 0) predicts position start+j+1",
        "state_fed": "concat(hs[id+1] for id in target_layer_ids)",
        "prompts": [],
    }
    with torch.no_grad():
        for i in range(len(P)):
            g.add(f"p{i}.prompt_ids", P[i : i + 1])
            g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
            seq = torch.cat([P[i : i + 1], G[i : i + 1]], -1)
            H, _, _ = states(model, seq)
            ctx = torch.cat([H[k + 1] for k in IDS], -1)
            cache, start, fed, rows, shown = Cache(), P.shape[1], 0, [], 0
            positions = torch.arange(seq.shape[1] + B)[None]
            while start < P.shape[1] + NEW:
                slots = torch.full((1, B), MASK)
                slots[0, 0] = seq[0, start]
                new = ctx[:, fed:start]
                h = forward_dspark_draft_block(
                    draft,
                    draft_input_ids=slots,
                    position_ids=positions,
                    past_key_values_draft=cache,
                    target_hidden_states=new,
                    start=start,
                    block_size=B,
                )
                assert cache.get_seq_length() == start
                prop = build_dspark_proposal(
                    draft,
                    draft_input_ids=slots,
                    block_hidden=h,
                    block_size=B,
                    temperature=0.0,
                    confidence_threshold=0.0,
                )
                drafts = prop.verify_input_ids[0, 1:].tolist()
                base = draft.compute_logits(h)
                _, corrected = draft.sample_draft_tokens(
                    base, first_prev_token_ids=slots[:, 0], temperature=0.0, hidden_states=h
                )
                mine = dm.block(
                    p,
                    ctx[:, :start],
                    torch.arange(start),
                    F.embedding(slots, emb),
                    torch.arange(start, start + B),
                    cfg["layer_types"],
                    False,
                )
                path, lg, conf = walk(p, mine[0], F.linear(mine[0], emb), int(slots[0, 0]))
                err = float((lg - corrected[0]).abs().max())
                assert err < 1e-3 and path == drafts, (err, path, drafts)
                left = min(B, seq.shape[1] - start - 1)
                a = 0
                while a < left and drafts[a] == int(seq[0, start + 1 + a]):
                    a += 1
                row = {"committed": start, "anchor": int(slots[0, 0]), "draft": drafts, "accepted": a}
                if prop.confidence_logits is not None:
                    row["confidence"] = [round(x, 6) for x in prop.confidence_logits[0].sigmoid().tolist()]
                    assert float((conf - prop.confidence_logits[0]).abs().max()) < 1e-3
                if shown < 4 and (not rows or rows[-1]["accepted"] < B):
                    pre = f"p{i}.r{len(rows)}."
                    row["tensors"], shown = pre, shown + 1
                    g.add(pre + "state", new)
                    g.add(pre + "block_ids", slots)
                    g.add(pre + "hidden", h)
                    g.add(pre + "base_logits", base)
                    g.add(pre + "logits", corrected)
                    if prop.confidence_logits is not None:
                        g.add(pre + "confidence_logits", prop.confidence_logits)
                rows.append(row)
                fed = start
                start += a + 1
            g.j["prompts"].append({"rounds": rows})
    g.write(cfg, p)


if __name__ == "__main__":
    for n, seed in (("dspark", 71), ("dflash_deepspec", 72)):
        if n in (sys.argv[1:] or VARIANTS):
            run(n, seed)
