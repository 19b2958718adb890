"""Quantised matrices: codes in groups against scalar arithmetic, rows, columns, and rounding of plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.core.formats import quants
from outrider.core.formats.gguf.reader import BLOCKS
from outrider.core.formats.layout import KINDS as LAYOUTS
from outrider.core.formats.layout import of_blocks
from outrider.core.formats.quantized import Grouped, concat, pack_nibbles, quantise, unpack_nibbles


def random_grouped(rows: int = 6, columns: int = 64, group: int = 32, bits: int = 4, **what: bool) -> Grouped:
    """Codes, scales and offsets that all differ. `table`, `low`, `half`, `float8` as named."""
    g = torch.Generator().manual_seed(rows * columns + group + bits)
    codes = torch.randint(0, 16 if bits == 4 else 256, (rows, columns), generator=g, dtype=torch.uint8)
    if bits == 8:
        codes = codes.view(torch.int8)
    if what.get("float8"):
        codes = torch.randn(rows, columns, generator=g).to(torch.float8_e4m3fn)
    scale = torch.rand(rows, columns // group, generator=g) + 0.5
    low = torch.randn(scale.shape, generator=g) if what.get("low") else None
    table = torch.randn(16, generator=g) if what.get("table") else None
    if what.get("half"):
        scale, low = scale.half(), None if low is None else low.half()
    return Grouped(pack_nibbles(codes, group) if bits == 4 else codes, scale, low, table, bits)


KINDS = [
    {"low": True},
    {"table": True},
    {"low": True, "half": True, "group": 16},
    {"bits": 8},
    {"bits": 8, "low": True, "group": 16},
    {"bits": 8, "float8": True, "group": 64},
]


def scalar(weight: Grouped, row: int, column: int) -> float:
    """One weight, from the definition."""
    group = column // weight.group
    if weight.bits == 4:
        within = column % weight.group
        byte = int(weight.codes[row, group * weight.group // 2 + within % (weight.group // 2)])
        code: float = byte >> 4 if within >= weight.group // 2 else byte & 15
    else:
        code = float(weight.codes[row].float()[column])
    value = code if weight.table is None else float(weight.table[int(code)])
    return value * float(weight.scale[row, group]) + (0.0 if weight.low is None else float(weight.low[row, group]))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_weight_is_what_the_definition_says(kind: dict) -> None:
    weight = random_grouped(**kind)
    plain = weight.expand()
    assert plain.shape == weight.shape == (6, 64)
    for row in range(6):
        for column in range(64):
            assert float(plain[row, column]) == pytest.approx(scalar(weight, row, column), rel=1e-6)
    assert torch.equal(weight.lookup(torch.tensor([4, 0, 4])), plain[[4, 0, 4]])
    assert torch.equal(weight.expand(torch.float64), plain.double())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rows_are_taken_split_and_joined(kind: dict) -> None:
    weight = random_grouped(**kind)
    plain, order = weight.expand(), torch.tensor([5, 1, 3])
    assert torch.equal(weight[order].expand(), plain[order])
    parts = weight.split([1, 3, 2])
    assert torch.equal(parts[1].expand(), plain[1:4])
    joined = concat(parts)
    assert joined is not None
    assert torch.equal(joined.expand(), plain)
    assert concat([weight, random_grouped(bits=8, group=8)]) is None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_columns_move_in_whole_groups_or_not_at_all(kind: dict) -> None:
    weight = random_grouped(**{**kind, "columns": 128})
    order = torch.arange(128).view(-1, weight.group).flip(0).flatten()
    moved = weight.moved(order)
    assert moved is not None
    assert torch.equal(moved.expand(), weight.expand()[:, order])
    assert weight.moved(order.roll(1)) is None


def test_nibbles_come_back() -> None:
    codes = torch.arange(128, dtype=torch.uint8).view(2, 64) % 16
    packed = pack_nibbles(codes, 32)
    assert packed.shape == (2, 32)
    assert torch.equal(unpack_nibbles(packed, 32), codes)


def test_parts_that_do_not_fit_are_seen() -> None:
    assert random_grouped().whole
    codes = torch.zeros(4, 8, dtype=torch.uint8)
    assert not Grouped(codes, torch.ones(5, 2)).whole
    assert not Grouped(codes, torch.ones(4, 3)).whole
    assert not Grouped(codes, torch.ones(4, 2), low=torch.ones(4, 1)).whole


def error(weight: Tensor, bits: int) -> float:
    return float((quantise(weight, bits).expand() - weight).square().mean().sqrt())


def test_rounding_is_as_fine_as_its_bits() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(3))
    eight, four = quantise(weight, 8), quantise(weight, 4)
    assert (eight.bits, eight.group, four.bits, four.group) == (8, 256, 4, 32)
    assert error(weight, 8) < 0.01  # a step is 2 x 3.5 / 254, its error a step / sqrt(12)
    assert 0.05 < error(weight, 4) < 0.085  # a step is about 4.2 / 15
    assert four.nbytes < weight.nbytes / 4


def test_rounding_beats_the_plain_range_where_one_weight_sticks_out() -> None:
    weight = torch.randn(8, 32, generator=torch.Generator().manual_seed(4)) * 0.1
    weight[:, 0] = 1.0
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    step = (high - low) / 15
    naive = ((weight - low) / step).round() * step + low
    assert error(weight, 4) < float((naive - weight).square().mean().sqrt())


def test_rounding_keeps_zeros_and_constants() -> None:
    weight = torch.zeros(2, 64)
    weight[1] = 0.75
    for bits in (4, 8):
        torch.testing.assert_close(quantise(weight, bits).expand(), weight, atol=1e-6, rtol=0.01)


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_blocks_of_a_file_as_codes(kind: str) -> None:
    """Any bytes are blocks: the codes stand for exactly what expanding gives, and lie as the header promises."""
    weights, nbytes = next((w, b) for name, w, b in BLOCKS.values() if name == kind)
    rows, columns = 3, 512
    g = torch.Generator().manual_seed(weights + nbytes)
    raw = torch.randint(0, 120, (rows * columns // weights * nbytes,), generator=g, dtype=torch.uint8)
    data = memoryview(bytearray(raw.tolist()))
    want = quants.expand(data, kind).view(rows, columns)
    found = quants.grouped(data, kind, columns)
    assert found is not None
    assert found.layout == of_blocks(kind, rows, columns)
    assert found.nbytes == found.layout.nbytes
    assert torch.equal(found.expand(), want)


def test_plain_numbers_are_no_codes() -> None:
    assert of_blocks("F32", 4, 4) is None
    assert quants.grouped(memoryview(bytearray(64)), "F32", 4) is None
