"""Reads what the recipes of `packed` name: quantised safetensors layouts as codes in groups.

Letters: `o` outputs, `i` inputs, `E` experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from outrider.core.base.errors import BrokenFileError

from .packed import Recipe, side
from .quantized import Grouped, pack_nibbles

_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)  # where output k of eight is in an int32
_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

Get = Callable[[str], Tensor]


def read(recipe: Recipe, get: Get) -> Grouped | Tensor:
    """The weight as it is kept: quantised [o, i] (experts one below the other), or plain in fp32 where no group form fits.

    Raises BrokenFileError where the parts do not fit each other.
    """
    parts = {role: get(name) for role, name in recipe.parts.items()}
    first = next(iter(recipe.parts.values()))
    try:
        weight = _FORMS[recipe.form](recipe, parts)
    except (RuntimeError, IndexError, ZeroDivisionError) as error:
        raise BrokenFileError(f"The parts of {first} do not fit each other: {error}.") from error
    whole = isinstance(weight, Tensor) or weight.whole
    if not whole or weight.shape.numel() != math.prod(recipe.shape):
        raise BrokenFileError(f"The parts of {first} do not fit each other.")
    return weight


def expand(recipe: Recipe, get: Get) -> Tensor:
    """The plain weight in fp32. Raises BrokenFileError where the parts do not fit each other."""
    made = read(recipe, get)
    weight = made if isinstance(made, Tensor) else made.expand()
    if recipe.form == "mxfp4":
        experts, inputs, outputs = recipe.shape
        return weight.view(experts, outputs, inputs).transpose(1, 2)
    if tuple(weight.shape) != recipe.shape:
        raise BrokenFileError(f"The parts of {next(iter(recipe.parts.values()))} do not fit each other.")
    return weight


def _mxfp4_codes(recipe: Recipe, parts: Mapping[str, Tensor]) -> Grouped:
    """Byte t of a block holds inputs 2 t and 2 t + 1."""
    blocks = parts["blocks"].flatten(0, 1)  # [E o, i / 32, 16]
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(1)  # [E o, i]
    scale = torch.exp2(parts["scales"].flatten(0, 1).float() - 127)
    return Grouped(pack_nibbles(codes, 32), scale, table=torch.tensor([*_FP4, *(-value for value in _FP4)]), bits=4)


def _scaled_codes(recipe: Recipe, parts: Mapping[str, Tensor]) -> Grouped | Tensor:
    weight, scale = parts["weight"], parts["scale"].float()
    outputs, inputs = weight.shape
    if scale.numel() == 1:
        scale = scale.reshape(1, 1)
    elif scale.ndim == 1:
        scale = scale[:, None]
    rows, columns = (side(size, count) for size, count in zip(weight.shape, scale.shape, strict=True))
    scale = scale.repeat_interleave(rows, 0)[:outputs]
    if inputs % columns == 0 and weight.dtype != torch.float8_e5m2:
        return Grouped(weight, scale)
    return weight.float() * scale.repeat_interleave(columns, 1)[:, :inputs]


def _compressed_codes(recipe: Recipe, parts: Mapping[str, Tensor]) -> Grouped:
    codes = _unpack(parts["weight"], recipe.bits, 1)  # [o, i]
    scale = parts["scale"].float()
    if "zero" in parts:
        return _grouped_codes(codes, scale, _unpack(parts["zero"], recipe.bits, 0)[: codes.shape[0]], recipe.bits)
    return _grouped_codes(codes, scale, torch.full_like(scale, 1 << (recipe.bits - 1)), recipe.bits)


def _awq_codes(recipe: Recipe, parts: Mapping[str, Tensor]) -> Grouped:
    codes, zeros = (_unpack(parts[role], 4, 1, _AWQ) for role in ("weight", "zeros"))  # [i, o], [groups, o]
    return _grouped_codes(codes.T, parts["scale"].float().T, zeros.T, 4)


def _gptq_codes(recipe: Recipe, parts: Mapping[str, Tensor]) -> Grouped | Tensor:
    codes = _unpack(parts["weight"], recipe.bits, 0)  # [i, o]
    zeros = _unpack(parts["zeros"], recipe.bits, 1) + int(recipe.shifted)  # [groups, o]
    scales = parts["scale"].float()
    order = torch.arange(codes.shape[0]) // (codes.shape[0] // scales.shape[0])
    group = parts["groups"].long() if "groups" in parts else order
    if torch.equal(group, order):
        return _grouped_codes(codes.T, scales.T, zeros.T, recipe.bits)
    return ((codes - zeros[group]).float() * scales[group]).T.contiguous()  # groups are scattered: activation order


def _grouped_codes(codes: Tensor, scale: Tensor, zeros: Tensor, bits: int) -> Grouped:
    """From codes [o, i], scales [o, i / g] and the codes that stand for zero, of the scales' shape."""
    if zeros.shape != scale.shape:
        raise IndexError(f"{tuple(zeros.shape)} zeros, {tuple(scale.shape)} scales")
    codes = codes.to(torch.uint8).contiguous()
    packed = pack_nibbles(codes, codes.shape[1] // scale.shape[1]) if bits == 4 else codes
    return Grouped(packed, scale.contiguous(), (-zeros * scale).contiguous(), bits=bits)


def _unpack(words: Tensor, bits: int, axis: int, places: tuple[int, ...] | None = None) -> Tensor:
    """Unsigned values of int32 words along `axis`, lowest bits first or in the order `places`."""
    count = 32 // bits
    shifts = torch.tensor(places or range(count), dtype=torch.int32) * bits
    shape = [1, 1, 1]
    shape[axis + 1] = count
    values = (words.unsqueeze(axis + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return values.flatten(axis, axis + 1)


_FORMS: dict[str, Callable[[Recipe, Mapping[str, Tensor]], Grouped | Tensor]] = {
    "mxfp4": _mxfp4_codes,
    "scaled": _scaled_codes,
    "compressed": _compressed_codes,
    "awq": _awq_codes,
    "gptq": _gptq_codes,
}
