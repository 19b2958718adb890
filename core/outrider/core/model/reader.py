"""Reads tensors of one checkpoint: shapes are checked, matrices become layers in the form that the device wants.

Letters: `d` width, `V` vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.formats.quantized import Grouped, concat
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.families.spec import TargetSpec
from outrider.core.model.kernels.forms import WeightFormat, linear, rounded
from outrider.core.model.kernels.linear import Linear, Stacked, Table

if TYPE_CHECKING:
    from outrider.core.formats.checkpoint import Checkpoint

PREFIXES = ("model.language_model.", "language_model.model.", "backbone.", "model.")


class Reader:
    """Checked access to the tensors of one checkpoint; counts the bytes that stay in memory, and the parameters read."""

    def __init__(self, checkpoint: Checkpoint, spec: TargetSpec, form: WeightFormat) -> None:
        self.spec, self.names = spec, spec.names
        self._checkpoint, self.form = checkpoint, form
        self.origin = checkpoint.path.name
        self._dtype, self._device = form.dtype, form.device
        self._exact = torch.float64 if form.dtype == torch.float64 else torch.float32
        self.names_there = frozenset(checkpoint.names())
        self.unread = set(self.names_there)
        self.prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in self.names_there)), "model.")
        self.nbytes = self.parameters = 0

    # ------------------------------------------------------------------ tensors

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of this name below the model's prefix."""
        return self.prefix + name in self.names_there

    def adds_nothing(self, name: str) -> bool:
        """Whether a tensor is a bias of zeros, which some quantisers store for every matrix.

        Of an outline, which has no numbers, it may be.
        """
        if not name.endswith(".bias") or len(self._checkpoint.shape(name)) != 1:
            return False
        tensor = self._checkpoint.load(name)
        return tensor.is_meta or not bool(tensor.any())

    def tensor(self, name: str, *shape: int, exact: bool = False) -> Tensor:
        """A plain tensor of that shape, to be kept. Raises ModelError if it is missing or has another."""
        tensor = self._read(self.prefix + name, shape, self._exact if exact else self._dtype).to(self._device)
        self.nbytes += tensor.nbytes
        return tensor

    def matrix(self, name: str, rows: int, columns: int, *, exact: bool = False) -> Tensor | Grouped:
        """A projection [rows, columns] on its way into `layer`: quantised as stored or as asked, else plain.

        `exact`: plain in any case. Raises ModelError if it is missing or has another shape.
        """
        return self.stored(self.prefix + name, rows, columns, self.form.quantize if not exact else None, exact)

    def stored(self, name: str, rows: int, columns: int, bits: int | None, exact: bool = False) -> Tensor | Grouped:
        """`matrix` by full name; `bits` is what a plain matrix, or one stored with more, is rounded to."""
        grouped = None if exact else self._grouped(name, rows, columns, bits)
        if grouped is not None:
            return grouped
        plain = self._read(name, (rows, columns), self._dtype if bits is None else torch.float32)
        return rounded(plain, bits, self._dtype)

    def turned(self, name: str, experts: int, rows: int, columns: int) -> list[Tensor | Grouped]:
        """Matrices [rows, columns] of stacked experts that are stored as [E, columns, rows] where they are plain."""
        bits = self.form.quantize
        grouped = self._grouped(self.prefix + name, experts * rows, columns, bits)
        if grouped is not None:
            return list(grouped.split([rows] * experts))
        plain = self._read(self.prefix + name, (experts * columns, rows), self._dtype)
        return [rounded(part.T, bits, self._dtype) for part in plain.split([columns] * experts)]

    def _grouped(self, name: str, rows: int, columns: int, bits: int | None) -> Grouped | None:
        """A matrix that stays as it is stored."""
        layout = self._checkpoint.layout(name) if name in self.names_there else None
        if layout is None or not self.form.keeps(layout) or layout.bits > (bits or 8):
            return None
        self._check(name, (layout.rows, layout.columns), (rows, columns))
        found = self._checkpoint.grouped(name)
        if found is not None:
            self._count(name, rows * columns)
        return found

    def _count(self, name: str, parameters: int) -> None:
        """Note that a tensor is read."""
        self.unread.discard(name)
        self.parameters += parameters

    def _read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if name not in self.names_there:
            raise ModelError(f"{self.origin} has no tensor {name}.", "Download the model again, whole.")
        tensor = self._checkpoint.load(name, dtype)
        if tensor.ndim > len(shape):
            tensor = tensor.flatten(0, tensor.ndim - len(shape))
        self._check(name, tuple(tensor.shape), shape)
        self._count(name, tensor.numel())
        return tensor

    def _check(self, name: str, found: tuple[int, ...], told: tuple[int, ...]) -> None:
        if found != told:
            has, wants = ("x".join(map(str, some)) for some in (found, told))
            raise ModelError(
                f"{self.origin}: {name} is {has}, the config says {wants}.",
                "The config belongs to another model; download both again.",
            )

    def own(self, weight: Tensor) -> Linear:
        """The layer for a plain matrix from elsewhere, kept like those of this checkpoint."""
        return self.layer(rounded(weight, self.form.quantize, self._dtype))

    def layer(self, weight: Tensor | Grouped, bias: Tensor | None = None) -> Linear:
        """The layer for a matrix."""
        layer = linear(weight, bias, self._dtype, self._device)
        self.nbytes += layer.nbytes - (bias.nbytes if bias is not None else 0)  # biases count as they are read
        return layer

    def fused(self, parts: list[Tensor | Grouped], biases: list[Tensor]) -> Linear:
        """One layer over all rows; several behind one face where the parts are stored in different ways."""
        bias = torch.cat(biases) if biases else None
        plain = [part for part in parts if isinstance(part, Tensor)]
        if len(plain) == len(parts):
            return self.layer(torch.cat(plain), bias)
        packed = [part for part in parts if isinstance(part, Grouped)]
        whole = concat(packed) if len(packed) == len(parts) else None
        if whole is not None:
            return self.layer(whole, bias)
        shifts = [*biases, *[None] * (len(parts) - len(biases))]
        return Stacked([self.layer(part, shift) for part, shift in zip(parts, shifts, strict=True)])

    def linear(self, name: str, rows: int, columns: int, bias: bool = False, *, exact: bool = False) -> Linear:
        """One stored projection; `exact` ones are never quantised."""
        shift = self.tensor(f"{name}.bias", rows) if bias else None
        return self.layer(self.matrix(f"{name}.weight", rows, columns, exact=exact), shift)

    def norm(self, name: str, width: int | None = None, eps: float | None = None, *, final: bool = False) -> Norm:
        """A norm over the model's width, or another."""
        plus = self.spec.norm_plus_one
        if final and self.spec.final_plus_one is not None:
            plus = self.spec.final_plus_one
        weight = self.tensor(f"{name}.weight", width or self.spec.width, exact=plus)
        if plus:
            weight = (weight + 1).to(self._dtype)
        return Norm(width or self.spec.width, weight, eps or self.spec.eps, centred=self.spec.centred)

    def plain_norm(self, width: int | None = None) -> Norm:
        """A norm without weight."""
        return Norm(width or self.spec.width, None, self.spec.eps)

    def table(self, name: str, width: int) -> Table:
        """A token table [V, width]. A quantised one stays so: of each pass only a few rows are needed."""
        full = self.prefix + name
        shape = self.spec.vocab, width
        layout = self._checkpoint.layout(full) if full in self.names_there else None
        weight: Tensor | Grouped | None = None
        if layout is not None and self._dtype != torch.float64 and self.form.keep != "none":
            self._check(full, (layout.rows, layout.columns), shape)
            weight = self._checkpoint.grouped(full)
            if weight is not None:
                self._count(full, math.prod(shape))
        if weight is None:
            weight = self._read(full, shape, self._dtype)
        weight = weight.to(self._device)
        self.nbytes += weight.nbytes
        return Table(weight, self._dtype)
