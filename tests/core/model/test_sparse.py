"""The experts' kernels in Triton's interpreter, against float64."""

from __future__ import annotations

from collections.abc import Sequence

import golden
import pytest
import torch
from mixtures import KINDS, TABLES, case, gated, layer, numbers, want
from torch import Tensor

pytest.importorskip("triton", reason="Triton is made for Linux only")

import triton
import triton.language as tl

from outrider.core.model.blocks.mlp import Dense, Experts, Router, Ungated, matrices
from outrider.core.model.families.spec import Activation, ExpertsSpec
from outrider.core.model.kernels import ops, sparse
from outrider.core.model.kernels.activations import ACTIVATIONS
from outrider.core.model.kernels.fused import Triton
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS

BACKEND = Triton()
SIZE = WIDTH, INNER = 64, 32
SMALL = 8, 8


def mixture_of(experts: Sequence[Dense | Ungated], dtype: torch.dtype) -> sparse.Mixture | None:
    found = matrices(experts)
    return None if found is None else sparse.mixture(*found, dtype)


def check(experts: Sequence[Dense | Ungated], rows: int, top: int) -> None:
    mixture = mixture_of(experts, torch.float32)
    assert mixture is not None
    some = case(rows, top, len(experts), experts[0].down.features[0])
    torch.testing.assert_close(mixture(*some).double(), want(experts, *some), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_activations(activation: Activation, bias: bool) -> None:
    check(gated("plain", 4, SIZE, activation, bias=bias), 2, 2)


@pytest.mark.parametrize("bias", [False, True])
def test_squares(bias: bool) -> None:
    sizes = (INNER, WIDTH), (WIDTH, INNER)
    check([Ungated(*(layer("plain", seed, size, bias) for size in sizes)) for seed in range(4)], 2, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_code(kind: str) -> None:
    check(gated(kind, 3, SIZE), 2, 2)


@pytest.mark.parametrize("kind", ["4 bits", "floats of 4 bits, doubled"])
def test_codes_with_all_that_goes_with_them(kind: str) -> None:
    check(gated(kind, 3, (160, 96), "clamped", bias=True), 2, 2)


@pytest.mark.parametrize("size", [(8, 1), (72, 33), (136, 17)])
def test_odd_sizes(size: tuple[int, int]) -> None:
    check(gated("plain", 3, size, bias=True), 2, 1)


@pytest.mark.parametrize(
    ("rows", "top", "count"), [(1, 1, 1), (1, 6, 6), (3, 5, 9), (17, 1, 1), (MAX_DECODE_ROWS, 1, 2)]
)
def test_who_chose_what(rows: int, top: int, count: int) -> None:
    """Experts alone and shared, by more rows than one program takes."""
    check(gated("plain", count, SMALL), rows, top)


@triton.jit
def _tell(chosen, mates, there, before, pairs, TILE: tl.constexpr, STEP: tl.constexpr):
    pair = tl.program_id(0)
    some, exist = sparse._mates(chosen, pair, pairs, TILE, STEP)
    place = pair * TILE + tl.arange(0, TILE)
    tl.store(mates + place, some)
    tl.store(there + place, exist.to(tl.int32))
    tl.store(before + pair, sparse._earlier(chosen, pair, STEP))


def test_pairs_find_their_mates() -> None:
    """Programs of all but every fourth leave, so that none does what another one does."""
    chosen = torch.randint(0, 3, (21,), generator=torch.Generator().manual_seed(1))
    mates, there = torch.full((2, 21, 4), -1, dtype=torch.int32)
    before = torch.empty(21, dtype=torch.int32)
    _tell[(21,)](chosen, mates, there, before, 21, TILE=4, STEP=8)  # type: ignore[arg-type]
    for pair, expert in enumerate(chosen.tolist()):
        alike = (chosen == expert).nonzero()[:, 0].tolist()
        place = alike.index(pair)
        assert before[pair] == place
        assert mates[pair][there[pair] > 0].tolist() == alike[place : place + 4]


def test_tables_of_floats_are_known() -> None:
    known = {name: sparse._floats(torch.stack((table, table / 2))) for name, table in TABLES.items()}
    assert known == {"any table": False, "floats of 4 bits": True, "floats of 4 bits, doubled": True}


def test_rows_that_do_not_begin_where_wide_reads_may() -> None:
    experts = gated("plain", 2, SIZE)
    for expert in experts:
        place = torch.empty(2 * INNER * WIDTH + 1)[1:].view(2 * INNER, WIDTH)
        expert.gate_up.weight = place.copy_(expert.gate_up.weight)
    check(experts, 2, 1)


def test_half_precision() -> None:
    """fp16 only: the interpreter multiplies bf16 as if it were whole numbers."""
    experts = gated("plain", 3, SIZE, "clamped", bias=True, dtype=torch.float16)
    mixture = mixture_of(experts, torch.float16)
    assert mixture is not None
    x, weights, chosen = case(3, 2, 3, WIDTH)
    got = mixture(x.half(), weights, chosen)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.double(), want(experts, x.half(), weights, chosen), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("kind", ["plain", "4 bits"])
def test_a_row_does_not_depend_on_its_neighbours(kind: str) -> None:
    mixture = mixture_of(gated(kind, 3, (WIDTH, 16 if kind == "plain" else INNER)), torch.float32)
    assert mixture is not None
    x, weights, chosen = case(18, 2, 3, WIDTH)
    together = mixture(x, weights, chosen)
    for some in (slice(0, 1), slice(17, 18), slice(5, 8)):
        assert torch.equal(mixture(x[some], weights[some], chosen[some]), together[some])


def test_what_is_not_taken() -> None:
    experts = gated("plain", 2, SIZE)
    assert mixture_of(experts, torch.float32) is not None
    assert mixture_of(experts, torch.float64) is None
    assert mixture_of(experts, torch.float16) is None  # they are of another dtype
    assert mixture_of([*experts, *gated("4 bits", 1, SIZE)], torch.float32) is None
    assert mixture_of([*gated("4 bits", 1, SIZE), *gated("any table", 1, SIZE)], torch.float32) is None
    assert mixture_of([*experts, *gated("plain", 1, SIZE, "clamped")], torch.float32) is None
    assert mixture_of([*experts, *gated("plain", 1, SIZE, bias=True)], torch.float32) is None
    assert mixture_of([*experts, *gated("plain", 1, (WIDTH, INNER + 1))], torch.float32) is None
    assert mixture_of([*experts, Ungated(experts[0].down, experts[0].down)], torch.float32) is None


class Asked(Exception):
    pass


@pytest.mark.parametrize("still", [False, True])
def test_passes_that_take_it(still: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, whether the pass may ask the host or not; more go through one expert after the other, and so does a CPU."""
    router = Router(ExpertsSpec(4, 2, INNER), layer("plain", 50, (4, WIDTH)))
    experts, x = Experts(router, gated("plain", 4, SIZE)), numbers(1, MAX_DECODE_ROWS + 1, WIDTH)
    with ops.only("cpu", None):
        expected = experts.routed(x[:3], x[:3], still=still)

    def ask(*_: object) -> Tensor:
        raise Asked

    monkeypatch.setattr(Dense, "__call__", ask)
    with ops.only("cpu", BACKEND):
        for _ in range(2):
            found = experts.routed(x[:3], x[:3], still=still)
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
        with pytest.raises(Asked):
            experts.routed(x, x, still=still)
    with ops.only("cpu", None), pytest.raises(Asked):
        experts.routed(x[:3], x[:3], still=still)


def test_a_whole_model_says_the_same() -> None:
    """Logits of a draft after a prompt that torch's own steps have read."""
    known = golden.tensors("qwen3_moe")
    model = golden.decoder(golden.FOLDER / "qwen3_moe", torch.float32, 64)
    ids, cache = known["input_ids"][0], model.new_cache(64)
    with ops.only("cpu", None):
        model.run(ids[:20], cache)
    cache.commit(20)
    with ops.only("cpu", BACKEND):
        logits = model.run(ids[20:24], cache).logits
    golden.assert_close(logits, known["logits"][0, 20:24], atol=golden.tolerance("qwen3_moe"))
