"""Linear layers on a CPU, in C: rows times 4- and 8-bit codes that are expanded a little at a time, or times plain bf16.

Codes are multiplied as whole numbers (or entries of a table), each group's scale and offset are applied to sums in fp32. A
row's result is the same whatever shares its pass, however wide that is.

Letters: `S` rows, `o` outputs, `i` inputs, `g` codes in a group.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_long, c_void_p
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.formats.layout import Layout
from outrider.core.formats.quantized import Grouped, pack_nibbles
from outrider.core.model.kernels.native import compiled

from .linear import MAX_DECODE_ROWS, Linear

_HALF = {torch.bfloat16: 1, torch.float32: 0}
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # of scales and offsets
_BLOCK, _SPAN = 32, 128  # outputs side by side, inputs expanded together at most
_PIECES = (128, 96, 64, 32, 112, 80, 48, 16)  # into which larger groups are cut: matrix units like multiples of 32
_NARROW = 4  # numbers of vectors that have no way to look up a table
_TILE = 32  # inputs of a tile of plain weights
_WIDE = 1 << 22  # weights expanded at a time where a pass is wide
_STEPS = 2**-11  # how far a scale may be off in a bf16 model, an eighth of what its inputs are


class _Matrix(ctypes.Structure):
    """`struct matrix` of the source."""

    _fields_ = (
        *((name, c_void_p) for name in ("codes", "factors", "table", "halves", "bias")),
        *(
            (name, c_long)
            for name in (
                "outputs",
                "inputs",
                "group",
                "piece",
                "parts",
                "bits",
                "signed",
                "even",
                "least",
                "kind",
                "lows",
            )
        ),
    )


class Products:
    """The library that `compiled` has built."""

    def __init__(self, library: ctypes.CDLL, compiler: str, parallel: int = 0) -> None:
        """`parallel`: address of the GOMP_parallel that spreads long work over threads; 0: one thread."""
        self.compiler = compiler
        self.dense = compiled.begin(library, parallel)  # whether plain bf16 is multiplied
        self.lanes: int = library.lanes()  # numbers of a vector
        self.product, self.plain, self.pack = library.product, library.plain, library.pack
        self.product.argtypes = (*(c_void_p,) * 4, c_long, c_int, c_int, c_long)
        self.plain.argtypes = (c_void_p, c_void_p, c_long, c_long, c_int, c_long)
        self.pack.argtypes = (c_void_p, c_void_p, *(c_long,) * 5)
        self.plain.restype = self.pack.restype = None


class Packed(Linear):
    """Codes in blocks of 32 outputs, and their scales and offsets: of 16 bits in bf16 models, where they are as good so."""

    __slots__ = ("_held", "_matrix", "_products", "address")

    def __init__(
        self, weight: Grouped, bias: Tensor | None, dtype: torch.dtype, products: Products | None = None
    ) -> None:
        (rows, columns), group = weight.shape, weight.group
        table, parts = _numbers(weight, dtype)
        blocks = -(-rows // _BLOCK)
        factors = F.pad(torch.stack(parts, 1), (0, 0, 0, 0, 0, blocks * _BLOCK - rows))  # [padded o, 1 or 2, i / g]
        factors = factors.view(blocks, _BLOCK, len(parts), -1).permute(0, 3, 2, 1).contiguous()
        signed = weight.codes.dtype == torch.int8
        piece = group if group <= _SPAN else next(size for size in _PIECES if group % size == 0)
        least = 0 if table is None else int(table[0])
        numbers = (
            group,
            piece,
            _SPAN // piece if piece == group else 1,
            weight.bits,
            signed,
            weight.table is None,
            least,
        )
        held = (factors, table, _halves(table, signed))
        self._keep(products, weight.codes, bias, held, (rows, columns, *numbers, _KINDS[factors.dtype], len(parts) - 1))

    def _keep(
        self,
        products: Products | None,
        stored: Tensor,
        bias: Tensor | None,
        held: tuple[Tensor | None, ...],
        numbers: tuple[int, ...],
    ) -> None:
        """Takes rows of codes or numbers, what belongs to them, and the numbers of a `_Matrix`."""
        products = products or there()
        assert products is not None
        rows, columns, group, _, _, bits, *_ = numbers
        codes = torch.zeros(-(-rows // _BLOCK), columns * bits // 32, _BLOCK, dtype=torch.int32)
        stored = stored.contiguous()
        products.pack(stored.data_ptr(), codes.data_ptr(), rows, columns, group, bits, torch.get_num_threads())
        shift = None if bias is None else bias.float().contiguous()
        self._products, self._held = products, (codes, *held, shift)
        self._matrix = _Matrix(*(None if part is None else part.data_ptr() for part in self._held), *numbers)
        self.address, self.weight = ctypes.addressof(self._matrix), codes
        self._set(torch.Size((rows, columns)), bias, codes, *(part for part in held[:1] if part is not None))

    @staticmethod
    def takes(weight: Layout, dtype: torch.dtype) -> bool:
        """Whether the library is there and multiplies by such a matrix."""
        if dtype not in _HALF or weight.coding == "float8" or weight.group % min(_PIECES):
            return False
        products = there()
        return products is not None and (weight.coding != "table" or products.lanes > _NARROW)

    @staticmethod
    def bytes_of(weight: Layout, dtype: torch.dtype) -> int:
        """Bytes that it takes, or a few more where offsets turn out to follow from scales."""
        rows = -(-weight.rows // _BLOCK) * _BLOCK
        each = weight.per_group
        if dtype == torch.bfloat16:
            each = 4 if weight.coding == "affine" else 2
        return rows * (weight.columns * weight.bits // 8 + weight.columns // weight.group * each)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, None)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """`residual + self(x)`, in one kernel."""
        return self._product(x, residual)

    def exact(self, x: Tensor) -> Tensor:
        """As `Linear`."""
        return self._product(x, None, torch.float32)

    def _product(self, x: Tensor, residual: Tensor | None, dtype: torch.dtype | None = None) -> Tensor:
        rows = x.shape[0]
        x = x.contiguous()
        if not self.few(x.dtype):
            return self._expanded(x, residual)
        out = torch.empty(rows, self.features[0], dtype=dtype or x.dtype)
        beside = None if residual is None else residual.contiguous()
        failed = self._products.product(
            self.address,
            x.data_ptr(),
            None if beside is None else beside.data_ptr(),
            out.data_ptr(),
            rows,
            _HALF[x.dtype],
            _HALF[out.dtype],
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the inputs of {rows} rows")
        return out

    def few(self, dtype: torch.dtype) -> bool:
        """Whether rows of that kind are multiplied in C."""
        return dtype in _HALF

    def _expanded(self, x: Tensor, residual: Tensor | None) -> Tensor:
        outputs, inputs = self.features
        blocks, parts = -(-outputs // _BLOCK), list[Tensor]()
        step = max(1, _WIDE // (inputs * _BLOCK))
        for first in range(0, blocks, step):
            count = min(step, blocks - first)
            weight = torch.empty(inputs, count * _BLOCK, dtype=x.dtype)
            self._products.plain(self.address, weight.data_ptr(), first, count, _HALF[x.dtype], torch.get_num_threads())
            parts.append(x @ weight)
        y = (parts[0] if len(parts) == 1 else torch.cat(parts, 1))[:, :outputs]
        y = y if self.bias is None else y + self.bias
        return y if residual is None else residual + y


class Plain(Packed):
    """Plain bf16 weights for matrix units or vectors of pairs, read as fast as memory gives them.

    Few rows take half to three quarters of the time that they take in oneDNN's own layout, and have the same bits in any pass.
    """

    __slots__ = ()

    def __init__(self, weight: Tensor, bias: Tensor | None, products: Products | None = None) -> None:
        rows, columns = weight.shape
        self._keep(products, weight, bias, (None,) * 3, (rows, columns, columns, columns, 1, 16, *(0,) * 5))

    @staticmethod
    def multiplies(weight: Tensor, dtype: torch.dtype) -> bool:
        """Whether the library is there and multiplies by a matrix of that shape on this processor."""
        if dtype != torch.bfloat16 or weight.shape[0] < _BLOCK or weight.shape[1] % _TILE:
            return False
        products = there()
        return products is not None and products.dense

    def few(self, dtype: torch.dtype) -> bool:
        """As `Packed`."""
        return dtype == torch.bfloat16


def _numbers(weight: Grouped, dtype: torch.dtype) -> tuple[Tensor | None, list[Tensor]]:
    """What 4-bit codes stand for [16], and scales and offsets [o, i / g] as they are kept."""
    scale, low = weight.scale, weight.low
    table = None if weight.bits == 8 else torch.arange(16.0) if weight.table is None else weight.table.float()
    if table is not None and weight.table is None and low is not None and torch.equal(low.float(), -8 * scale.float()):
        table, low = table - 8, None
    parts = [scale] if low is None else [scale, low]
    if all(part.dtype == scale.dtype and part.itemsize == 2 for part in parts):
        return table, parts
    parts = [part.float() for part in parts]
    if dtype == torch.bfloat16:
        size = parts[0].abs()
        size += size.amax() / 64 if size.numel() else 0
        for narrow in (torch.bfloat16, torch.float16):
            small = [part.to(narrow) for part in parts]
            if _near(small[0], parts[0], size) and (
                low is None or _near(small[1], parts[1], 16 * size + parts[1].abs())
            ):
                return table, small
    return table, parts


def _near(small: Tensor, part: Tensor, size: Tensor) -> bool:
    return bool(((small.float() - part).abs() <= _STEPS * size).all())


def _halves(table: Tensor | None, signed: bool) -> Tensor:
    """bf16 values [2, 32] of the lower and the upper four bits of a code, twice over."""
    lower = torch.arange(16.0) if table is None else table
    upper = 16 * torch.arange(16.0)
    if signed:
        upper -= 256.0 * (upper >= 128)
    return torch.stack((lower, upper)).repeat(1, 2).bfloat16().contiguous()


@cache
def find() -> Products | str:
    """The library, once it has been tried; else why there is none."""
    try:
        library, compiler = compiled.native()
    except compiled.UnbuiltError as error:
        return str(error)
    products = Products(library, compiler, compiled.parallel())
    for dtype in _HALF:
        if failing(products, dtype):
            return f"products gave wrong numbers as {compiler} built them"
    return products


def there() -> Products | None:
    """The library, if there is one."""
    found = find()
    return None if isinstance(found, str) else found


@torch.inference_mode()
def failing(products: Products, dtype: torch.dtype) -> bool:
    """Whether a product of a few numbers is not what it should be."""
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (40, 96), generator=g, dtype=torch.uint8)
    scale, low = torch.rand(2, 40, 3, generator=g).half()
    for weight in (Grouped(pack_nibbles(codes, 32), scale, low, bits=4), Grouped(codes.view(torch.int8) - 8, scale)):
        x = torch.randn(MAX_DECODE_ROWS + 1, 96, generator=g).to(dtype)
        layer, want = Packed(weight, None, dtype, products), x.float() @ weight.expand().T
        for rows in (1, MAX_DECODE_ROWS, MAX_DECODE_ROWS + 1):
            off = (layer(x[:rows]).float() - want[:rows]).abs().amax() / want.std()
            if not off < (0.05 if dtype == torch.bfloat16 else 1e-4):
                return True
    return False
