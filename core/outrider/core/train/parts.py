"""What small trained networks are built of: norms, rotation, attention over texts that are one after another.

Modules are named as published containers name their tensors, so that `state_dict` is nearly the file.

Letters: `N` rows, `d` width, `H` heads, `K` key/value heads, `h` head size.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider.core.model.blocks.rope import inverse_frequencies
from outrider.core.model.families.spec import Activation, AttentionSpec, RopeSpec

Turn = tuple[Tensor, Tensor] | None  # cos and sin of rows, as `turns` gives them


class Norm(nn.Module):
    """RMS norm with a weight, in fp32; `plus_one`: the weight is kept minus one."""

    def __init__(self, width: int, eps: float, *, plus_one: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))
        self.eps, self.plus_one = eps, plus_one

    @property
    def factor(self) -> Tensor:
        """What it multiplies by, [d]."""
        return self.weight + 1 if self.plus_one else self.weight

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        x = wide(x)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.factor


class Mlp(nn.Module):
    """Gated, with SiLU or GELU."""

    def __init__(self, width: int, inner: int, activation: Activation = "silu", *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        gate = self.gate_proj(x)
        gate = F.silu(gate) if self.activation == "silu" else F.gelu(gate, approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))


class Projections(nn.Module):
    """The four matrices of grouped-query attention; what is attended to is the caller's."""

    def __init__(self, spec: AttentionSpec, width: int, columns: int, eps: float, *, plus_one: bool = False) -> None:
        super().__init__()
        self.spec = spec
        h = spec.head_dim
        self.q_proj = nn.Linear(columns, spec.heads * h, bias=spec.bias)
        self.k_proj = nn.Linear(columns, spec.kv_heads * h, bias=spec.bias)
        self.v_proj = nn.Linear(columns, spec.kv_heads * h, bias=spec.bias)
        self.o_proj = nn.Linear(spec.heads * h, width, bias=spec.output_bias)
        self.q_norm = Norm(h, eps, plus_one=plus_one) if spec.qk_norm else None
        self.k_norm = Norm(h, eps, plus_one=plus_one) if spec.qk_norm else None

    def queries(self, x: Tensor, turn: Turn) -> Tensor:
        """[N, columns] -> [N, H, h], rotated by `turn`."""
        q = self.q_proj(x).unflatten(-1, (self.spec.heads, -1))
        return rotated(q if self.q_norm is None else self.q_norm(q).to(q.dtype), turn)

    def keys(self, x: Tensor, turn: Turn) -> Tensor:
        """[N, columns] -> [N, K, h], rotated by `turn`."""
        k = self.k_proj(x).unflatten(-1, (self.spec.kv_heads, -1))
        return rotated(k if self.k_norm is None else self.k_norm(k).to(k.dtype), turn)

    def values(self, x: Tensor) -> Tensor:
        """[N, columns] -> [N, K, h]."""
        return self.v_proj(x).unflatten(-1, (self.spec.kv_heads, -1))

    def spread(self, x: Tensor) -> Tensor:
        """Keys or values [N, K, h] for every head: [N, H, h]."""
        return x.repeat_interleave(self.spec.heads // self.spec.kv_heads, 1)


def turns(rope: RopeSpec | None, positions: Tensor, made_for: int) -> Turn:
    """cos and sin [N, 1, h] of positions [N]; None without rotation."""
    if rope is None:
        return None
    frequencies, factor = inverse_frequencies(rope, made_for, made_for)
    angles = positions[:, None].float() * frequencies.to(positions.device)  # [N, h / 2]
    angles = torch.cat((angles, angles), -1)[:, None]
    return angles.cos() * factor, angles.sin() * factor


def rotated(x: Tensor, turn: Turn) -> Tensor:
    """[N, heads, h] turned by `turn`, halves paired."""
    if turn is None:
        return x
    cos, sin = turn
    low, high = wide(x).chunk(2, -1)
    return (wide(x) * cos + torch.cat((-high, low), -1) * sin).to(x.dtype)


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Tensor | None = None) -> Tensor:
    """Queries [R, H, h] over keys and values [C, H, h]: [R, H, h]. `seen` [R, C]; None: row r sees the rows up to its own."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    output = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale)
    return output[0].transpose(0, 1)


def soft_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Cross-entropy of rows [n, V] against laws [n, V], each row's own: [n]."""
    return -(wanted * F.log_softmax(wide(logits), -1)).sum(-1)


def wide(x: Tensor) -> Tensor:
    """In fp32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def start(module: nn.Module, luck: torch.Generator, deep: int = 1) -> None:
    """Fresh weights from `luck`: normal with 1 / sqrt(columns), what writes into the residual smaller the deeper it is."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear):
            std = 1 / math.sqrt(part.in_features)
            if name.endswith(("o_proj", "down_proj")):
                std /= math.sqrt(2 * deep)
            with torch.no_grad():
                part.weight.normal_(0, std, generator=luck)
                if part.bias is not None:
                    part.bias.zero_()
