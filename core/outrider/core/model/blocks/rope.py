"""Rotary position embedding: inverse frequencies of every published scaling, and the table the mixers read.

Letters: `r` rotated dims of a head, `h` head size. Sources: RoFormer (arXiv 2104.09864), YaRN (arXiv 2309.00071), LongRoPE
(arXiv 2402.13753), and the published configs for the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.model.families.spec import RopeSpec


def _default(rope: RopeSpec, theta: float | None = None) -> Tensor:
    exponents = torch.arange(0, rope.width, 2, dtype=torch.float32) / rope.width  # [r/2]
    return 1.0 / (theta or rope.theta) ** exponents


def _llama3(base: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    original, factor = scaling["original_max_position_embeddings"], scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    wavelength = 2 * math.pi / base
    blend = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * base / factor + blend * base


def _yarn(rope: RopeSpec, base: Tensor, context: int) -> tuple[Tensor, float]:
    scaling, width = rope.settings, rope.width
    original = scaling.get("original_max_position_embeddings") or context
    factor = scaling.get("factor") or context / original

    def corner(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = corner(scaling.get("beta_fast") or 32), corner(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(width // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)  # [r/2]
    return base / factor * ramp + base * (1 - ramp), _yarn_attention(scaling, factor)


def _yarn_attention(scaling: dict[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def scale(m: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0

    both = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return scale(both[0]) / scale(both[1]) if both[0] and both[1] else scale(1.0)


def _longrope(rope: RopeSpec, made_for: int, context: int) -> tuple[Tensor, float]:
    """One of two lists of divisors, chosen once by the context the session is opened with."""
    scaling = rope.settings
    original = scaling.get("original_max_position_embeddings") or made_for
    factor = scaling.get("factor") or made_for / original
    name = "long_factor" if context > original else "short_factor"
    attention = scaling.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    exponents = torch.arange(0, rope.width, 2, dtype=torch.float32) / rope.width
    return 1.0 / (torch.tensor(scaling[name], dtype=torch.float32) * rope.theta**exponents), attention


def _proportional(rope: RopeSpec) -> Tensor:
    """Gemma 4: a share of the pairs turns, with exponents over the whole head; the rest stand still."""
    scaling = rope.settings
    turning = int(scaling.get("partial_rotary_factor", 1.0) * rope.width / 2)
    exponents = torch.arange(0, 2 * turning, 2, dtype=torch.float32) / rope.width
    turned = 1.0 / rope.theta**exponents / scaling.get("factor", 1.0)
    return torch.cat((turned, torch.zeros(rope.width // 2 - turning)))


def inverse_frequencies(rope: RopeSpec, made_for: int, context: int) -> tuple[Tensor, float]:
    """`[r/2]` fp32 and the factor of cos and sin.

    `made_for`: positions in the config; `context`: tokens the session is opened with, which fixes the table of the
    dynamic and longrope kinds for good. Raises ModelError for an unknown kind.
    """
    base, scaling = _default(rope), rope.settings
    attention = 1.0
    if rope.divisors is not None:
        base = base / torch.tensor(rope.divisors, dtype=torch.float32)
    elif rope.kind == "linear":
        base = base / scaling["factor"]
    elif rope.kind == "dynamic":
        length = max(context, made_for)
        grown = scaling["factor"] * length / made_for - (scaling["factor"] - 1)
        base = _default(rope, rope.theta * grown ** (rope.width / (rope.width - 2)))
    elif rope.kind == "llama3":
        base = _llama3(base, scaling)
    elif rope.kind == "yarn":
        base, attention = _yarn(rope, base, made_for)
    elif rope.kind == "longrope":
        base, attention = _longrope(rope, made_for, context)
    elif rope.kind == "proportional":
        base = _proportional(rope)
    elif rope.kind != "default":
        raise ModelError(f"Rope scaling {rope.kind!r} is not known.", "Take another checkpoint or open an issue.")
    return base, attention


def table(
    rope: RopeSpec, head_dim: int, made_for: int, rows: int, dtype: torch.dtype, context: int
) -> tuple[Tensor, Tensor]:
    """cos and *signed* sin, each `[rows, h]` in `dtype`: rotating x is `x * cos + roll(x, h / 2) * sin`.

    Dims that do not turn have cos 1 and sin 0; `order` puts them where this table expects them. Raises ModelError for a
    scaling that is not known, or whose settings are not there or of the wrong kind.
    """
    try:
        inverse, attention = inverse_frequencies(rope, made_for, context)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise ModelError(
            f"The config's rope scaling {rope.kind!r} cannot be used: a setting is missing or of the wrong kind.",
            "Download the config again, whole.",
        ) from error
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    angles = torch.arange(rows, dtype=exact)[:, None] * inverse.to(exact)  # [rows, r/2]
    still = (head_dim - rope.width) // 2
    cos = torch.cat((angles.cos() * attention, torch.ones(rows, still, dtype=exact)), -1)
    sin = torch.cat((angles.sin() * attention, torch.zeros(rows, still, dtype=exact)), -1)
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)


def order(rope: RopeSpec, head_dim: int) -> Tensor | None:
    """Which stored dim of a head goes where, [h], so that pairs are h / 2 apart; None if they are already.

    Scores do not change when queries and keys are reordered alike.
    """
    r = rope.width
    if r == head_dim and not rope.interleaved:
        return None
    turning = torch.arange(r)
    first, second = (turning[0::2], turning[1::2]) if rope.interleaved else turning.chunk(2)
    still = torch.arange(r, head_dim)
    half = still.shape[0] // 2
    return torch.cat((first, still[:half], second, still[half:]))


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn `x` [S, H, h] in place; cos and signed sin are [S, 1, h]."""
    torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin, out=x)
