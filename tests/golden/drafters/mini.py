"""Independent small implementations of the drafters, written from the format document only.

They train the tiny drafters (teacher forcing plus unrolled steps) and are checked against each reference in the
generators. Parameters are plain dicts with the published tensor names, so a trained dict is the checkpoint.
"""

import math

import torch
import torch.nn.functional as F


def rms(x, w, eps, offset=0.0):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (w + offset)


def rope(x, pos, theta, dim=None):
    """x [..., T, hd], pos [T]; half-split (NeoX) rotation of the first `dim` features."""
    dim = dim or x.shape[-1]
    inv = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    a = pos.float()[:, None] * inv
    c, s = torch.cat([a.cos()] * 2, -1), torch.cat([a.sin()] * 2, -1)
    r, rest = x[..., :dim], x[..., dim:]
    h = torch.cat([-r[..., dim // 2 :], r[..., : dim // 2]], -1)
    return torch.cat([r * c + h * s, rest], -1)


def split(x, hd):
    return x.view(*x.shape[:-1], -1, hd).transpose(-2, -3)


def heads_attn(q, k, v, mask, scale=None):
    rep = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(rep, -3), v.repeat_interleave(rep, -3)
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    s = s.masked_fill(~mask, float("-inf"))
    o = torch.softmax(s, -1) @ v
    return o.transpose(-2, -3).flatten(-2)


def mlp(p, pre, x):
    return F.linear(
        F.silu(F.linear(x, p[pre + "gate_proj.weight"])) * F.linear(x, p[pre + "up_proj.weight"]),
        p[pre + "down_proj.weight"],
    )


def init(shapes, seed, std=0.1, norm_std=0.2):
    g = torch.Generator().manual_seed(seed)
    out = {}
    for k, s in shapes.items():
        if "norm" in k and len(s) == 1:
            out[k] = 1 + norm_std * torch.randn(s, generator=g)
        elif k.endswith("bias"):
            out[k] = std * torch.randn(s, generator=g)
        else:
            out[k] = torch.randn(s, generator=g) * (std if len(s) < 2 else 0.8 / math.sqrt(s[-1]))
    return out


def train(params, loss_fn, steps, lr=3e-3, frozen=()):
    ps = {
        k: (v.clone().requires_grad_(True) if v.is_floating_point() and k not in frozen else v)
        for k, v in params.items()
    }
    opt = torch.optim.Adam([v for v in ps.values() if v.requires_grad], lr=lr)
    for i in range(steps):
        for g in opt.param_groups:
            g["lr"] = lr * (1 - 0.9 * i / steps)
        loss = loss_fn(ps, i)
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([v for v in ps.values() if v.requires_grad], 1.0)
        opt.step()
        if i % 50 == 0 or i == steps - 1:
            print("  step", i, "loss", round(loss.item(), 3), flush=True)
    return {k: v.detach() for k, v in ps.items()}


# ---------------------------------------------------------------------------------------------------- EAGLE


class Eagle:
    """EAGLE-1 (v=1) and EAGLE-3 (v=3): one layer; `pre` is the layer prefix used in the file."""

    def __init__(
        self, v, hd, theta, eps, pre, norm_before_residual=False, qk_norm=False, fc_norm=False, norm_output=False
    ):
        self.v, self.hd, self.theta, self.eps, self.pre, self.nbr = v, hd, theta, eps, pre, norm_before_residual
        self.qk_norm, self.fc_norm, self.norm_output = qk_norm, fc_norm, norm_output

    def shapes(self, H, nh, nk, inter, Vd=None, bias=False):
        p, w = self.pre, (2 * H if self.v == 3 else H)
        s = {
            p + "self_attn.q_proj.weight": (nh * self.hd, w),
            p + "self_attn.k_proj.weight": (nk * self.hd, w),
            p + "self_attn.v_proj.weight": (nk * self.hd, w),
            p + "self_attn.o_proj.weight": (H, nh * self.hd),
            p + "mlp.gate_proj.weight": (inter, H),
            p + "mlp.up_proj.weight": (inter, H),
            p + "mlp.down_proj.weight": (H, inter),
            p + "post_attention_layernorm.weight": (H,),
        }
        if self.v == 3:
            s |= {
                "fc.weight": (H, 3 * H),
                p + "hidden_norm.weight": (H,),
                p + "input_layernorm.weight": (H,),
                "norm.weight": (H,),
                "lm_head.weight": (Vd, H),
            }
            if self.qk_norm:
                s |= {p + "self_attn.q_norm.weight": (self.hd,), p + "self_attn.k_norm.weight": (self.hd,)}
            if self.fc_norm:
                s |= {f"fc_norm.{i}.weight": (H,) for i in range(3)}
        else:
            s |= {"fc.weight": (H, 2 * H)} | ({"fc.bias": (H,)} if bias else {})
        return s

    def project(self, p, state):
        """Captured target states -> g (EAGLE-3); EAGLE-1 takes the state as it is."""
        if self.v == 1:
            return state
        if self.fc_norm:
            state = torch.cat(
                [rms(x, p[f"fc_norm.{i}.weight"], self.eps) for i, x in enumerate(state.chunk(3, -1))], -1
            )
        return F.linear(state, p["fc.weight"])

    def recycle(self, p, f):
        return rms(f, p["norm.weight"], self.eps) if self.norm_output else f

    def draft(self, p, embed, tokens, state, k, d2t, pos0=0):
        """Prefill logits and a chain of k greedy drafts, by recomputing nothing: rows in a growing cache."""
        T = tokens.shape[1]
        g = self.project(p, state)
        f, cache = self.step(
            p, F.embedding(tokens, embed), g, torch.arange(T) + pos0, [], torch.ones(T, T, dtype=torch.bool).tril()
        )
        first, out, lgs = self.logits(p, f), [], []
        K, V = cache[0]
        g, lg = self.recycle(p, f[:, -1:]), first[:, -1:]
        for i in range(k):
            lgs.append(lg[0, 0])
            j = int(lg.argmax())
            out.append(j + (int(d2t[j]) if d2t is not None else 0))
            if i == k - 1:
                break
            n = T + i
            # one more row that sees everything before it
            res, u = self.inputs(p, F.embedding(torch.tensor([[out[-1]]]), embed), g)
            q, kk, v = self.qkv(p, u, torch.tensor([n + pos0]))
            K, V = torch.cat([K, kk], -2), torch.cat([V, v], -2)
            o = heads_attn(q, K, V, torch.ones(1, n + 1, dtype=torch.bool))
            f = self.finish(p, res, o)
            g, lg = self.recycle(p, f), self.logits(p, f)
        return first, out, torch.stack(lgs)

    def qkv(self, p, u, pos):
        q, k, v = (split(F.linear(u, p[f"{self.pre}self_attn.{n}_proj.weight"]), self.hd) for n in "qkv")
        if self.qk_norm:
            q = rms(q, p[self.pre + "self_attn.q_norm.weight"], self.eps)
            k = rms(k, p[self.pre + "self_attn.k_norm.weight"], self.eps)
        return rope(q, pos, self.theta), rope(k, pos, self.theta), v

    def finish(self, p, res, o):
        a = res + F.linear(o, p[self.pre + "self_attn.o_proj.weight"])
        return a + mlp(p, self.pre + "mlp.", rms(a, p[self.pre + "post_attention_layernorm.weight"], self.eps))

    def inputs(self, p, e, g):
        if self.v == 3:
            n = rms(g, p[self.pre + "hidden_norm.weight"], self.eps)
            return (n if self.nbr else g), torch.cat([rms(e, p[self.pre + "input_layernorm.weight"], self.eps), n], -1)
        x = F.linear(torch.cat([e, g], -1), p["fc.weight"], p.get("fc.bias"))
        return x, x

    def step(self, p, e, g, pos, cache, mask_first):
        """One pass over rows (e, g); cache = list of (k, v) from earlier passes; mask_first over the first entry's
        rows, later entries are seen only by the same row (a chain of drafts per row)."""
        res, u = self.inputs(p, e, g)
        q, k, v = self.qkv(p, u, pos)
        cache = cache + [(k, v)]
        T = e.shape[-2]
        eye = torch.eye(T, dtype=torch.bool)
        mask = torch.cat([mask_first] + [eye] * (len(cache) - 1), -1)
        o = heads_attn(q, torch.cat([c[0] for c in cache], -2), torch.cat([c[1] for c in cache], -2), mask)
        return self.finish(p, res, o), cache

    def logits(self, p, f, head=None):
        return F.linear(rms(f, p["norm.weight"], self.eps), p["lm_head.weight"]) if self.v == 3 else F.linear(f, head)

    def unroll(self, p, embed, ids, state, steps, head=None):
        """Training-time test: logits of every unrolled step. ids [N,S], state [N,S,*]; row r of step s (from 0) stands
        for pair r+s and predicts token r+s+2."""
        S = ids.shape[1] - 1 - steps
        causal = torch.ones(S, S, dtype=torch.bool).tril()
        g = self.project(p, state[:, :S])
        cache, out = [], []
        for s in range(steps):
            e = F.embedding(ids[:, 1 + s : 1 + s + S], embed)
            g, cache = self.step(p, e, g, torch.arange(S) + s, cache, causal)
            out.append(self.logits(p, g, head))
            g = self.recycle(p, g)
        return out
