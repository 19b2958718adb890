"""Quantised safetensors layouts, seen as the plain weights they stand for. Names decide, the config only fills in details.

| layout | stored beside or instead of `X.weight` [o, i] |
|---|---|
| FP8, int8 | `X.weight` with `X.weight_scale_inv` (blocks) or `X.weight_scale` (rows or all) |
| compressed-tensors | `X.weight_packed` int32 [o, i / n], `X.weight_scale` [o, groups], perhaps `X.weight_zero_point` |
| AWQ | `X.qweight` int32 [i, o / 8], `X.qzeros`, `X.scales` [groups, o] |
| GPTQ | `X.qweight` int32 [i / n, o], `X.qzeros`, `X.scales` [groups, o], perhaps `X.g_idx` [i] |
| MXFP4 | `X_blocks` uint8 [E, o, i / 32, 16], `X_scales` uint8 [E, o, i / 32]; stands for `X` [E, i, o] |

Letters: `o` outputs, `i` inputs, `n` values in an int32, `E` experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.core.errors import BrokenFileError

if TYPE_CHECKING:
    from torch import Tensor

METHODS = ("mxfp4", "fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq")
_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # where output k of eight lies in an int32
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_SMALL = ("F8_E4M3", "F8_E5M2", "I8")

Shape = tuple[int, ...]
Get = Callable[[str], "Tensor"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one plain weight is made: the layout, its stored parts by role, and the shape that comes out."""

    layout: str
    parts: Mapping[str, str]
    shape: Shape
    bits: int = 4
    shifted: bool = True  # GPTQ, first version: zeros are stored minus one


def recipes(stored: Mapping[str, tuple[str, Shape]], config: Mapping[str, Any]) -> tuple[dict[str, Recipe], set[str]]:
    """Recipes by the name they stand for, and all stored names that are only parts. `stored`: kind and shape by name."""
    made: dict[str, Recipe] = {}
    hidden: set[str] = set()
    for name in stored:
        recipe = (
            _mxfp4(name, stored)
            or _scaled(name, stored)
            or _compressed(name, stored, config)
            or _grouped(name, stored, config)
        )
        if recipe is not None:
            target, found = recipe
            made[target] = found
            hidden.update(found.parts.values())
    hidden.update(name for name in stored if name.endswith((".input_scale", ".k_scale", ".v_scale", ".weight_shape")))
    return made, hidden - set(made)


def _mxfp4(name: str, stored: Mapping[str, tuple[str, Shape]]) -> tuple[str, Recipe] | None:
    base = name.removesuffix("_blocks")
    if base == name or f"{base}_scales" not in stored:
        return None
    experts, outputs, blocks, half = stored[name][1]
    parts = {"blocks": name, "scales": f"{base}_scales"}
    return base, Recipe("mxfp4", parts, (experts, blocks * half * 2, outputs))


def _scaled(name: str, stored: Mapping[str, tuple[str, Shape]]) -> tuple[str, Recipe] | None:
    if stored[name][0] not in _SMALL:
        return None
    for suffix in ("_scale_inv", "_scale"):
        if name + suffix in stored:
            return name, Recipe("scaled", {"weight": name, "scale": name + suffix}, stored[name][1])
    return None


def _compressed(
    name: str, stored: Mapping[str, tuple[str, Shape]], config: Mapping[str, Any]
) -> tuple[str, Recipe] | None:
    base = name.removesuffix("_packed")
    if base == name or f"{base}_scale" not in stored:
        return None
    outputs, words = stored[name][1]
    parts = {"weight": name, "scale": f"{base}_scale"}
    if f"{base}_zero_point" in stored:
        parts["zero"] = f"{base}_zero_point"
    groups = config.get("config_groups") or {}
    told = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
    bits = int(told[0].get("num_bits", 4)) if told else 4
    return base, Recipe("compressed", parts, (outputs, words * (32 // bits)), bits)


def _grouped(
    name: str, stored: Mapping[str, tuple[str, Shape]], config: Mapping[str, Any]
) -> tuple[str, Recipe] | None:
    base = name.removesuffix(".qweight")
    if base == name or f"{base}.scales" not in stored:
        return None
    bits = int(config.get("bits", config.get("w_bit", 4)))
    parts = {"weight": name, "zeros": f"{base}.qzeros", "scales": f"{base}.scales"}
    rows, columns = stored[name][1]
    outputs = stored[f"{base}.scales"][1][1]
    if columns == outputs:
        if f"{base}.g_idx" in stored:
            parts["groups"] = f"{base}.g_idx"
        shifted = config.get("checkpoint_format") != "gptq_v2"
        return f"{base}.weight", Recipe("gptq", parts, (outputs, rows * (32 // bits)), bits, shifted)
    return f"{base}.weight", Recipe("awq", parts, (outputs, rows), bits)


def expand(recipe: Recipe, get: Get) -> Tensor:
    """The plain weight in fp32. Raises BrokenFileError where the parts do not fit each other."""
    parts = {role: get(name) for role, name in recipe.parts.items()}
    try:
        weight = _LAYOUTS[recipe.layout](recipe, parts)
    except (RuntimeError, IndexError) as error:
        raise BrokenFileError(
            f"The parts of {next(iter(recipe.parts.values()))} do not fit each other: {error}."
        ) from error
    if tuple(weight.shape) != recipe.shape:
        raise BrokenFileError(f"The parts of {next(iter(recipe.parts.values()))} do not fit each other.")
    return weight


def _expand_mxfp4(recipe: Recipe, parts: Mapping[str, Tensor]) -> Tensor:
    import torch

    values = torch.tensor([*_FP4, *(-value for value in _FP4)])
    blocks = parts["blocks"].long()
    halves = torch.stack((values[blocks & 15], values[blocks >> 4]), -1).flatten(-2)  # [E, o, i / 32, 32]
    power = torch.exp2(parts["scales"].float() - 127)
    return (halves * power[..., None]).flatten(-2).transpose(1, 2)


def _expand_scaled(recipe: Recipe, parts: Mapping[str, Tensor]) -> Tensor:
    weight, scale = parts["weight"].float(), parts["scale"].float()
    if scale.numel() == 1:
        return weight * scale.reshape(())
    if scale.ndim == 1:
        scale = scale[:, None]
    rows, columns = (-(-size // count) for size, count in zip(weight.shape, scale.shape, strict=True))
    rows, columns = (_block(size) if size > 1 else 1 for size in (rows, columns))
    scale = scale.repeat_interleave(rows, 0)[: weight.shape[0]]
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(columns, 1)[:, : weight.shape[1]]
    return weight * scale


def _block(size: int) -> int:
    """The power of two that a block's side was before the matrix ended inside it."""
    return 1 << (size - 1).bit_length()


def _expand_compressed(recipe: Recipe, parts: Mapping[str, Tensor]) -> Tensor:
    codes = _unpack(parts["weight"], recipe.bits, 1)  # [o, i]
    scale = parts["scale"].float()
    each = codes.shape[1] // scale.shape[1]
    middle: Any = 1 << (recipe.bits - 1)
    if "zero" in parts:
        middle = _unpack(parts["zero"], recipe.bits, 0)[: codes.shape[0]].repeat_interleave(each, 1)
    return (codes - middle).float() * scale.repeat_interleave(each, 1)


def _expand_awq(recipe: Recipe, parts: Mapping[str, Tensor]) -> Tensor:
    codes, zeros = (_unpack(parts[role], 4, 1, _AWQ) for role in ("weight", "zeros"))  # [i, o], [groups, o]
    scales = parts["scales"].float()
    each = codes.shape[0] // scales.shape[0]
    weight = (codes - zeros.repeat_interleave(each, 0)).float() * scales.repeat_interleave(each, 0)
    return weight.T.contiguous()


def _expand_gptq(recipe: Recipe, parts: Mapping[str, Tensor]) -> Tensor:
    import torch

    codes = _unpack(parts["weight"], recipe.bits, 0)  # [i, o]
    zeros = _unpack(parts["zeros"], recipe.bits, 1) + int(recipe.shifted)  # [groups, o]
    scales = parts["scales"].float()
    inputs = codes.shape[0]
    group = parts["groups"].long() if "groups" in parts else torch.arange(inputs) // (inputs // scales.shape[0])
    return ((codes - zeros[group]).float() * scales[group]).T.contiguous()


def _unpack(words: Tensor, bits: int, axis: int, places: tuple[int, ...] | None = None) -> Tensor:
    """Unsigned values of int32 words along `axis`, lowest bits first or in the order `places`."""
    import torch

    count = 32 // bits
    shifts = torch.tensor(places or range(count), dtype=torch.int32) * bits
    shape = [1, 1, 1]
    shape[axis + 1] = count
    values = (words.unsqueeze(axis + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return values.flatten(axis, axis + 1)


_LAYOUTS: dict[str, Callable[[Recipe, Mapping[str, Tensor]], Tensor]] = {
    "mxfp4": _expand_mxfp4,
    "scaled": _expand_scaled,
    "compressed": _expand_compressed,
    "awq": _expand_awq,
    "gptq": _expand_gptq,
}
