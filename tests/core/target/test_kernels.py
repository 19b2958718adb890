"""The Triton kernel in Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

from outrider.core.weights.grouped import Grouped, pack_nibbles

pytest.importorskip("triton", reason="Triton is made for Linux only")

from outrider.core.target.kernels import ROWS, grouped_linear

KINDS = {
    "Q4_1": (4, 32, {"low"}),
    "IQ4_NL": (4, 32, {"table"}),
    "Q2_K": (4, 16, {"low", "half"}),
    "Q8_0": (8, 32, {"half"}),
    "Q6_K": (8, 16, set()),
    "Q5_1": (8, 32, {"low", "unsigned"}),
    "FP8": (8, 64, {"float8"}),
    "int8": (8, 192, set()),
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
