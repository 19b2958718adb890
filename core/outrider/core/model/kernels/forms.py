"""In what form a matrix is kept: which linear layer multiplies by it on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outrider.core.formats.layout import Layout
from outrider.core.formats.quantized import GROUP, Grouped, quantise

from .linear import Expanding, Int4, Int8, Linear, Prepacked, int4_block, triton_is_here
from .packed_linear import Packed, Plain


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """In what form a model's matrices are kept.

    `quantize`: 4 or 8 bits that matrices with more are rounded to. `keep`: which quantised ones stay so, those that the device
    multiplies by fast as they are, all (memory is short), or none.
    """

    dtype: torch.dtype
    device: torch.device
    quantize: int | None = None
    keep: Literal["fast", "all", "none"] = "fast"

    def keeps(self, weight: Layout) -> bool:
        """Whether a matrix stays quantised."""
        if self.keep != "fast" or self.dtype == torch.float64:
            return self.keep == "all" and self.dtype != torch.float64
        if self.device.type == "cuda":
            return triton_is_here()
        return _compiled(weight, self.dtype) or Int4.takes(weight, self.dtype) or Int8.takes(weight, self.dtype)

    def nbytes(self, weight: Layout) -> int:
        """Bytes that a matrix takes as it is kept."""
        if self.device.type == "cpu" and _compiled(weight, self.dtype):
            return Packed.bytes_of(weight, self.dtype)
        if self.device.type == "cpu" and Int4.takes(weight, self.dtype):
            rows = -(-weight.rows // int4_block()) * int4_block()
            return rows * (weight.columns // 2 + weight.columns // weight.group * 4)
        if self.device.type == "cpu" and Int8.takes(weight, self.dtype):
            return weight.rows * (weight.columns + 2)
        return weight.nbytes


def packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether plain weights of this kind are kept in the blocked layout.

    Prepacked bf16 is 1.3 to 1.5 times as fast as the plain call at every row count on CPUs with matrix units, and its cost
    hardly grows with rows, which is what makes drafting pay there.
    """
    return device.type == "cpu" and dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()


def linear(weight: Tensor | Grouped, bias: Tensor | None, dtype: torch.dtype, device: torch.device) -> Linear:
    """The layer for a matrix [o, i], in the best form that the device has for it."""
    if isinstance(weight, Tensor):
        weight = weight.to(device, dtype).contiguous()
    if device.type == "cpu":
        compiled = _in_c(weight, bias, dtype)
        if compiled is not None:
            return compiled
    if isinstance(weight, Tensor):
        return (Prepacked if packs(dtype, device) else Linear)(weight, bias)
    if device.type == "cpu":
        for form in (Int4, Int8):
            if form.takes(weight.layout, dtype):
                return form(weight, bias)
    return Expanding(weight, bias, device)


def rounded(weight: Tensor, bits: int | None, dtype: torch.dtype) -> Tensor | Grouped:
    """A plain matrix [o, i] in so many bits; in `dtype` where they are None or its rows are no whole groups."""
    if bits is None or weight.shape[1] % GROUP:
        return weight.to(dtype)
    return quantise(weight.float(), bits)


def kept(weight: Tensor, bias: Tensor | None, form: WeightFormat) -> Linear:
    """The layer for a plain matrix [o, i], in the form that is asked for."""
    return linear(rounded(weight, form.quantize, form.dtype), bias, form.dtype, form.device)


def _in_c(weight: Tensor | Grouped, bias: Tensor | None, dtype: torch.dtype) -> Linear | None:
    """The layer that a CPU has in C for a matrix, if it has one."""
    if isinstance(weight, Tensor):
        return Plain(weight, bias) if Plain.multiplies(weight, dtype) else None
    return Packed(weight, bias, dtype) if Packed.takes(weight.layout, dtype) else None


def _compiled(weight: Layout, dtype: torch.dtype) -> bool:
    return Packed.takes(weight, dtype)
