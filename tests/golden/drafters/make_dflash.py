"""dflash, dflash2 (z-lab's PyPI package dflash 0.1.0) and dflash_speculators (speculators container, same weights plus
a reduced head).

    REF_DFLASH=<folder with the package> python make_dflash.py [dflash] [dflash2] ...
"""

import json
import os
import sys

import mini
import torch
import torch.nn.functional as F
from common import NEW, ROOT, Golden, load_target, pick_prompts, prompt_pool, ref, self_data, states
from safetensors.torch import load_file, save_file

TARGET = "target_qwen3_8"
B, MASK, IDS, W = 8, 255, [1, 3, 5], 12
STEPS = int(os.environ.get("STEPS", "300"))
CFG = {
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": B,
    "dflash_config": {"mask_token_id": MASK, "target_layer_ids": IDS},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 80,
    "layer_types": ["sliding_attention", "full_attention"],
    "max_position_embeddings": 4096,
    "max_window_layers": 2,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_target_layers": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "sliding_window": W,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "use_cache": True,
    "use_sliding_window": True,
    "vocab_size": 256,
}
CFG2 = json.loads(json.dumps(CFG)) | {
    "architectures": ["DFlash2DraftModel"],
    "layer_types": ["sliding_attention"] * 2,
    "is_causal": False,
    "dflash_config": {
        "mask_token_id": MASK,
        "target_layer_ids": IDS,
        "block_size": B,
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 24,
        "selector_top_k": 6,
    },
}
del CFG2["block_size"]
EPS, THETA = 1e-6, 10000.0
RULE = "query"  # window counted from each slot (z-lab, vLLM) or from the anchor (speculators' training mask)


def shapes(H=64, nh=4, nk=2, hd=16, inter=80, layers=2, P=3):
    s = {"fc.weight": (H, P * H), "hidden_norm.weight": (H,), "norm.weight": (H,)}
    for i in range(layers):
        p = f"layers.{i}."
        s |= {
            p + "input_layernorm.weight": (H,),
            p + "post_attention_layernorm.weight": (H,),
            p + "self_attn.q_proj.weight": (nh * hd, H),
            p + "self_attn.k_proj.weight": (nk * hd, H),
            p + "self_attn.v_proj.weight": (nk * hd, H),
            p + "self_attn.o_proj.weight": (H, nh * hd),
            p + "self_attn.q_norm.weight": (hd,),
            p + "self_attn.k_norm.weight": (hd,),
            p + "mlp.gate_proj.weight": (inter, H),
            p + "mlp.up_proj.weight": (inter, H),
            p + "mlp.down_proj.weight": (H, inter),
        }
    return s


def shapes2(V=256, H=64, rank=24, taps=2, groups=4):
    s = shapes()
    for i in range(2):
        for n in ("attention_conv", "mlp_conv"):
            s |= {
                f"layers.{i}.{n}.base_kernel": (2, taps, H),
                f"layers.{i}.{n}.kernel_projection.weight": (2 * taps * groups, H),
            }
    return s | {
        "candidate_selector.predecessor_codebook": (V, rank),
        "candidate_selector.successor_codebook": (V, rank),
        "candidate_selector.hidden_projection.weight": (rank, H),
    }


def conv(base, dyn, x):
    """base [taps,H], dyn [...,B,taps,G], x [...,B,H]; tap s multiplies the row s places earlier in the block."""
    out = 0
    for s in range(base.shape[0]):
        past = F.pad(x, (0, 0, s, 0))[..., : x.shape[-2], :]
        coef = base[s] + dyn[..., s, :].repeat_interleave(x.shape[-1] // dyn.shape[-1], -1)
        out = out + coef * past
    return out


def block(p, ctx, ctx_pos, x, pos, layer_types, causal_override=None, window=W, rule=None):
    """Hidden states of the block slots. ctx [N,C,P*H] captured states, ctx_pos [C], x [N,B,H] slot embeddings, pos [B]."""
    c = mini.rms(F.linear(ctx, p["fc.weight"]), p["hidden_norm.weight"], EPS)
    kp = torch.cat([ctx_pos, pos])
    for i, kind in enumerate(layer_types):
        L = f"layers.{i}."
        causal = (kind == "sliding_attention") if causal_override is None else causal_override
        d = pos[:, None] - kp[None]
        mask = torch.ones_like(d, dtype=torch.bool)
        if causal:
            mask &= d >= 0
        if kind == "sliding_attention" and (rule or RULE) == "anchor":
            mask &= (kp >= pos[0] - window)[None]
        elif kind == "sliding_attention":
            mask &= d < window
            if not causal:
                mask &= -d < window
        u = mini.rms(x, p[L + "input_layernorm.weight"], EPS)
        v_in, post = u, None
        if L + "attention_conv.base_kernel" in p:
            dyn = F.linear(u, p[L + "attention_conv.kernel_projection.weight"]).unflatten(-1, (2, 2, -1))
            b = p[L + "attention_conv.base_kernel"]
            v_in, post = conv(b[0], dyn[..., 0, :, :], u), (b[1], dyn[..., 1, :, :])
        q = mini.split(F.linear(v_in, p[L + "self_attn.q_proj.weight"]), 16)
        kv_in = torch.cat([c, v_in], -2)
        k = mini.split(F.linear(kv_in, p[L + "self_attn.k_proj.weight"]), 16)
        v = mini.split(F.linear(kv_in, p[L + "self_attn.v_proj.weight"]), 16)
        q = mini.rope(mini.rms(q, p[L + "self_attn.q_norm.weight"], EPS), pos, THETA)
        k = mini.rope(mini.rms(k, p[L + "self_attn.k_norm.weight"], EPS), kp, THETA)
        o = F.linear(mini.heads_attn(q, k, v, mask), p[L + "self_attn.o_proj.weight"])
        x = x + (conv(*post, o) if post else o)
        u = mini.rms(x, p[L + "post_attention_layernorm.weight"], EPS)
        v_in, post = u, None
        if L + "mlp_conv.base_kernel" in p:
            dyn = F.linear(u, p[L + "mlp_conv.kernel_projection.weight"]).unflatten(-1, (2, 2, -1))
            b = p[L + "mlp_conv.base_kernel"]
            v_in, post = conv(b[0], dyn[..., 0, :, :], u), (b[1], dyn[..., 1, :, :])
        o = mini.mlp(p, L + "mlp.", v_in)
        x = x + (conv(*post, o) if post else o)
    return mini.rms(x, p["norm.weight"], EPS)


def select(p, h, logits, anchor, top):
    """DFlash2's walk; returns the path. h [B-1,H], logits [B-1,V]."""
    prev, path = anchor, []
    for j in range(h.shape[0]):
        unary, cand = logits[j].topk(top)
        G = p["candidate_selector.hidden_projection.weight"] @ h[j]
        score = unary + p["candidate_selector.successor_codebook"][cand] @ (
            p["candidate_selector.predecessor_codebook"][prev] * G
        )
        prev = int(cand[score.argmax()])
        path.append(prev)
    return path


def data(model, seed=201, n=40, own=()):
    gen = torch.Generator().manual_seed(seed)
    pool = prompt_pool("text", n, seed=seed)
    ids = torch.cat([self_data(model, pool, 72), self_data(model, pool[: n // 2], 72, 0.7, gen)] + list(own))
    hs, z, logits = states(model, ids)
    return ids, hs, z, logits


def prompts(model):
    f = os.path.join(ROOT, TARGET, "prompts.safetensors")
    if not os.path.exists(f):
        P, G, M = pick_prompts(model, prompt_pool("text"))
        save_file({"prompts": torch.cat(P), "greedy": torch.cat(G)}, f)
        print("margins", M, [bytes(g[0].tolist()) for g in G])
    s = load_file(f)
    return s["prompts"], s["greedy"]


def own_rows(P, G):
    o = torch.cat([P[:1], G[:1]], -1)
    return [F.pad(o, (0, 96 - o.shape[1]), value=32)[:, :96]]


def train(
    model,
    p,
    layer_types,
    causal,
    second=False,
    ids=None,
    hs=None,
    logits=None,
    layers=IDS,
    shift=1,
    steps=STEPS,
    extra=None,
):
    """shift = 1: slot j predicts position start+j; shift = 0 (anchor alignment): start+j+1."""
    emb, head = model.model.embed_tokens.weight.detach(), model.lm_head.weight.detach()
    ctx = torch.cat([hs[i + 1] for i in layers], -1)
    gen = torch.Generator().manual_seed(3)
    w = torch.exp(-torch.arange(B).float() / 7)

    def fn(p, i):
        n = torch.randint(0, len(ids), (32,), generator=gen)
        start = int(torch.randint(8, 86, (1,), generator=gen))
        lo = max(0, start - int(torch.randint(8, start + 1, (1,), generator=gen)))  # also short contexts
        lo = 0 if torch.rand(1, generator=gen) < 0.8 else lo
        slots = torch.full((len(n), B), MASK)
        slots[:, 0] = ids[n, start]
        h = block(
            p,
            ctx[n, lo:start],
            torch.arange(lo, start),
            F.embedding(slots, emb),
            torch.arange(start, start + B),
            layer_types,
            causal,
        )
        lg = F.linear(h, head)
        lg = lg[:, shift:]
        if extra is not None:
            return extra(p, h[:, shift:], lg, ids[n], logits[n], start, w)
        teacher = torch.softmax(logits[n, start : start + lg.shape[1]], -1)
        total = (-(teacher * torch.log_softmax(lg, -1)).sum(-1) * w[: lg.shape[1]]).mean()
        if second:
            prev, nxt = ids[n, start : start + B - 1], ids[n, start + 1 : start + B]
            G = F.linear(h[:, 1:], p["candidate_selector.hidden_projection.weight"])
            sc = (
                lg
                + (F.embedding(prev, p["candidate_selector.predecessor_codebook"]) * G)
                @ p["candidate_selector.successor_codebook"].T
            )
            total = total - (teacher * torch.log_softmax(sc, -1)).sum(-1).mean()
        return total

    return mini.train(p, fn, steps)


def run(name, cfg, second, seed):
    ref("DFLASH")
    import dflash.model as mod

    model = load_target(TARGET)
    P, G = prompts(model)
    ids, hs, z, logits = data(model, own=own_rows(P, G))
    p = mini.init(shapes2() if second else shapes(), seed)
    if second:
        for k in p:
            if k.endswith("base_kernel"):
                p[k][:, 0] += 1
    p = train(model, p, cfg["layer_types"], cfg.get("is_causal"), second, ids, hs, logits)
    d = os.path.join(ROOT, name)
    os.makedirs(d, exist_ok=True)
    g = Golden(
        name,
        TARGET,
        "original reference implementation",
        "z-lab dflash, PyPI package dflash 0.1.0 (dflash/model.py), transformers 5.24.0, torch 2.13.0 CPU fp32",
    )
    g.write(cfg, p)
    cls = mod.DFlash2DraftModel if second else mod.DFlashDraftModel
    draft = cls.from_pretrained(d, dtype=torch.float32).eval()
    loaded = draft.state_dict()
    assert all(torch.equal(v, loaded[k if k in loaded else k + ".weight"]) for k, v in p.items())
    print(
        "reference config:",
        type(draft.config).__name__,
        draft.config.sliding_window,
        draft.config.layer_types,
        draft.config.rope_parameters,
        [l.self_attn.is_causal for l in draft.layers],
    )
    log = []
    fwd = draft.forward

    def forward(*a, **k):
        out = fwd(*a, **k)
        log.append(
            {
                "ctx": k["target_hidden"].clone(),
                "noise": k["noise_embedding"].clone(),
                "pos": k["position_ids"].clone(),
                "hidden": out.clone(),
            }
        )
        return out

    draft.forward = forward
    orig_select, orig_logits = getattr(draft, "propose", None), draft.compute_logits

    def compute_logits(h, head):
        o = orig_logits(h, head)
        log[-1]["logits"] = o.clone()
        return o

    draft.compute_logits = compute_logits
    if second:

        def propose(*a):
            o = orig_select(*a)
            log[-1]["path"], log[-1]["cand"] = o[0].clone(), o[1].clone()
            return o

        draft.propose = propose
    g.j |= {"block_size": B, "state_fed": "concat(hs[id+1] for id in target_layer_ids)", "prompts": []}
    emb = model.model.embed_tokens.weight
    for i in range(len(P)):
        log.clear()
        stats = _generate(mod, draft, model, P[i : i + 1])
        new = stats.output_ids[0, P.shape[1] :]
        assert torch.equal(new[:NEW], G[i, :NEW]), "not lossless"
        g.add(f"p{i}.prompt_ids", P[i : i + 1])
        g.add(f"p{i}.greedy_ids", G[i : i + 1, :NEW])
        rows, shown, committed = [], 0, P.shape[1]
        seq = torch.cat([P[i], new])
        ctx_all = torch.zeros(1, 0, 3 * 64)
        for k, produced in enumerate(stats.acceptance_lengths):
            e = log[k] if k < len(log) else None
            if e is None or e["noise"].shape[1] < 2:
                break
            n = e["noise"].shape[1]
            ctx_all = torch.cat([ctx_all, e["ctx"]], 1)
            start = ctx_all.shape[1]
            assert start == committed
            drafts = (e["path"][0] if second else e["logits"][0].argmax(-1)).tolist()
            anchor = int(seq[start])
            # independent check
            slots = torch.full((1, n), MASK)
            slots[0, 0] = anchor
            h = block(
                p,
                ctx_all,
                torch.arange(start),
                F.embedding(slots, emb.detach()),
                torch.arange(start, start + n),
                cfg["layer_types"],
                cfg.get("is_causal"),
            )
            lg = F.linear(h, model.lm_head.weight)[:, 1:]
            err = float((lg - e["logits"]).abs().max())
            mine = select(p, h[0, 1:], lg[0], anchor, 6) if second else lg[0].argmax(-1).tolist()
            assert err < 1e-3 and mine == drafts, (err, mine, drafts)
            accepted = 0
            while accepted < n - 1 and drafts[accepted] == int(seq[start + 1 + accepted]):
                accepted += 1
            row = {"committed": start, "anchor": anchor, "draft": drafts, "accepted": accepted}
            if shown < 4 and (k == 0 or rows[-1]["accepted"] < n - 1):
                pre = f"p{i}.r{k}."
                row["tensors"], shown = pre, shown + 1
                g.add(pre + "state", e["ctx"])
                g.add(pre + "state_positions", e["pos"][0, : e["ctx"].shape[1]])
                g.add(pre + "block_ids", slots)
                g.add(pre + "hidden", e["hidden"])
                g.add(pre + "logits", e["logits"])
                if second:
                    g.add(pre + "candidates", e["cand"])
            rows.append(row)
            committed += produced
        g.j["prompts"].append({"rounds": rows})
    g.write(cfg, p)


def _generate(mod, draft, model, prompt):
    mod._cuda_time = lambda: 0.0  # the statistics want a CUDA clock
    return mod.dflash_generate(draft, model, prompt, NEW + 8, None, return_stats=True)


if __name__ == "__main__":
    which = sys.argv[1:] or ["dflash", "dflash2"]
    if "dflash" in which:
        run("dflash", CFG, False, 41)
    if "dflash2" in which:
        run("dflash2", CFG2, True, 42)
