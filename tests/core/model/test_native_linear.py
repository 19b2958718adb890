"""Packed products in C: every kind of code against float64, the same bits whatever shares a pass, and what happens without C."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.core.formats.layout import KINDS, Layout
from outrider.core.formats.quantized import Grouped, pack_nibbles, quantise
from outrider.core.formats.quants import _IQ4
from outrider.core.model.kernels import compiled, forms, packed_linear
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS, Int4, Int8
from outrider.core.model.kernels.packed_linear import Packed, Plain, Products

CPU = torch.device("cpu")
BF16, FP32 = torch.bfloat16, torch.float32
NARROWER = {
    "as it is": "",
    "no matrix units": "-U__AMX_BF16__",
    "no pairs of bf16": "-U__AVX512BF16__",
    "half as wide": "-U__AVX512F__",
    "portable": "-U__AVX2__",
}
CASES = [
    (bits, coding, group, inputs)
    for bits, codings in ((4, ("affine", "scaled", "table")), (8, ("affine", "scaled")))
    for coding in codings
    for group, inputs in ((16, 48), (32, 96), (64, 192), (128, 384), (256, 512), (80, 240), (272, 272), (576, 576))
]


def compiler() -> list[str]:
    try:
        return compiled.compiler()[0]
    except compiled.UnbuiltError as error:
        pytest.skip(str(error))


def build(narrower: str, monkeypatch: pytest.MonkeyPatch) -> Products:
    """The library, for a processor that can do less. What is left out by one name is left out by those that follow."""
    names = list(NARROWER)
    left_out = " ".join(NARROWER[name] for name in names[: names.index(narrower) + 1])
    monkeypatch.setenv("CC", " ".join((*compiler(), left_out)))
    return Products(*compiled.native())


@pytest.fixture(scope="module", params=NARROWER)
def products(request: pytest.FixtureRequest) -> Products:
    with pytest.MonkeyPatch.context() as patch:
        return build(request.param, patch)


@pytest.fixture
def fast() -> Products:
    assert compiler()
    found = packed_linear.find()
    assert isinstance(found, Products), found
    return found


def made(bits: int, coding: str, group: int, shape: tuple[int, int]) -> Grouped:
    g = torch.Generator().manual_seed(bits * group)
    codes = torch.randint(0, 1 << bits, shape, generator=g, dtype=torch.uint8)
    parts = shape[0], shape[1] // group
    scale = torch.rand(parts, generator=g) + 0.1
    low = -torch.rand(parts, generator=g) * (1 << bits) if coding == "affine" else None
    table = torch.tensor(_IQ4).float() if coding == "table" else None
    if bits == 4:
        return Grouped(pack_nibbles(codes, group), scale, low, table, 4)
    return Grouped(codes if coding == "affine" else codes.view(torch.int8), scale, low)


def some(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def off(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


@pytest.mark.parametrize(("bits", "coding", "group", "inputs"), CASES)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_every_kind_of_code(bits: int, coding: str, group: int, inputs: int, dtype: torch.dtype, products) -> None:
    """Sums are exact but for fp32; rows in tiles, alone, and beside them; outputs that fill no block."""
    tolerance = 2e-6 if dtype == FP32 else 6e-3
    for outputs in (1, 40):
        weight = made(bits, coding, group, (outputs, inputs))
        bias = some(outputs, dtype=dtype)
        layer = Packed(weight, bias, dtype, products)
        x = some(MAX_DECODE_ROWS + 5, inputs, dtype=dtype, seed=1)
        residual = some(MAX_DECODE_ROWS + 5, outputs, dtype=dtype, seed=2)
        want = x.double() @ weight.expand(torch.float64).T + bias.double()
        whole, added = layer(x[:MAX_DECODE_ROWS]), layer.plus(x[:MAX_DECODE_ROWS], residual[:MAX_DECODE_ROWS])
        assert whole.dtype == dtype
        assert off(whole, want[:MAX_DECODE_ROWS]) < tolerance
        assert off(added, want[:MAX_DECODE_ROWS] + residual[:MAX_DECODE_ROWS]) < tolerance
        for rows in (1, 2, 7, 16, 17, 33):
            assert torch.equal(layer(x[:rows]), whole[:rows])
            assert torch.equal(layer.plus(x[5 : 5 + rows], residual[5 : 5 + rows]), added[5 : 5 + rows])
        assert off(layer(x), want) < 2 * tolerance
        assert off(layer.plus(x, residual), want + residual) < 2 * tolerance


@pytest.mark.parametrize(("outputs", "inputs"), [(32, 32), (40, 96), (100, 576)])
def test_plain_weights(outputs: int, inputs: int, fast: Products) -> None:
    weight, bias = some(outputs, inputs, dtype=BF16), some(outputs, dtype=BF16, seed=3)
    assert Plain.multiplies(weight, BF16) == fast.dense
    assert not Plain.multiplies(weight[:, :-1], BF16)
    assert not Plain.multiplies(weight[:31], BF16)
    assert not Plain.multiplies(weight.float(), FP32)
    if not fast.dense:
        pytest.skip("this processor does not multiply bf16")
    layer = forms.linear(weight, bias, BF16, CPU)
    assert isinstance(layer, Plain)
    assert layer.nbytes == -(-outputs // 32) * 32 * inputs * 2 + bias.nbytes
    x, residual = (
        some(MAX_DECODE_ROWS + 5, inputs, dtype=BF16, seed=1),
        some(MAX_DECODE_ROWS + 5, outputs, dtype=BF16, seed=2),
    )
    want = x.double() @ weight.double().T + bias.double()
    whole, added = layer(x[:MAX_DECODE_ROWS]), layer.plus(x[:MAX_DECODE_ROWS], residual[:MAX_DECODE_ROWS])
    assert off(whole, want[:MAX_DECODE_ROWS]) < 6e-3
    assert off(added, want[:MAX_DECODE_ROWS] + residual[:MAX_DECODE_ROWS]) < 6e-3
    for rows in (1, 2, 7, 16, 17, 33):
        assert torch.equal(layer(x[:rows]), whole[:rows])
        assert torch.equal(layer.plus(x[5 : 5 + rows], residual[5 : 5 + rows]), added[5 : 5 + rows])
    assert off(layer(x), want) < 0.012
    assert off(layer(x[:3].float()), want[:3]) < 1e-6


@pytest.mark.parametrize(
    ("bits", "coding", "group"), [(4, "affine", 32), (4, "table", 16), (8, "scaled", 64), (16, "", 0)]
)
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_row_has_the_same_bits_in_a_wide_pass(
    bits: int, coding: str, group: int, dtype: torch.dtype, products
) -> None:
    """In tiles and beside them, and in a pass that is worked on in several panels."""
    if bits == 16 and (dtype == FP32 or not products.dense):
        pytest.skip("plain weights are not multiplied in C there")
    inputs, rows = 1088, 595
    bias, x, residual = some(40, dtype=dtype), some(rows, inputs, dtype=dtype), some(rows, 40, dtype=dtype, seed=2)
    if bits == 16:
        layer: Packed = Plain(some(40, inputs, dtype=BF16), bias, products)
    else:
        layer = Packed(made(bits, coding, group, (40, inputs)), bias, dtype, products)
    narrow = torch.cat([layer.plus(*few) for few in zip(x.split(37), residual.split(37), strict=True)])
    for count in (65, 96, 207, rows):
        assert torch.equal(layer.plus(x[:count], residual[:count]), narrow[:count])


@pytest.mark.parametrize("plain", [False, True])
def test_sums_that_are_not_rounded(plain: bool, products: Products) -> None:
    if plain and not products.dense:
        pytest.skip("plain weights stay with torch there")
    weight = made(4, "affine", 32, (100, 576))
    dense = weight.expand().bfloat16()
    layer = Plain(dense, None, products) if plain else Packed(weight, None, BF16, products)
    x = some(5, 576, dtype=BF16)
    sums = layer.exact(x)
    near = 2e-6 if plain else 1e-3  # scales have 16 bits
    assert sums.dtype == FP32 and off(sums, x.double() @ (dense if plain else weight.expand()).double().T) < near
    assert torch.equal(sums.bfloat16(), layer(x)) and not torch.equal(sums, layer(x).float())


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_pass_may_be_empty_strided_or_over_many_threads(dtype: torch.dtype, fast: Products) -> None:
    weight = made(4, "affine", 32, (2000, 512))
    layer = Packed(weight, None, dtype)
    wide = some(6, 1024, dtype=dtype)
    alone, threads = layer(wide[:, 512:].contiguous()), torch.get_num_threads()
    assert layer(wide[:0, 512:]).shape == (0, 2000)
    torch.set_num_threads(2)
    try:
        assert torch.equal(layer(wide[:, 512:]), alone)
        both = Packed(weight, None, dtype)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(both.weight, layer.weight)


def test_scales_keep_sixteen_bits_where_that_is_as_good(fast: Products) -> None:
    weight = made(4, "affine", 32, (64, 256))
    codes, groups = 64 * 128, 64 * 8
    assert Packed(weight, None, FP32).nbytes == codes + groups * 8
    assert Packed(weight, None, BF16).nbytes == codes + groups * 4
    follows = Grouped(weight.codes, weight.scale, -8 * weight.scale, bits=4)
    assert Packed(follows, None, BF16).nbytes == codes + groups * 2
    tiny = Grouped(weight.codes, weight.scale * 1e-9, weight.low, bits=4)  # fp16 has no such number
    assert Packed(tiny, None, BF16).nbytes == codes + groups * 8
    x = some(3, 256, dtype=BF16)
    want = x.double() @ weight.expand(torch.float64).T
    assert off(Packed(weight, None, BF16)(x), want) < 4e-3
    assert off(Packed(tiny, None, BF16)(x), x.double() @ tiny.expand(torch.float64).T) < 4e-3


def test_what_is_multiplied_as_it_is_stored(fast: Products) -> None:
    for dtype in (BF16, FP32):
        form = WeightFormat(dtype, CPU)
        layouts = [Layout(64, 256, *kind) for kind in KINDS.values() if kind[2] != "table" or fast.lanes > 4]
        assert all(form.keeps(layout) for layout in layouts)
        assert not form.keeps(Layout(64, 256, 8, 128, "float8", 4))
        assert not form.keeps(Layout(64, 48, 8, 24, "scaled", 4))
        for bits in (4, 8):
            weight = quantise(some(100, 256, dtype=FP32), bits)
            layer = forms.linear(weight, None, dtype, CPU)
            assert isinstance(layer, Packed)
            assert layer.nbytes == form.nbytes(weight.layout)
    assert not WeightFormat(torch.float64, CPU).keeps(layouts[0])


def test_without_a_compiler_torchs_kernels_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    packed_linear.find.cache_clear()
    try:
        assert "no-such-compiler" in str(packed_linear.find())
        four, eight = (quantise(some(64, 128, dtype=FP32), bits) for bits in (4, 8))
        assert isinstance(forms.linear(four, None, BF16, CPU), Int4)
        assert isinstance(forms.linear(eight, None, BF16, CPU), Int8)
        assert not WeightFormat(FP32, CPU).keeps(four.layout)
    finally:
        packed_linear.find.cache_clear()


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_library_that_multiplies_wrongly_is_found_out(dtype: torch.dtype, fast: Products) -> None:
    assert not packed_linear.failing(fast, dtype)

    class Wrong(Products):
        def __init__(self) -> None:
            self.plain, self.pack = fast.plain, fast.pack
            self.product = lambda matrix, x, residual, out, *rest: fast.product(matrix, x, x, out, *rest)

    assert packed_linear.failing(Wrong(), dtype)
