"""Random weights of the golden models, how they are run, and how close the calls in them are."""

import os
import re
import sys

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cases import VOCAB
from golden_files import draw


def inputs(n, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (1, n), generator=g)


def draws(module):
    """How every tensor is drawn: shape, kind and two numbers, so that no implementation gets it right by ignoring it."""
    for name, t in module.state_dict(keep_vars=True).items():
        if not t.is_floating_point():
            continue
        leaf, kind, first, second = name.split(".")[-1], "normal", 0.0, 0.2
        if leaf == "A_log":
            kind, first, second = "log", 0.5, 8.0
        elif leaf == "dt_bias":
            first, second = -1.0, 0.5
        elif leaf == "D":
            first, second = 1.0, 0.3
        elif leaf == "sinks":
            second = 1.0
        elif leaf in ("layer_scalar", "scale", "per_expert_scale"):
            kind, first, second = "uniform", 0.6, 1.4
        elif "e_score_correction_bias" in leaf:
            pass
        elif leaf == "weight" and t.dim() == 1:  # a norm; 1+w norms start from 0, the others from 1
            first = float(t.detach().float().mean().round())
        elif "conv" in name and leaf == "weight":
            second = 0.4
        elif t.dim() == 1 or leaf.endswith("bias"):
            second = 0.1
        yield list(t.shape), kind, first, second


def randomise(module, seed):
    """Give every tensor its value, in the order of the state dict."""
    values = iter(draw({"seed": seed, "draws": list(draws(module))}))
    with torch.no_grad():
        for t in module.state_dict(keep_vars=True).values():
            if t.is_floating_point():
                t.copy_(next(values).to(t.dtype))


class TopkMargin:
    """Smallest gap between the last chosen and the first rejected expert, over every torch.topk call."""

    def __enter__(self):
        self.min, self.orig = float("inf"), torch.topk

        def topk(x, k, dim=-1, **kw):
            if x.is_floating_point() and k < x.shape[dim]:
                s = x.sort(dim=dim, descending=True)[0].narrow(dim, k - 1, 2)
                gap = (s.select(dim, 0) - s.select(dim, 1)).abs()
                gap = gap[torch.isfinite(gap)]
                if gap.numel():
                    self.min = min(self.min, float(gap.min()))
            return self.orig(x, k, dim=dim, **kw)

        torch.topk = topk
        self.orig_t = torch.Tensor.topk
        torch.Tensor.topk = topk
        return self

    def __exit__(self, *a):
        torch.topk, torch.Tensor.topk = self.orig, self.orig_t


class Float64:
    """Run code that casts to float32 in float64 instead, so that a reference run has no fp32 step in it."""

    def __enter__(self):
        self.saved = torch.float32, torch.float, torch.Tensor.float
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *a):
        torch.float32, torch.float, torch.Tensor.float = self.saved


def run(model, ids, hidden=False):
    out, hooks = {}, []
    if hidden:
        base = model.model

        def first(m, a, k):
            out.setdefault("h.0", (a[0] if a else k["hidden_states"]).detach().clone())

        hooks.append(base.layers[0].register_forward_pre_hook(first, with_kwargs=True))
        for i, layer in enumerate(base.layers):

            def after(m, a, o, i=i):
                out[f"h.{i + 1}"] = (o[0] if isinstance(o, tuple) else o).detach().clone()

            hooks.append(layer.register_forward_hook(after))
        norm = getattr(base, "norm", None) or getattr(base, "norm_f", None) or base.embedding_norm
        hooks.append(norm.register_forward_hook(lambda m, a, o: out.__setitem__("h.final", o.detach().clone())))
    with torch.no_grad():
        out["logits"] = model(input_ids=ids, use_cache=False).logits
    for h in hooks:
        h.remove()
    return out


def greedy(model, prompt, new):
    """Greedy tokens, the slow way (no cache), and the smallest gap between the best and the second-best logit."""
    ids, margin = prompt, float("inf")
    for _ in range(new):
        top = run(model, ids)["logits"][0, -1].topk(2)[0]
        margin = min(margin, float(top[0] - top[1]))
        ids = torch.cat([ids, run(model, ids)["logits"][:, -1:].argmax(-1)], -1)
    return ids[:, prompt.shape[1] :], margin


def cached(model, ids):
    """Logits from a prefill of 20 tokens and then one token at a time through transformers' cache."""
    with torch.no_grad():
        o = model(input_ids=ids[:, :20], use_cache=True)
        logits, c = [o.logits], getattr(o, "cache", None) or o.past_key_values
        key = "cache" if hasattr(o, "cache") else "past_key_values"
        for i in range(20, ids.shape[1]):
            o = model(input_ids=ids[:, i : i + 1], use_cache=True, **{key: c})
            logits.append(o.logits)
    return torch.cat(logits, 1)


def split_experts(sd):
    """Fused expert tensors -> one tensor for each expert, as published qwen/deepseek/glm checkpoints have them."""
    out = {}
    for k, v in sd.items():
        if k.endswith("experts.gate_up_proj"):
            for e in range(v.shape[0]):
                g, u = v[e].chunk(2, 0)
                out[k.replace("gate_up_proj", f"{e}.gate_proj.weight")] = g.contiguous()
                out[k.replace("gate_up_proj", f"{e}.up_proj.weight")] = u.contiguous()
        elif k.endswith("experts.down_proj"):
            for e in range(v.shape[0]):
                out[k.replace("down_proj", f"{e}.down_proj.weight")] = v[e].contiguous()
        else:
            out[k] = v.contiguous()
    return out


def diff(a, b):
    return float((a.double() - b.double()).abs().max())


FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def mxfp4_pack(w):
    """[E, in, out] weights -> ([E, out, in/32, 16] uint8 nibble pairs, [E, out, in/32] uint8 exponents)."""
    w = w.transpose(1, 2).reshape(w.shape[0], w.shape[2], -1, 32)
    exp = torch.floor(torch.log2(w.abs().amax(-1).clamp(min=1e-8))) - 2
    q = w / torch.exp2(exp)[..., None]
    lut = torch.tensor(FP4)
    code = (q.abs()[..., None] - lut).abs().argmin(-1) + 8 * (q < 0)
    blocks = (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8)
    return blocks, (exp + 127).to(torch.uint8)


def fuse_experts(sd):
    """The reverse of split_experts, for checkpoints published with one 3-D tensor for all experts."""
    out, found = {}, {}
    for k, v in sd.items():
        m = re.match(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$", k)
        if m:
            found.setdefault(m[1], {}).setdefault(m[3], {})[int(m[2])] = v
        else:
            out[k] = v
    for p, d in found.items():
        stack = {n: torch.stack([t[i] for i in range(len(t))]) for n, t in d.items()}
        out[p + ".gate_up_proj"] = torch.cat([stack["gate"], stack["up"]], 1)
        out[p + ".down_proj"] = stack["down"]
    return out


class MuseGlimmerText(torch.nn.Module):
    """transformers has no text-only Muse Glimmer with a head; this is its head around its text model."""

    def __init__(self, cfg):
        super().__init__()
        from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerTextModel

        self.config, self.model = cfg, MuseGlimmerTextModel(cfg)
        self.lm_head = torch.nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)

    def forward(self, input_ids, use_cache=False, **kw):
        o = self.model(input_ids=input_ids, use_cache=use_cache, **kw)
        cap = self.config.final_logit_softcapping
        o.logits = cap * torch.tanh(self.lm_head(o.last_hidden_state) * self.config.output_multiplier / cap)
        return o
