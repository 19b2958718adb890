"""One float64 decoder for every golden folder: checks that the goldens are right and that one set of switches is enough.

    python check_golden.py [NAME ...]

It imports nothing of transformers and agrees with `f64.logits` to 1e-6 for both configs, prediction layers included.
"""

import math
import os
import sys

import torch
import torch.nn.functional as F
from check_parts import D, G, load_cfg, rms, rope_table, rotate, spec
from safetensors.torch import load_file


def forward(c, w, ids):
    s = spec(c)
    mt, T = s["mt"], len(ids)
    eps, plus = s["eps"], s["plus"]
    P = "model."
    if any(k.startswith("model.language_model.") for k in w):
        P = "model.language_model."
    elif any(k.startswith("language_model.model.") for k in w):
        P = "language_model.model."
    elif any(k.startswith("backbone.") for k in w):
        P = "backbone."
    g = lambda n: w[P + n]
    emb = g("embeddings.weight") if mt == "nemotron_h" else g("embed_tokens.weight")
    x = emb[ids]
    if mt in ("gemma3", "gemma4"):
        x = x * torch.tensor(c["hidden_size"] ** 0.5)
    x = x * c.get("embedding_multiplier", 1.0)
    if mt == "muse_glimmer":
        x = rms(x, None, eps)
    hs = [x]
    pli = None
    if mt == "gemma4" and c.get("hidden_size_per_layer_input"):
        d = c["hidden_size_per_layer_input"]
        a = (x @ g("per_layer_model_projection.weight").T) * c["hidden_size"] ** -0.5
        a = rms(a.view(T, s["L"], d), g("per_layer_projection_norm.weight"), eps)
        b = g("embed_tokens_per_layer.weight")[ids].view(T, s["L"], d) * d**0.5
        pli = (a + b) * 2**-0.5
    ropes = {}

    def rope(kind, dim):
        k = (kind, dim)
        if k not in ropes:
            rp = s["rp"]
            rp = rp.get(kind, rp) if isinstance(rp.get("full_attention"), dict) else rp
            ropes[k] = rope_table(rp, dim, T, c["max_position_embeddings"], T)
        return ropes[k]

    i_, j_ = torch.arange(T)[:, None], torch.arange(T)[None]
    shared = {}

    def sdpa(q, k, v, scale, win=None, sink=None):  # [h,T,d]
        r = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(r, 0), v.repeat_interleave(r, 0)
        a = q @ k.transpose(1, 2) * scale
        m = j_ <= i_
        if win:
            m = m & (i_ - j_ < win)
        a = a.masked_fill(~m, float("-inf"))
        if sink is not None:
            a = torch.cat([a, sink.view(-1, 1, 1).expand(-1, T, 1)], -1).softmax(-1)[..., :-1]
        else:
            a = a.softmax(-1)
        return (a @ v).transpose(0, 1).reshape(T, -1)

    def lin(x, n):
        y = x @ g(n + ".weight").T
        b = w.get(P + n + ".bias")
        return y if b is None else y + b

    def attn(x, i, pre):
        ty = s["lt"][i]
        H, KV, hd = s["H"], s["KV"], s["hd"]
        win = s["W"] if ty == "sliding_attention" else None
        if mt in ("deepseek_v3", "glm4_moe_lite"):
            nope, rd, vd = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
            q = (
                lin(rms(lin(x, pre + "q_a_proj"), g(pre + "q_a_layernorm.weight"), 1e-6), pre + "q_b_proj")
                if c.get("q_lora_rank")
                else lin(x, pre + "q_proj")
            )
            q = q.view(T, H, nope + rd).transpose(0, 1)
            kv = lin(x, pre + "kv_a_proj_with_mqa")
            lat, kr = kv.split([c["kv_lora_rank"], rd], -1)
            lat = rms(lat, g(pre + "kv_a_layernorm.weight"), 1e-6)
            cs = rope(ty, rd)
            qn, qr = q.split([nope, rd], -1)
            qr = rotate(qr, cs, s["inter"])
            kr = rotate(kr[None], cs, s["inter"])
            kb, vb = lin(lat, pre + "kv_b_proj").view(T, H, nope + vd).transpose(0, 1).split([nope, vd], -1)
            sc = (nope + rd) ** -0.5
            rp = s["rp"]
            if rp.get("mscale_all_dim") and rp.get("factor", 1) > 1:
                sc *= (0.1 * rp["mscale_all_dim"] * math.log(rp["factor"]) + 1) ** 2
            return lin(sdpa(torch.cat([qn, qr], -1), torch.cat([kb, kr.expand(H, -1, -1)], -1), vb, sc), pre + "o_proj")
        if mt == "gemma4":
            full = ty == "full_attention"
            pl = (c.get("per_layer_config") or {}).get(str(i), {})
            if full:
                hd = pl.get("head_dim") or c.get("global_head_dim", hd)
                KV = pl.get("num_key_value_heads") or (
                    c.get("num_global_key_value_heads") or KV if c.get("attention_k_eq_v") else KV
                )
        if mt == "mimo_v2_flash" and ty == "sliding_attention":
            KV *= 2
        vd = c.get("v_head_dim", hd) if mt == "mimo_v2_flash" else hd
        gate = None
        if mt == "phi3":
            q, k, v = lin(x, pre + "qkv_proj").split([H * hd, KV * hd, KV * hd], -1)
        else:
            q = lin(x, pre + "q_proj")
            if mt in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
                q, gate = q.view(T, H, 2 * hd).chunk(2, -1)
                q, gate = q.reshape(T, -1), gate.reshape(T, -1)
            if mt == "muse_glimmer":
                gate = lin(x, pre + "gate_proj")
        out = "out_proj" if mt == "lfm2" else "o_proj"
        qn, kn = ("q_layernorm", "k_layernorm") if mt == "lfm2" else ("q_norm", "k_norm")
        share = mt == "gemma4" and i >= s["L"] - c.get("num_kv_shared_layers", 0)
        if share:
            k = v = None
        if mt != "phi3" and not share:
            k = lin(x, pre + "k_proj")
            v = k if (P + pre + "v_proj.weight") not in w else lin(x, pre + "v_proj")
        full_norm = mt in ("olmo2", "olmo3")
        if full_norm:
            q, k = rms(q, g(pre + "q_norm.weight"), eps), rms(k, g(pre + "k_norm.weight"), eps)
        hv = lambda t, n, d: t.view(T, n, d).transpose(0, 1)
        q = hv(q, H, hd)
        if not share:
            k, v = hv(k, KV, hd), hv(v, KV, vd)
        if (P + pre + qn + ".weight") in w and not full_norm:
            q = rms(q, g(pre + qn + ".weight"), eps, plus)
            if not share:
                k = rms(k, g(pre + kn + ".weight"), eps, plus)
        if mt == "muse_glimmer":
            q = rms(q, None, eps) * c["qk_scale_factor"]
            k = rms(k, None, eps)
        if mt == "gemma4" and not share:
            v = rms(v, None, eps)
        if mt == "mimo_v2_flash":
            v = v * (c.get("attention_value_scale") or 1.0)
        use = True
        if mt == "smollm3":
            nr = c.get("no_rope_layers") or [
                int((t + 1) % c.get("no_rope_layer_interval", 4) != 0) for t in range(s["L"])
            ]
            use = bool(nr[i])
        if mt == "muse_glimmer":
            use = bool(c["layer_rope_theta"][i])
        if mt == "cohere2":
            use = ty == "sliding_attention"
        if mt in ("nemotron_h", "granitemoehybrid"):
            use = mt == "granitemoehybrid" and c.get("position_embedding_type") == "rope"
        if use:
            cs = rope(ty, hd)
            q = rotate(q, cs, s["inter"])
            k = k if share else rotate(k, cs, s["inter"])
        if mt == "ministral3":
            rp = s["rp"]
            q = (
                q
                * (
                    1
                    + rp["llama_4_scaling_beta"]
                    * torch.log1p(torch.floor(torch.arange(T).double() / rp["original_max_position_embeddings"]))
                )[:, None]
            )
        if mt == "gemma4":
            if share:
                k, v = shared[ty]
            else:
                shared[ty] = (k, v)
        sc = hd**-0.5
        if mt == "gemma3":
            sc = c["query_pre_attn_scalar"] ** -0.5
        if mt == "gemma4":
            sc = 1.0
        if "attention_multiplier" in c:
            sc = c["attention_multiplier"]
        sink = w.get(P + pre + "sinks", w.get(P + pre + "attention_sink_bias"))
        y = sdpa(q, k, v, sc, win, sink)
        if gate is not None:
            y = y * gate.sigmoid()
        return lin(y, pre + out)

    def conv(x, wt, b=None):  # x [T,C], wt [C,1,K] depthwise causal
        K = wt.shape[-1]
        xp = torch.cat([x.new_zeros(K - 1, x.shape[1]), x])
        y = sum(xp[t : t + T] * wt[:, 0, t] for t in range(K))
        return y if b is None else y + b

    def gdn(x, pre):
        nk, nv, dk, dv = (
            c["linear_num_key_heads"],
            c["linear_num_value_heads"],
            c["linear_key_head_dim"],
            c["linear_value_head_dim"],
        )
        if mt == "qwen3_next":
            r = nv // nk
            m = lin(x, pre + "in_proj_qkvz").view(T, nk, -1)
            q, k, v, z = m.split([dk, dk, r * dv, r * dv], -1)
            b, a = lin(x, pre + "in_proj_ba").view(T, nk, -1).split([r, r], -1)
            qkv = torch.cat([t.reshape(T, -1) for t in (q, k, v)], -1)
            z = z.reshape(T, nv, dv)
            b, a = b.reshape(T, nv), a.reshape(T, nv)
        else:
            qkv = lin(x, pre + "in_proj_qkv")
            z = lin(x, pre + "in_proj_z").view(T, nv, dv)
            b = lin(x, pre + "in_proj_b")
            a = lin(x, pre + "in_proj_a")
        qkv = F.silu(conv(qkv, g(pre + "conv1d.weight")))
        q, k, v = qkv.split([nk * dk, nk * dk, nv * dv], -1)
        l2 = lambda t: t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)
        q, k = (
            l2(q.view(T, nk, dk)).repeat_interleave(nv // nk, 1) * dk**-0.5,
            l2(k.view(T, nk, dk)).repeat_interleave(nv // nk, 1),
        )
        v = v.view(T, nv, dv)
        beta = b.sigmoid()
        dec = (-g(pre + "A_log").exp() * F.softplus(a + g(pre + "dt_bias"))).exp()
        S = x.new_zeros(nv, dk, dv)
        o = []
        for t in range(T):
            S = S * dec[t][:, None, None]
            d = (v[t] - torch.einsum("hkv,hk->hv", S, k[t])) * beta[t][:, None]
            S = S + k[t][:, :, None] * d[:, None, :]
            o.append(torch.einsum("hkv,hk->hv", S, q[t]))
        o = rms(torch.stack(o), g(pre + "norm.weight"), eps) * F.silu(z)
        return lin(o.reshape(T, -1), pre + "out_proj")

    def mamba2(x, pre):
        if mt == "nemotron_h":
            nh, hd, ng, N = c["mamba_num_heads"], c["mamba_head_dim"], c["n_groups"], c["ssm_state_size"]
        else:
            nh, hd, ng, N = c["mamba_n_heads"], c["mamba_d_head"], c["mamba_n_groups"], c["mamba_d_state"]
        I = nh * hd
        z, xbc, dt = lin(x, pre + "in_proj").split([I, I + 2 * ng * N, nh], -1)
        xbc = F.silu(conv(xbc, g(pre + "conv1d.weight"), w.get(P + pre + "conv1d.bias")))
        xs, B, C = xbc.split([I, ng * N, ng * N], -1)
        dt = F.softplus(dt + g(pre + "dt_bias"))
        A = -g(pre + "A_log").exp()
        xs = xs.view(T, nh, hd)
        B, C = [t.view(T, ng, N).repeat_interleave(nh // ng, 1) for t in (B, C)]
        S = x.new_zeros(nh, hd, N)
        o = []
        for t in range(T):
            S = S * (dt[t] * A).exp()[:, None, None] + (dt[t][:, None] * xs[t])[:, :, None] * B[t][:, None, :]
            o.append((S * C[t][:, None, :]).sum(-1) + g(pre + "D")[:, None] * xs[t])
        y = torch.stack(o).reshape(T, I) * F.silu(z)
        y = (
            rms(y.view(T, ng, -1), None, eps).reshape(T, I) * g(pre + "norm.weight")
            if mt == "nemotron_h"
            else rms(y, g(pre + "norm.weight"), eps)
        )
        return lin(y, pre + "out_proj")

    def glu(x, gw, uw, dw):
        return (s["act"](x @ gw.T) * (x @ uw.T)) @ dw.T

    def expert(x, pre, e):
        if (P + pre + "experts.gate_up_proj") in w:
            gu = g(pre + "experts.gate_up_proj")[e]
            dn = g(pre + "experts.down_proj")[e]
            if mt == "gpt_oss":
                y = x @ gu + g(pre + "experts.gate_up_proj_bias")[e]
                a, u = y[..., 0::2], y[..., 1::2]
                lim = c.get("swiglu_limit", 7.0)
                a = a.clamp(max=lim)
                u = u.clamp(-lim, lim)
                return ((u + 1) * a * torch.sigmoid(a * c.get("swiglu_alpha", 1.702))) @ dn + g(
                    pre + "experts.down_proj_bias"
                )[e]
            a, u = gu.chunk(2, 0)
            return glu(x, a, u, dn)
        if mt == "nemotron_h":
            return s["act"](x @ g(pre + f"experts.{e}.up_proj.weight").T) @ g(pre + f"experts.{e}.down_proj.weight").T
        return glu(x, *[g(pre + f"experts.{e}.{n}_proj.weight") for n in ("gate", "up", "down")])

    def route(x, pre):
        k = c.get("num_experts_per_tok", c.get("top_k_experts"))
        if mt == "gpt_oss":
            r = lin(x, pre + "router")
            v, i = r.topk(k, -1)
            return v.softmax(-1), i
        if mt in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "mimo_v2_flash", "nemotron_h"):
            sc = (x @ g(pre + "gate.weight").T).sigmoid()
            ch = sc + g(pre + "gate.e_score_correction_bias")
            ng = c.get("n_group", 1)
            gr = ch.view(T, ng, -1).topk(2, -1)[0].sum(-1)
            keep = torch.zeros_like(gr).scatter_(1, gr.topk(c.get("topk_group", 1), -1)[1], 1.0).bool()
            ch = ch.masked_fill(~keep[:, :, None].expand(-1, -1, ch.shape[1] // ng).reshape(T, -1), float("-inf"))
            i = ch.topk(k, -1)[1]
            v = sc.gather(1, i)
            if c.get("norm_topk_prob", True):
                v = v / (v.sum(-1, keepdim=True) + 1e-20)
            return v * (c.get("routed_scaling_factor") or 1.0), i
        p = (x @ g(pre + "gate.weight").T).softmax(-1)
        v, i = p.topk(k, -1)
        if c.get("norm_topk_prob", mt == "qwen3_5_moe"):
            v = v / v.sum(-1, keepdim=True)
        return v, i

    def mix(x, v, i, pre):
        y = torch.zeros_like(x)
        for e in i.unique().tolist():
            t, sl = (i == e).nonzero(as_tuple=True)
            y.index_add_(0, t, expert(x[t], pre, e) * v[t, sl][:, None])
        return y

    def mlp(x, i, pre):
        if (P + pre + "router.weight") in w or (P + pre + "gate.weight") in w:
            v, ix = route(x, pre)
            y = mix(x, v, ix, pre)
            if (P + pre + "shared_expert.gate_proj.weight") in w:
                y = y + (x @ g(pre + "shared_expert_gate.weight").T).sigmoid() * glu(
                    x, *[g(pre + f"shared_expert.{n}_proj.weight") for n in ("gate", "up", "down")]
                )
            if (P + pre + "shared_experts.gate_proj.weight") in w:
                y = y + glu(x, *[g(pre + f"shared_experts.{n}_proj.weight") for n in ("gate", "up", "down")])
            elif (P + pre + "shared_experts.up_proj.weight") in w:
                y = (
                    y
                    + s["act"](x @ g(pre + "shared_experts.up_proj.weight").T)
                    @ g(pre + "shared_experts.down_proj.weight").T
                )
            return y
        if (P + pre + "gate_up_proj.weight") in w:
            a, u = lin(x, pre + "gate_up_proj").chunk(2, -1)
            return lin(s["act"](a) * u, pre + "down_proj")
        if (P + pre + "w1.weight") in w:
            return glu(x, g(pre + "w1.weight"), g(pre + "w3.weight"), g(pre + "w2.weight"))
        if (P + pre + "gate_proj.weight") not in w:
            return lin(s["act"](lin(x, pre + "up_proj")), pre + "down_proj")
        return lin(s["act"](lin(x, pre + "gate_proj")) * lin(x, pre + "up_proj"), pre + "down_proj")

    for i in range(s["L"]):
        b = f"layers.{i}."
        n = lambda k, x, e=eps: rms(x, g(b + k + ".weight"), e, plus or mt == "muse_glimmer")
        ty = s["lt"][i]
        rs = c.get("residual_multiplier", 1.0)
        if mt == "nemotron_h":
            y = n("norm", x)
            m = b + "mixer."
            x = x + (
                mamba2(y, m)
                if ty in ("mamba", "linear_attention")
                else attn(y, i, m)
                if ty in ("attention", "full_attention")
                else mlp(y, i, m)
            )
            hs.append(x)
            continue
        if mt == "granitemoehybrid":
            y = n("input_layernorm", x)
            x = x + rs * (
                mamba2(y, b + "mamba.") if ty in ("mamba", "linear_attention") else attn(y, i, b + "self_attn.")
            )
            y = n("post_attention_layernorm", x)
            q = b + "block_sparse_moe."
            v, ix = (y @ g(q + "router.layer.weight").T).topk(c["num_experts_per_tok"], -1)
            v = v.softmax(-1)
            o = torch.zeros_like(y)
            for e in ix.unique().tolist():
                t, sl = (ix == e).nonzero(as_tuple=True)
                a, u = (y[t] @ g(q + "input_linear.weight")[e].T).chunk(2, -1)
                o.index_add_(0, t, ((s["act"](a) * u) @ g(q + "output_linear.weight")[e].T) * v[t, sl][:, None])
            a, u = (y @ g(b + "shared_mlp.input_linear.weight").T).chunk(2, -1)
            x = x + rs * (o + (s["act"](a) * u) @ g(b + "shared_mlp.output_linear.weight").T)
            hs.append(x)
            continue
        if s["block"] == "parallel":
            y = x - x.mean(-1, keepdim=True)
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps) * g(b + "input_layernorm.weight")
            x = x + attn(y, i, b + "self_attn.") + mlp(y, i, b + "mlp.")
        elif s["block"] == "post":
            x = x + n("post_attention_layernorm", attn(x, i, b + "self_attn."))
            x = x + n("post_feedforward_layernorm", mlp(x, i, b + "mlp."))
        elif s["block"] == "sandwich":
            a, p, f, q = (
                ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
                if mt == "glm4"
                else (
                    "input_layernorm",
                    "post_attention_layernorm",
                    "pre_feedforward_layernorm",
                    "post_feedforward_layernorm",
                )
            )
            pe = c.get("post_norm_eps", eps)
            x = x + n(p, attn(n(a, x), i, b + "self_attn."), pe)
            y = mlp(n(f, x), i, b + "mlp.")
            if c.get("enable_moe_block"):
                y = n("post_feedforward_layernorm_1", y)
                r = rms(x, None, eps) * g(b + "router.scale") * c["hidden_size"] ** -0.5
                v, ix = (r @ g(b + "router.proj.weight").T).softmax(-1).topk(c["top_k_experts"], -1)
                v = v / v.sum(-1, keepdim=True) * g(b + "router.per_expert_scale")[ix]
                y = y + n("post_feedforward_layernorm_2", mix(n("pre_feedforward_layernorm_2", x), v, ix, b))
            x = x + n(q, y, pe)
            if pli is not None:
                y = s["act"](lin(x, b + "per_layer_input_gate")) * pli[:, i]
                x = x + n("post_per_layer_input_norm", lin(y, b + "per_layer_projection"))
            if mt == "gemma4":
                x = x * g(b + "layer_scalar")
        else:
            an, fn = ("operator_norm", "ffn_norm") if mt == "lfm2" else ("input_layernorm", "post_attention_layernorm")
            y = n(an, x)
            if ty == "linear_attention":
                y = gdn(y, b + "linear_attn.")
            elif ty == "conv":
                B, C, u = lin(y, b + "conv.in_proj").chunk(3, -1)
                y = lin(C * conv(B * u, g(b + "conv.conv.weight")), b + "conv.out_proj")
            else:
                y = attn(y, i, b + "self_attn.")
            x = x + rs * y
            x = x + rs * mlp(n(fn, x), i, b + ("feed_forward." if mt == "lfm2" else "mlp."))
        hs.append(x)
    fin = {"lfm2": "embedding_norm", "nemotron_h": "norm_f"}.get(mt, "norm")
    if mt == "cohere2":
        x = x - x.mean(-1, keepdim=True)
    x = rms(x, g(fin + ".weight"), eps, plus)
    lg = x @ w.get("lm_head.weight", emb).T
    lg = lg / c.get("logits_scaling", 1.0) * c.get("logit_scale", 1.0) * c.get("output_multiplier", 1.0)
    if c.get("final_logit_softcapping"):
        lg = torch.tanh(lg / c["final_logit_softcapping"]) * c["final_logit_softcapping"]
    return lg, hs, x


def check_mtp(name, c, w, gd):
    s = spec(c)
    plus, eps, L = s["plus"], s["eps"], s["L"]
    qwen = "mtp.fc.weight" in w
    p = lambda a, b: w["mtp." + a] if qwen else w[f"model.layers.{L}." + b]
    e = rms(
        w["model.embed_tokens.weight"][gd["mtp.input_ids"][0]],
        p("pre_fc_norm_embedding.weight", "enorm.weight"),
        eps,
        plus,
    )
    h = rms(gd["mtp.prev_hidden"][0].to(D), p("pre_fc_norm_hidden.weight", "hnorm.weight"), eps, plus)
    x = torch.cat([e, h], -1) @ p("fc.weight", "eh_proj.weight").T
    pre = "mtp.layers.0." if qwen else f"model.layers.{L}."
    w2 = {
        "model.layers.0." + k[len(pre) :]: v for k, v in w.items() if k.startswith(pre)
    }  # a one-layer model fed with x
    w2.update(
        {
            "model.embed_tokens.weight": x,
            "model.norm.weight": p("norm.weight", "shared_head.norm.weight"),
            "lm_head.weight": w["lm_head.weight"],
        }
    )
    lg, _, fx = forward(dict(c, num_hidden_layers=1, layer_types=["full_attention"]), w2, torch.arange(len(x)))
    return float((fx - gd["mtp.hidden"][0]).abs().max()), float((lg - gd["mtp.logits"][0]).abs().max())


if __name__ == "__main__":
    for n in sorted(os.listdir(G)):
        if not os.path.isdir(G + n) or (len(sys.argv) > 1 and n not in sys.argv[1:]):
            continue
        gd = load_file(G + n + "/golden.safetensors")
        w = {k: v.to(D) if v.is_floating_point() else v for k, v in load_file(G + n + "/model.safetensors").items()}
        for k in [k for k in w if k.endswith("_blocks")]:
            bl, sc = w[k], w[k[:-7] + "_scales"]
            lut = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=D)
            v = (
                torch.stack([lut[(bl & 15).long()], lut[(bl >> 4).long()]], -1).flatten(-2)
                * torch.exp2(sc.to(D) - 127)[..., None]
            )
            w[k[:-7]] = v.flatten(-2).transpose(1, 2)
        for f in ("config.json", "config_hub.json"):
            if not os.path.exists(G + n + "/" + f):
                continue
            try:
                c = load_cfg(G + n + "/" + f)
                lg, hs, fx = forward(c, w, gd["input_ids"][0])
                ll = forward(c, w, gd["long.input_ids"][0])[0]
                ref = gd["f64.logits"][0]
                dh = max(float((h - gd[f"h.{i}"][0]).abs().max()) for i, h in enumerate(hs))
                print(
                    f"{n:22s} {f:16s} logits {float((lg - ref).abs().max()):.1e} h {dh:.1e} final {float((fx - gd['h.final'][0]).abs().max()):.1e} long {float((ll - gd['long.logits'][0]).abs().max()):.1e}"
                    + (
                        " mtp hidden %.1e logits %.1e" % check_mtp(n, c, w, gd)
                        if "mtp.logits" in gd and "model.embed_tokens.weight" in w
                        else ""
                    )
                )
            except Exception as e:
                import traceback

                print(n, f, type(e).__name__, str(e)[:200])
                if len(sys.argv) > 1:
                    traceback.print_exc()
