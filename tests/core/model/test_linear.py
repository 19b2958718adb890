"""Linear layers over quantised weights: every form against the expanded matrix in float64, few rows and many."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.core.formats.quantized import Grouped, pack_nibbles, quantise
from outrider.core.model.kernels import linear as forms
from outrider.core.model.kernels import packed_linear
from outrider.core.model.kernels.forms import WeightFormat, linear, packs
from outrider.core.model.kernels.linear import Expanding, Int4, Int8, Linear, Prepacked, Stacked, Table

CPU = torch.device("cpu")
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def without_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where C cannot be built; `test_native_linear` is about the rest."""
    monkeypatch.setattr(packed_linear, "there", lambda: None)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def four_bits(rows: int = 100, columns: int = 128, group: int = 32) -> Grouped:
    g = torch.Generator().manual_seed(rows)
    codes = torch.randint(0, 16, (rows, columns), generator=g, dtype=torch.uint8)
    scale = torch.rand(rows, columns // group, generator=g)
    return Grouped(pack_nibbles(codes, group), scale, -8 * scale, bits=4)


def check(layer: Linear, weight: Grouped, bias: torch.Tensor | None, rows: int, tolerance: float) -> None:
    x = random(rows, weight.shape[1], seed=9).to(BF16 if tolerance > 1e-3 else FP32)
    want = x.double() @ weight.expand(torch.float64).T + (0 if bias is None else bias.double())
    got = layer(x)
    assert got.dtype == x.dtype
    assert got.shape == want.shape
    assert float((got - want).abs().max() / want.std()) < tolerance
    residual = random(*want.shape, seed=5).to(x.dtype)
    assert float((layer.plus(x, residual) - want - residual).abs().max() / want.std()) < 2 * tolerance


@pytest.mark.parametrize("rows", [1, 5, 64, 200])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("group", [32, 64])
def test_four_bits_on_a_cpu(rows: int, biased: bool, group: int) -> None:
    weight, bias = four_bits(group=group), random(100).bfloat16() if biased else None
    layer = linear(weight, bias, BF16, CPU)
    assert isinstance(layer, Int4), "torch's 4-bit kernel is not there, or its layout has changed"
    check(layer, weight, bias, rows, 0.04)
    assert layer.nbytes < 100 * 128 * 2 * 0.55


def test_four_bits_where_the_layout_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "int4_block", lambda: 0)
    weight = four_bits()
    assert not WeightFormat(BF16, CPU).keeps(weight.layout)
    assert isinstance(linear(weight, None, BF16, CPU), Expanding)


@pytest.mark.parametrize("rows", [1, 5, 64, 200])
@pytest.mark.parametrize("biased", [False, True])
def test_eight_bits_on_a_cpu(rows: int, biased: bool) -> None:
    weight, bias = quantise(random(100, 128), 8), random(100).bfloat16() if biased else None
    layer = linear(weight, bias, BF16, CPU)
    assert isinstance(layer, Int8)
    check(layer, weight, bias, rows, 0.04)


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("bits", [4, 8])
def test_any_form_is_expanded_in_the_product(rows: int, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_SLICE", 1000)  # seven rows at a time
    weight, bias = quantise(random(100, 128), bits), random(100)
    layer = linear(weight, bias, FP32, CPU)
    assert isinstance(layer, Expanding)
    check(layer, weight, bias, rows, 1e-4)


def test_what_stays_quantised() -> None:
    four, eight = four_bits(), quantise(random(8, 64), 8)
    table = Grouped(four.codes, four.scale, table=torch.arange(16.0), bits=4)
    small = four_bits(group=16)
    assert [WeightFormat(BF16, CPU).keeps(w.layout) for w in (four, eight, table, small)] == [True, True, False, False]
    assert not WeightFormat(FP32, CPU).keeps(four.layout)
    assert WeightFormat(FP32, CPU, keep="all").keeps(table.layout)
    assert not WeightFormat(torch.float64, CPU, keep="all").keeps(four.layout)
    assert not WeightFormat(BF16, CPU, keep="none").keeps(four.layout)


def test_plain_weights() -> None:
    weight, x = random(16, 64), random(3, 64)
    layer = linear(weight, None, FP32, CPU)
    assert type(layer) is Linear
    torch.testing.assert_close(layer(x), x @ weight.T)
    packed = linear(weight, None, BF16, CPU)
    assert isinstance(packed, Prepacked) == packs(BF16, CPU)
    torch.testing.assert_close(packed(x.bfloat16()).float(), x @ weight.T, atol=0.2, rtol=0.02)


def test_parts_of_different_forms_side_by_side() -> None:
    first, second = random(16, 64), quantise(random(8, 64, seed=2), 8)
    layer = Stacked([linear(first, None, FP32, CPU), linear(second, None, FP32, CPU)])
    x = random(2, 64)
    assert layer.features == (24, 64)
    assert layer.nbytes == first.nbytes + second.nbytes
    torch.testing.assert_close(layer(x), x @ torch.cat((first, second.expand())).T)


def test_a_row_is_the_same_in_every_pass_that_decodes() -> None:
    for weight in (four_bits(), quantise(random(100, 128), 8)):
        layer = linear(weight, None, BF16, CPU)
        x = random(64, 128).bfloat16()
        whole = layer(x)
        for rows in (1, 2, 3, 5, 17):
            assert torch.equal(layer(x[:rows]), whole[:rows])


def test_a_table_gives_rows() -> None:
    plain, ids = random(10, 64), torch.tensor([3, 3, 9])
    assert torch.equal(Table(plain, FP32)(ids), plain[ids])
    packed = quantise(plain, 8)
    table = Table(packed, BF16)
    assert torch.equal(table(ids), packed.expand(BF16)[ids])
    assert table.device == CPU


class Rows(TorchDispatchMode):
    """Numbers of rows that torch's products are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(name in func.name() for name in ("linear", "mm")):
            self.seen |= {part.shape[0] for part in args[:2] if isinstance(part, torch.Tensor) and part.dim() == 2}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", [Linear, Prepacked, Int4, Int8, Expanding])
def test_few_numbers_of_rows_reach_torch(form: Any) -> None:
    """oneDNN keeps memory for every one of them."""
    weight: Any = random(64, 128).to(BF16)
    if form in (Int4, Int8, Expanding):
        weight = quantise(weight.float(), 4 if form is Int4 else 8)
    layer = form(weight, None, *((CPU,) if form is Expanding else ()))
    x = random(400, 128).to(BF16)
    whole = layer(x)
    with Rows() as rows, torch.inference_mode():
        for count in range(193, 400, 5):
            got = layer(x[:count])
            assert got.shape == (count, 64)
            torch.testing.assert_close(layer.plus(x[:count], got), 2 * got, atol=0.1, rtol=0.1)
            torch.testing.assert_close(got, whole[:count], atol=0.1, rtol=0.1)
    assert len(rows.seen - {64, 128}) <= 4
