"""The Triton kernel in Triton's interpreter, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from outrider.core.formats.quantized import Grouped, pack_nibbles

pytest.importorskip("triton", reason="Triton is made for Linux only")

from outrider.core.model.kernels.linear import MAX_DECODE_ROWS
from outrider.core.model.kernels.matmul import ROWS, grouped_linear

KINDS = {
    "Q4_1": (4, 32, {"low"}),
    "IQ4_NL": (4, 32, {"table"}),
    "Q2_K": (4, 16, {"low", "half"}),
    "Q8_0": (8, 32, {"half"}),
    "Q6_K": (8, 16, set()),
    "Q5_1": (8, 32, {"low", "unsigned"}),
    "FP8": (8, 64, {"float8"}),
    "int8": (8, 192, set()),
    "odd group": (4, 24, {"low"}),
    "odd group of 8": (8, 12, set()),
}


def weight_of(bits: int, group: int, what: set[str], rows: int = 40, columns: int = 192) -> Grouped:
    g = torch.Generator().manual_seed(bits * group)
    codes = torch.randint(0, 16 if bits == 4 else 256, (rows, columns), generator=g, dtype=torch.uint8)
    if "float8" in what:
        every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
        numbers = every[every.float().isfinite()].view(torch.uint8)
        codes = numbers[torch.randint(0, len(numbers), (rows, columns), generator=g)].view(torch.float8_e4m3fn)
    elif bits == 8 and "unsigned" not in what:
        codes = codes.view(torch.int8)
    scale = torch.rand(rows, columns // group, generator=g)
    low = torch.randn(scale.shape, generator=g) if "low" in what else None
    if "half" in what:
        scale, low = scale.half(), None if low is None else low.half()
    table = torch.randn(16, generator=g) if "table" in what else None
    return Grouped(pack_nibbles(codes, group) if bits == 4 else codes, scale, low, table, bits)


@pytest.mark.parametrize("rows", [1, 3, ROWS + 3])
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_code(kind: str, rows: int) -> None:
    weight = weight_of(*KINDS[kind])
    x = torch.randn(rows, 192, generator=torch.Generator().manual_seed(rows))
    want = x.double() @ weight.expand(torch.float64).T
    got = grouped_linear(x, weight)
    assert float((got - want).abs().max() / want.std()) < 1e-5


def test_half_precision() -> None:
    """fp16 only: the interpreter multiplies bf16 as if it were whole numbers."""
    weight = weight_of(4, 32, {"low"})
    x = torch.randn(4, 192, generator=torch.Generator().manual_seed(1)).half()
    want = x.double() @ weight.expand(torch.float64).T
    got = grouped_linear(x, weight)
    assert got.dtype == torch.float16
    assert float((got - want).abs().max() / want.std()) < 0.01


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    weight = weight_of(4, 32, {"low"})
    x = torch.randn(ROWS, 192, generator=torch.Generator().manual_seed(2))
    whole = grouped_linear(x, weight)
    assert torch.equal(grouped_linear(x[:1], weight), whole[:1])
    assert torch.equal(grouped_linear(x[:5], weight), whole[:5])


@pytest.mark.parametrize("rows", [1, 16, 17, 33])
@pytest.mark.parametrize("kind", ["Q4_1", "int8"])
def test_taller_tiles_give_the_same(kind: str, rows: int) -> None:
    """Those of half precision: whole numbers and few of them, so that no sum is rounded whatever adds it up."""
    weight = weight_of(*KINDS[kind])
    weight = replace(weight, scale=torch.ones_like(weight.scale), low=None)
    x = torch.randint(-4, 5, (MAX_DECODE_ROWS, 192), generator=torch.Generator().manual_seed(3)).half()
    whole = grouped_linear(x, weight)
    assert torch.equal(whole.double(), (x.double() @ weight.expand(torch.float64).T).half().double())
    assert torch.equal(grouped_linear(x[:rows], weight), whole[:rows])


@pytest.mark.parametrize("outputs", [1, 63, 130])
@pytest.mark.parametrize("columns", [32, 480, 2048])
def test_odd_sizes_and_parts(outputs: int, columns: int) -> None:
    """Wide matrices of few outputs are cut along their inputs, some parts may be empty."""
    weight = weight_of(4, 32, {"low"}, outputs, columns)
    x = torch.randn(3, columns, generator=torch.Generator().manual_seed(4))
    want = x.double() @ weight.expand(torch.float64).T
    assert float((grouped_linear(x, weight) - want).abs().max() / columns**0.5) < 1e-4


@pytest.mark.parametrize("columns", [64, 2048])
def test_bias_and_residual(columns: int) -> None:
    weight = weight_of(8, 32, set(), 40, columns)
    g = torch.Generator().manual_seed(5)
    x, bias, residual = (torch.randn(*shape, generator=g) for shape in ((2, columns), (40,), (2, 40)))
    plain = grouped_linear(x, weight).double()
    both = (plain + bias + residual).float()
    torch.testing.assert_close(grouped_linear(x, weight, bias, residual), both, atol=1e-3, rtol=1e-5)
    torch.testing.assert_close(grouped_linear(x, weight, bias), (plain + bias).float(), atol=1e-3, rtol=1e-5)
