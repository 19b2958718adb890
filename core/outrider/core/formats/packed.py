"""Quantised safetensors layouts, seen as the plain weights they stand for. Names decide, the config only fills in details.
Loads no torch; `unpack` reads the parts.

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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.core.base.errors import BrokenFileError

from .config import AGAIN, ConfigReader
from .layout import Layout

METHODS = ("mxfp4", "fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq")
_SMALL = ("F8_E4M3", "F8_E5M2", "I8")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one plain weight is made: the form, its stored parts by role, and the shape that comes out."""

    form: str
    parts: Mapping[str, str]
    shape: Shape
    bits: int = 4
    shifted: bool = True  # GPTQ, first version: zeros are stored minus one
    ordered: bool = False  # GPTQ in order of activation: the inputs of a group are scattered


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


def layout(recipe: Recipe, stored: Mapping[str, tuple[str, Shape]]) -> Layout | None:
    """How the codes of a weight are in memory; None where no groups of inputs share a scale."""
    if recipe.form == "mxfp4":
        experts, inputs, outputs = recipe.shape
        return Layout(experts * outputs, inputs, 4, 32, "table", 4)
    outputs, inputs = recipe.shape
    scales = stored[recipe.parts["scale"]][1]
    if recipe.form == "scaled":
        kind, group = stored[recipe.parts["weight"]][0], side(inputs, scales[1] if len(scales) == 2 else 1)
        if kind == "F8_E5M2" or inputs % group:
            return None
        return Layout(outputs, inputs, 8, group, "scaled" if kind == "I8" else "float8", 4)
    count = scales[1] if recipe.form == "compressed" else scales[0]
    if recipe.ordered or not 0 < count <= inputs or inputs % count or recipe.bits not in (4, 8):
        return None
    return Layout(outputs, inputs, recipe.bits, inputs // count, "affine", 8)


def side(size: int, count: int) -> int:
    """Length of one of `count` blocks along an axis: a power of two, of which the last may be cut."""
    return size if count <= 1 else 1 << (-(-size // count) - 1).bit_length()


def _mxfp4(name: str, stored: Mapping[str, tuple[str, Shape]]) -> tuple[str, Recipe] | None:
    base = name.removesuffix("_blocks")
    if base == name or f"{base}_scales" not in stored:
        return None
    experts, outputs, blocks, half = _axes(name, stored, 4)
    parts = {"blocks": name, "scales": f"{base}_scales"}
    return base, Recipe("mxfp4", parts, (experts, blocks * half * 2, outputs))


def _scaled(name: str, stored: Mapping[str, tuple[str, Shape]]) -> tuple[str, Recipe] | None:
    if stored[name][0] not in _SMALL:
        return None
    for suffix in ("_scale_inv", "_scale"):
        if name + suffix in stored:
            return name, Recipe("scaled", {"weight": name, "scale": name + suffix}, _axes(name, stored, 2))
    return None


def _compressed(
    name: str, stored: Mapping[str, tuple[str, Shape]], config: Mapping[str, Any]
) -> tuple[str, Recipe] | None:
    base = name.removesuffix("_packed")
    if base == name or f"{base}_scale" not in stored:
        return None
    outputs, words = _axes(name, stored, 2)
    parts = {"weight": name, "scale": f"{base}_scale"}
    _axes(parts["scale"], stored, 2)
    if f"{base}_zero_point" in stored:
        parts["zero"] = f"{base}_zero_point"
    groups = _settings(config).table("config_groups")
    bits = _bits(groups.table(next(groups.given_keys())).table("weights"), "num_bits") if not groups.empty() else 4
    return base, Recipe("compressed", parts, (outputs, words * (32 // bits)), bits)


def _grouped(
    name: str, stored: Mapping[str, tuple[str, Shape]], config: Mapping[str, Any]
) -> tuple[str, Recipe] | None:
    base = name.removesuffix(".qweight")
    if base == name or f"{base}.scales" not in stored:
        return None
    settings = _settings(config)
    bits = _bits(settings, settings.first("bits", "w_bit"))
    parts = {"weight": name, "zeros": f"{base}.qzeros", "scale": f"{base}.scales"}
    rows, columns = _axes(name, stored, 2)
    outputs = _axes(f"{base}.scales", stored, 2)[1]
    if columns == outputs:
        if f"{base}.g_idx" in stored:
            parts["groups"] = f"{base}.g_idx"
        shifted = not settings.is_word("checkpoint_format", "gptq_v2")
        ordered = settings.flag("desc_act") and "groups" in parts
        return f"{base}.weight", Recipe("gptq", parts, (outputs, rows * (32 // bits)), bits, shifted, ordered)
    return f"{base}.weight", Recipe("awq", parts, (outputs, rows), bits)


def _settings(config: Mapping[str, Any]) -> ConfigReader:
    return ConfigReader(config, "The quantization_config of this checkpoint")


def _bits(settings: ConfigReader, key: str) -> int:
    """Of a packed value: so many that whole values fill an int32."""
    bits = settings.integer(key, 1, 8, 4)
    if 32 % bits:
        settings.wrong(key, "only 1, 2, 4 and 8 bits are read")
    return bits


def _axes(name: str, stored: Mapping[str, tuple[str, Shape]], count: int) -> Shape:
    """The shape of a part. Raises BrokenFileError if it has another number of axes."""
    shape = stored[name][1]
    if len(shape) != count:
        raise BrokenFileError(f"The quantised tensor {name} has {len(shape)} axes, not {count}.", AGAIN)
    return shape
