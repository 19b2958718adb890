"""Linear layers: plain, in the CPU library's own blocked layout, or over weights that stay quantised in memory.

A quantised matrix is expanded inside the product: on a CPU in C (`packed_linear`), or by torch's 4- and 8-bit kernels where
C cannot be built; by a Triton kernel on CUDA; and by plain torch steps for many rows, where expanding once is cheaper than
doing so for each row, or where no kernel fits.
All passes that decode (up to `MAX_DECODE_ROWS` rows) take one path, so that drafted and plain tokens are computed alike.

Letters: `S` rows, `o` outputs, `i` inputs, `g` codes in a group.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.formats.layout import Layout
from outrider.core.formats.quantized import Grouped

MAX_DECODE_ROWS = 64  # rows of the widest pass that decodes
KEPT = 4096  # expanded rows of a table that are kept
_FEW_INT4 = 192  # up to here the 4-bit kernel beats expanding
_GROUPS = (32, 64, 128, 256)  # what the CPU's 4-bit kernel takes
_SLICE = 1 << 20  # weights worked on at a time
_SUMS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)  # torch gives sums of 16-bit products on CUDA
_WIDE = 1 << 22  # the same where a pass is wide: fewer, larger steps


def evened(x: Tensor) -> Tensor:
    """`x` [S, i] as torch should multiply it: on a CPU a wide pass of 16-bit numbers gets rows of zeros up to a multiple of FEW.

    oneDNN keeps some megabytes for every number of rows that it has met, so memory would grow with every new length of prompt.
    """
    more = missing(x.shape[0], x)
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, more)) if more else x


def missing(rows: int, like: Tensor) -> int:
    """How many rows `evened` adds to so many; `like` has their dtype and is on their device."""
    return -rows % MAX_DECODE_ROWS if rows > MAX_DECODE_ROWS and like.device.type == "cpu" and like.itemsize == 2 else 0


class Linear:
    """`y = x W^T + b` for x `[S, i]`, W `[o, i]`; immutable after construction."""

    __slots__ = ("bias", "features", "nbytes", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._set(weight.shape, bias, weight)
        self.weight = weight

    def _set(self, features: torch.Size, bias: Tensor | None, *held: Tensor | Grouped) -> None:
        self.features, self.bias = features, bias
        self.nbytes = sum(part.nbytes for part in (bias, *held) if part is not None)

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= MAX_DECODE_ROWS:
            return F.linear(x, self.weight, self.bias)
        return F.linear(evened(x), self.weight, self.bias)[: x.shape[0]]

    def exact(self, x: Tensor) -> Tensor:
        """The same with sums that are not rounded to 16 bits, where the device can do that as fast: equal logits are rarer so."""
        if x.is_cuda and x.dtype.itemsize == 2 and self.bias is None and _SUMS:
            return torch.mm(x, self.weight.t(), out_dtype=torch.float32)
        return self(x)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + self(x)`, in one kernel where there is one."""
        if x.is_cuda and self.bias is None:
            return torch.addmm(residual, x, self.weight.t())
        return residual + self(x)


class Prepacked(Linear):
    """Plain bf16 weights in oneDNN's layout."""

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._set(weight.shape, bias, weight)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, x: Tensor) -> Tensor:
        wide = x if x.shape[0] <= MAX_DECODE_ROWS else evened(x)
        y = torch.ops.mkldnn._linear_pointwise(wide, self.weight, self.bias, "none", [], "")
        return y if wide is x else y[: x.shape[0]]

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + self(x)` in one kernel."""
        wide = evened(x)
        y = torch.ops.mkldnn._linear_pointwise.binary(wide, evened(residual), self.weight, self.bias, "add")
        return y if wide is x else y[: x.shape[0]]


class Int4(Linear):
    """4-bit codes for torch's CPU kernel: rows in blocks, a bf16 scale and zero (the value of code 8) for each group."""

    __slots__ = ("_block", "_group", "_scales")

    def __init__(self, weight: Grouped, bias: Tensor | None = None) -> None:
        rows, columns = weight.shape
        self._block, self._group = int4_block(), weight.group
        padded = -(-rows // self._block) * self._block
        self.weight = torch.empty(padded, columns // 2, dtype=torch.uint8)
        step = max(1, _SLICE // columns // self._block) * self._block
        for start in range(0, padded, step):
            codes = weight.values(slice(start, start + step)).int()
            missing = min(step, padded - start) - codes.shape[0]
            self.weight[start : start + step] = _int4_pack(F.pad(codes, (0, 0, 0, missing)) if missing else codes)
        scale = weight.scale.float()
        zero = 8 * scale if weight.low is None else weight.low.float() + 8 * scale
        pairs = torch.stack((scale, zero), -1).bfloat16()  # [o, i / g, 2]
        self._scales = F.pad(pairs.transpose(0, 1), (0, 0, 0, padded - rows)).contiguous()
        self._set(weight.shape, bias, self.weight, self._scales)

    @staticmethod
    def takes(weight: Layout, dtype: torch.dtype) -> bool:
        """Whether the kernel is there and reads this matrix."""
        fits = weight.bits == 4 and weight.coding == "affine" and weight.group in _GROUPS and weight.columns % 64 == 0
        return fits and dtype == torch.bfloat16 and int4_block() > 0

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= _FEW_INT4:
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.weight, self._group, self._scales)
        else:
            y = self._wide(evened(x))
        y = y[: x.shape[0], : self.features[0]]
        return y if self.bias is None else y + self.bias

    def _wide(self, x: Tensor) -> Tensor:
        """[S, padded o] for many rows: blocks are expanded as they are, transposed, and multiplied."""
        columns, block = x.shape[1], self._block
        packed = self.weight.view(-1, columns, block // 2)  # [blocks, i, block / 2]
        scales = self._scales.view(columns // self._group, -1, block, 2).permute(
            3, 1, 0, 2
        )  # [2, blocks, i / g, block]
        out = torch.empty(x.shape[0], packed.shape[0], block, dtype=x.dtype)
        step = max(1, _WIDE // columns // block)
        for start in range(0, packed.shape[0], step):
            some = slice(start, start + step)
            codes = torch.empty(*packed[some].shape[:2], block, dtype=x.dtype)
            codes[..., : block // 2] = packed[some] & 15
            codes[..., block // 2 :] = packed[some] >> 4
            codes.sub_(8)
            scale, zero = scales[:, some, :, None]
            weight = torch.addcmul(zero, codes.view(-1, columns // self._group, self._group, block), scale)
            weight = weight.flatten(1, 2).transpose(0, 1).reshape(columns, -1)
            out[:, some] = (x @ weight).view(x.shape[0], -1, block)
        return out.view(x.shape[0], -1)


class Int8(Linear):
    """8-bit codes with one scale a row for torch's CPU kernel."""

    __slots__ = ("_scale",)

    def __init__(self, weight: Grouped, bias: Tensor | None = None) -> None:
        self.weight, self._scale = weight.codes.contiguous(), weight.scale[:, 0].bfloat16()
        self._set(weight.shape, bias, self.weight, self._scale)

    @staticmethod
    def takes(weight: Layout, dtype: torch.dtype) -> bool:
        """Whether the kernel reads this matrix."""
        return (
            weight.bits == 8
            and weight.coding == "scaled"
            and weight.group == weight.columns
            and dtype == torch.bfloat16
        )

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] <= MAX_DECODE_ROWS:
            y = torch.ops.aten._weight_int8pack_mm(x, self.weight, self._scale)
        else:  # whole numbers up to 127 are exact in bf16
            y = F.linear(evened(x), self.weight.to(x.dtype))[: x.shape[0]] * self._scale
        return y if self.bias is None else y + self.bias


class Expanding(Linear):
    """Any quantised matrix: by the Triton kernel for few rows on CUDA, else expanded a slice at a time."""

    __slots__ = ("_fused", "held")

    def __init__(self, weight: Grouped, bias: Tensor | None, device: torch.device) -> None:
        self.held = weight.to(device)
        self._fused = device.type == "cuda" and triton_is_here()
        self._set(weight.shape, bias, weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, None)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + self(x)`, in one kernel where there is one."""
        return self._product(x, residual)

    def exact(self, x: Tensor) -> Tensor:
        """The same as ever."""
        return self(x)

    def _product(self, x: Tensor, residual: Tensor | None) -> Tensor:
        held = self.held
        if self._fused and x.shape[0] <= MAX_DECODE_ROWS:
            from .matmul import grouped_linear

            return grouped_linear(x, held, self.bias, residual)
        step = max(1, _SLICE // self.features[1])
        slices = (slice(start, start + step) for start in range(0, self.features[0], step))
        wide = evened(x)
        y = torch.cat([F.linear(wide, held.lookup(rows).to(x.dtype)) for rows in slices], -1)[: x.shape[0]]
        y = y if self.bias is None else y + self.bias
        return y if residual is None else residual + y


class Stacked(Linear):
    """Layers of different forms over the same inputs, their outputs side by side."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)
        self.features = torch.Size((sum(part.features[0] for part in parts), parts[0].features[1]))
        self.bias, self.nbytes = None, sum(part.nbytes for part in parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1)

    def exact(self, x: Tensor) -> Tensor:
        """Each part as far as it can."""
        return torch.cat([part.exact(x) for part in self.parts], -1)


class Table:
    """Token embeddings [V, d], quantised or plain: only the rows that a pass needs are expanded."""

    __slots__ = ("_kept", "dtype", "weight")

    def __init__(self, weight: Tensor | Grouped, dtype: torch.dtype) -> None:
        self.weight, self.dtype = weight, dtype
        self._kept: dict[int, Tensor] = {}  # expanded rows [d] of ids that came up

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.weight.device

    def __call__(self, ids: Tensor) -> Tensor:
        """Rows [S, d] for ids [S]."""
        if isinstance(self.weight, Tensor):
            return F.embedding(ids, self.weight)
        return self.weight.lookup(ids).to(self.dtype)

    def few(self, ids: Tensor) -> Tensor:
        """The same for ids that the host may read: rows that came up before are not expanded again."""
        if isinstance(self.weight, Tensor) or ids.device.type != "cpu" or ids.shape[0] > MAX_DECODE_ROWS:
            return self(ids)
        asked = ids.tolist()
        missing = [one for one in dict.fromkeys(asked) if one not in self._kept]
        if missing:
            with torch.inference_mode(False):
                made = self(torch.tensor(missing))
            if len(self._kept) + len(missing) > KEPT:
                self._kept = {one: self._kept[one] for one in set(asked) & self._kept.keys()}
            self._kept.update(zip(missing, made, strict=True))
        return torch.stack([self._kept[one] for one in asked])


@cache
def triton_is_here() -> bool:
    """Whether kernels for a GPU can be made."""
    return importlib.util.find_spec("triton") is not None


def _int4_pack(codes: Tensor) -> Tensor:
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)


def _halves(packed: Tensor) -> Tensor:
    """[blocks, i, block / 2] -> codes [blocks, i, block]."""
    return torch.cat((packed & 15, packed >> 4), -1)


@cache
def int4_block() -> int:
    """Rows that the CPU's 4-bit layout takes together, found by trying; 0 where the layout is not the one known here."""
    codes = (torch.arange(128 * 64, dtype=torch.int32).view(128, 64) * 7 // 3) % 16
    packed = _int4_pack(codes)
    for block in (64, 32, 16):
        if torch.equal(
            _halves(packed.view(-1, 64, block // 2)).transpose(1, 2).reshape(128, 64), codes.to(torch.uint8)
        ):
            return block
    return 0
