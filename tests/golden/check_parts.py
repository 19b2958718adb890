"""Norms, rope and the reading of configs for `check_golden.py`."""

import json
import math
import os

import torch
import torch.nn.functional as F

D = torch.float64
G = os.path.join(os.environ["GOLDEN"], "golden") + "/"


def rms(x, w=None, eps=1e-6, plus=False):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    if w is None:
        return y
    return y * ((1 + w) if plus else w)


ACT = {
    "silu": F.silu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu2": lambda x: F.relu(x) ** 2,
    "gelu": F.gelu,
}


# ---------------------------------------------------------------- rope
def rope_table(rp, dim, T, maxpos, total):
    ty = rp.get("rope_type", rp.get("type", "default"))
    th = rp["rope_theta"]
    prf = rp.get("partial_rotary_factor", 1.0)
    att = 1.0
    if ty == "proportional":
        n = int(prf * dim // 2)
        f = 1 / th ** (torch.arange(0, 2 * n, 2).float() / dim)
        f = torch.cat([f, torch.zeros(dim // 2 - n)]) / rp.get("factor", 1.0)
        rd = dim
    else:
        rd = int(dim * prf)
        base = th
        ar = torch.arange(0, rd, 2).float() / rd
        if ty == "dynamic":
            s = max(total, maxpos)
            fac = rp["factor"]
            base = th * ((fac * s / maxpos) - (fac - 1)) ** (rd / (rd - 2))
        f = 1 / base**ar
        if ty == "linear":
            f = f / rp["factor"]
        elif ty == "llama3":
            L = rp["original_max_position_embeddings"]
            lo, hi, fac = rp["low_freq_factor"], rp["high_freq_factor"], rp["factor"]
            w = 2 * math.pi / f
            sm = ((L / w - lo) / (hi - lo)).clamp(0, 1)
            f = (1 - sm) * f / fac + sm * f
        elif ty == "yarn":
            L = rp["original_max_position_embeddings"]
            fac = rp.get("factor") or maxpos / L
            cd = lambda r: (rd * math.log(L / (r * 2 * math.pi))) / (2 * math.log(th))
            lo, hi = cd(rp.get("beta_fast") or 32), cd(rp.get("beta_slow") or 1)
            if rp.get("truncate", True):
                lo, hi = math.floor(lo), math.ceil(hi)
            lo, hi = max(lo, 0), min(hi, rd - 1)
            hi = hi + 0.001 if lo == hi else hi
            ramp = ((torch.arange(rd // 2).float() - lo) / (hi - lo)).clamp(0, 1)
            f = f / fac * ramp + f * (1 - ramp)
            ms = lambda s, m=1: 1.0 if s <= 1 else 0.1 * m * math.log(s) + 1
            att = rp.get("attention_factor")
            if att is None:
                a, b = rp.get("mscale"), rp.get("mscale_all_dim")
                att = ms(fac, a) / ms(fac, b) if a and b else ms(fac)
        elif ty == "longrope":
            L = rp["original_max_position_embeddings"]
            fac = rp.get("factor") or maxpos / L
            e = torch.tensor(rp["long_factor" if total > L else "short_factor"])
            f = 1 / (e * th**ar)
            att = rp.get("attention_factor") or (1.0 if fac <= 1 else math.sqrt(1 + math.log(fac) / math.log(L)))
    a = torch.arange(T).double()[:, None] * f.double()
    return a.cos() * att, a.sin() * att


def rotate(x, cs, inter=False):
    c, s = cs
    h = c.shape[-1]
    r, p = x[..., : 2 * h], x[..., 2 * h :]
    if inter:
        a, b = r[..., 0::2], r[..., 1::2]
        y = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)
    else:
        a, b = r[..., :h], r[..., h:]
        y = torch.cat([a * c - b * s, b * c + a * s], -1)
    return torch.cat([y, p], -1)


# ---------------------------------------------------------------- config -> spec
def load_cfg(path):
    c = json.load(open(path))
    if "text_config" in c:
        c = {
            **c["text_config"],
            "tie_word_embeddings": c.get("tie_word_embeddings", c["text_config"].get("tie_word_embeddings")),
        }
    return c


def spec(c):
    mt = c["model_type"].replace("_text", "")
    L = c["num_hidden_layers"] if c.get("num_hidden_layers") else len(c["layers_block_type"])
    s = dict(
        mt=mt,
        L=L,
        plus=mt in ("qwen3_next", "qwen3_5", "qwen3_5_moe", "gemma3"),
        block="pre",
        eps=c.get("rms_norm_eps", c.get("norm_eps", c.get("layer_norm_epsilon", 1e-6))),
        H=c["num_attention_heads"],
        KV=c.get("num_key_value_heads") or c["num_attention_heads"],
        hd=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
        act=ACT[c.get("hidden_act", c.get("hidden_activation", c.get("mlp_hidden_act", "silu")))],
    )
    if mt in ("gemma3", "gemma4", "muse_glimmer", "glm4"):
        s["block"] = "sandwich"
    if mt in ("olmo2", "olmo3"):
        s["block"] = "post"
    if mt == "cohere2":
        s["block"] = "parallel"
        s["eps"] = c.get("layer_norm_eps", 1e-5)
    lt = c.get("layer_types")
    W = c.get("sliding_window")
    if mt in ("qwen2", "qwen3", "smollm3") and not c.get("use_sliding_window"):
        W = None
    if lt is None:
        if mt == "gemma3":
            p = c.get("sliding_window_pattern", 6)
            lt = ["full_attention" if (i + 1) % p == 0 else "sliding_attention" for i in range(L)]
        elif mt in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
            p = c.get("full_attention_interval", 4)
            lt = ["full_attention" if (i + 1) % p == 0 else "linear_attention" for i in range(L)]
        elif mt == "nemotron_h":
            lt = c["layers_block_type"]
        elif W and mt in ("mistral", "phi3"):
            lt = ["sliding_attention"] * L
        else:
            lt = ["full_attention"] * L
    s["lt"] = lt
    s["W"] = W
    # rope
    rp = c.get("rope_parameters")
    if rp is None and "rope_theta" in c:
        sc = dict(c.get("rope_scaling") or {})
        rp = {"rope_theta": c["rope_theta"], **sc}
        if "partial_rotary_factor" in c:
            rp["partial_rotary_factor"] = c["partial_rotary_factor"]
        if "original_max_position_embeddings" in c and sc:
            rp["original_max_position_embeddings"] = c["original_max_position_embeddings"]
        if mt == "gemma3":
            rp = {
                "full_attention": rp,
                "sliding_attention": {"rope_type": "default", "rope_theta": c["rope_local_base_freq"]},
            }
    if rp is None:
        rp = {"rope_type": "default", "rope_theta": 10000.0}
    if mt == "phi3" and "original_max_position_embeddings" in c:
        rp.setdefault("original_max_position_embeddings", c["original_max_position_embeddings"])
    s["rp"] = rp
    s["inter"] = (mt in ("deepseek_v3", "glm4_moe_lite") and c.get("rope_interleave", True)) or mt in (
        "glm4",
        "cohere2",
    )
    return s
