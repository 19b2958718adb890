"""`DraftState` by itself, eager and captured, against one layer computed in float64 over all rows at once with nothing kept.

Letters: `S` rows, `d` width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import layers
import pairs
import pytest
import torch
import toys
from replay import Replay
from torch import Tensor

from outrider.core.drafting import Committed, DeviceContext, DraftState, InFlight
from outrider.core.drafting.files import DraftFiles
from outrider.core.drafting.layers import DraftLayers, Layout, Rows, WeightReader, load_layers
from outrider.core.drafting.state import Scratch, Window, Work
from outrider.core.formats.tensor_checkpoint import TensorCheckpoint
from outrider.core.model.families.spec import AttentionSpec, TargetSpec
from outrider.core.model.kernels import ops
from outrider.core.model.model import TargetModel

LONGEST = 64  # tokens of a conversation
NONE = torch.empty(0, dtype=torch.int64)
RANDOM = torch.Generator().manual_seed(11)
WEIGHTS = layers.block(RANDOM)
EMBEDDING = torch.randn(48, layers.WIDTH, generator=RANDOM)
STATES = torch.randn(LONGEST, 1, layers.WIDTH, generator=RANDOM)  # of position p, which produced token p + 1
IDS, OTHERS = (torch.randint(48, (LONGEST,), generator=RANDOM) for _ in range(2))


def rows_of(ids: Tensor, states: Tensor) -> Tensor:
    """What the layer reads: the state of each position beside the token that it produced."""
    return states + EMBEDDING[ids]


def want(ids: Tensor, unknown: Sequence[int] = (), guesses: Tensor | None = None) -> Tensor:
    """The newest row's output [1, d]; `guesses` [S, d] are rows behind those of the conversation."""
    x = rows_of(ids[1:], STATES[: len(ids) - 1, 0])
    x = x if guesses is None else torch.cat((x, guesses))
    return layers.run(x.double(), WEIGHTS, hidden=unknown)[-1:].float()


def same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture(params=[False, True], ids=["eager", "captured"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[TargetModel]:
    """Captured passes read steps of the memory, which go through all lengths of a short conversation."""
    monkeypatch.setattr("outrider.core.model.graph_runner.LEAST_END", 32)
    with ops.only("cpu", None):  # a replay sees no kernel written in C
        made = toys.target(context=128)
        yield TargetModel(made.decoder, made.info, 128, Replay() if request.param else None)


def one_layer(target: TargetModel, window: int = 0) -> DraftLayers:
    spec: TargetSpec = toys.spec(layers=1)
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, AttentionSpec)
    layer = replace(spec.layers[0], mixer=replace(mixer, window=window))
    tensors = {f"layers.0.{name}": tensor for name, tensor in WEIGHTS.items()}
    files = DraftFiles(TensorCheckpoint(Path("layer"), tensors), {name: name for name in tensors})
    return load_layers(WeightReader(files, replace(spec, layers=(layer,)), target, prefix=""))


def follower(target: TargetModel, window: int = 0) -> DraftState:
    made = one_layer(target, window)

    def run(memory: Rows, ids: Tensor, x: Tensor, where: Layout, newest: Tensor | slice) -> Tensor:
        return made(rows_of(ids, x), where, memory)[newest]

    return DraftState(target, made.mixers, made.tables, lambda states: states[:, 0], run)


def tell(state: DraftState, ids: Tensor, start: int, stop: int, *, known: bool = True) -> None:
    """Tokens `start` to `stop` become true, with the states that produced them or without."""
    hidden = STATES[max(start - 1, 0) : stop - 1] if known else None
    state.advance(Committed(start, ids[start:stop], NONE, hidden))


def tell_all(state: DraftState, ids: Tensor, *stops: int) -> None:
    for start, stop in zip((0, *stops), stops, strict=False):
        tell(state, ids, start, stop)


# ---------------------------------------------------------------------------------------------------- what became true


@pytest.mark.parametrize("chunk", [512, 7])
def test_tokens_come_in_pieces(target: TargetModel, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Few rows wait until a draft is asked for; many are written at once."""
    monkeypatch.setattr("outrider.core.drafting.state.CHUNK", chunk)
    state = follower(target)
    assert not state.ready(0)
    tell_all(state, IDS, 30)
    assert state.count == (29 if chunk == 7 else 0)
    for stop in (31, 34, 35, 50):
        tell(state, IDS, len(state.tokens), stop)
        assert state.ready(stop) and not state.ready(stop + 1)
        same(state.feed(), want(IDS[:stop]))
        same(state.feed(), want(IDS[:stop]))  # asked again, the newest row is written again
        assert state.count == stop - 1
    assert state.tokens == IDS[:50].tolist()
    assert pairs.positions(state) == list(range(49))


def test_rewind_and_go_on_with_other_tokens(target: TargetModel) -> None:
    state = follower(target)
    tell_all(state, IDS, 25)
    state.feed()
    for stay in (24, 17, 1):
        state.rewind(stay)
        assert state.count == stay - 1 and len(state.tokens) == stay
        other = torch.cat((IDS[:stay], OTHERS[stay:]))
        tell(state, other, stay, stay + 9)
        same(state.feed(), want(other[: stay + 9]))
        state.rewind(stay)
        tell(state, IDS, stay, stay + 2)
        same(state.feed(), want(IDS[: stay + 2]))
    state.clear()
    assert not state.tokens and not state.ready(1)
    tell_all(state, OTHERS, 12)
    same(state.feed(), want(OTHERS[:12]))


def test_tokens_told_from_an_earlier_position_take_the_place_of_later_ones(target: TargetModel) -> None:
    state = follower(target)
    tell_all(state, IDS, 20)
    state.feed()
    other = torch.cat((IDS[:14], OTHERS[14:]))
    tell(state, other, 14, 22)
    same(state.feed(), want(other[:22]))


def test_a_fork_goes_its_own_way(target: TargetModel) -> None:
    state = follower(target)
    tell_all(state, IDS, 20)
    state.feed()
    fork, other = state.fork(), torch.cat((IDS[:20], OTHERS[20:]))
    tell(fork, other, 20, 26)
    tell(state, IDS, 20, 23)
    same(fork.feed(), want(other[:26]))
    same(state.feed(), want(IDS[:23]))
    fork.rewind(10)
    assert len(state.tokens) == 23 and state.count == 22
    same(state.feed(), want(IDS[:23]))


# ---------------------------------------------------------------------------------------------------- what is missing


@pytest.mark.parametrize("gaps", [((0, 9),), ((12, 20),), ((0, 4), (9, 15), (22, 23))])
def test_positions_without_a_state_have_no_row(target: TargetModel, gaps: Sequence[tuple[int, int]]) -> None:
    """The others stand at their true distance."""
    state, at = follower(target), 0
    unknown = [max(position - 1, 0) for first, stop in gaps for position in range(first, stop)]
    for first, stop in gaps:
        if first > at:
            tell(state, IDS, at, first)
            same(state.feed(), want(IDS[:first], [position for position in unknown if position < first - 1]))
        tell(state, IDS, first, stop, known=False)
        assert not state.ready(stop)
        at = stop
    tell(state, IDS, at, 30)
    same(state.feed(), want(IDS[:30], unknown))
    assert pairs.positions(state) == [position for position in range(29) if position not in unknown]
    same(state.follow(5, EMBEDDING[7:8], 1), want(IDS[:30], unknown, rows_of(torch.tensor([5]), EMBEDDING[7:8])))
    tell(state, IDS, 30, 33)
    same(state.feed(), want(IDS[:33], unknown))


def test_a_layer_that_slides_begins_anew_behind_a_gap(target: TargetModel) -> None:
    state = follower(target, window=16)
    tell_all(state, IDS, 10)
    same(state.feed(), want(IDS[:10]))
    tell(state, IDS, 10, 14, known=False)
    tell(state, IDS, 14, 20)
    same(state.feed(), want(IDS[:20], range(13)))
    assert state.origin == 13 and pairs.positions(state) == list(range(13, 19))


def test_without_layers_it_gives_the_newest_state(target: TargetModel) -> None:
    state = DraftState(target, (), {}, lambda states: 2 * states[:, 0])
    tell_all(state, IDS, 9, 12)
    assert state.ready(12) and state.nbytes == 0
    assert torch.equal(state.feed(), 2 * STATES[10])
    state.rewind(8)
    assert torch.equal(state.feed(), 2 * STATES[6])


# ---------------------------------------------------------------------------------------------------- provisional rows


def test_guesses_leave_no_trace(target: TargetModel) -> None:
    state = follower(target)
    tell_all(state, IDS, 18)
    state.feed()
    guessed, fed_back = OTHERS[:3], torch.randn(3, layers.WIDTH, generator=RANDOM)
    for depth in range(1, 4):
        got = state.follow(int(guessed[depth - 1]), fed_back[depth - 1 : depth], depth)
        same(got, want(IDS[:18], guesses=rows_of(guessed[:depth], fed_back[:depth])))
    assert state.count == 17
    tell(state, IDS, 18, 20)
    same(state.feed(), want(IDS[:20]))


def test_rows_behind_the_newest_one_of_the_same_pass(target: TargetModel) -> None:
    """What is no number there does not spread once the pass is undone."""
    state = follower(target)
    tell_all(state, IDS, 12)
    masked = torch.randn(2, layers.WIDTH, generator=RANDOM)
    got = state.feed(([3, 4], masked))
    behind = rows_of(torch.tensor([3, 4]), masked)
    same(got, torch.cat([want(IDS[:12], guesses=behind[:count]) for count in range(3)]))
    assert state.count == 11
    tell(state, IDS, 12, 14)
    state.feed(([3], torch.full((1, layers.WIDTH), torch.nan)))
    state.undo()
    same(state.feed(), want(IDS[:14]))


def test_a_tree_of_guesses(target: TargetModel) -> None:
    """Two rows below the newest one, and one below each of them: siblings do not see each other."""
    made, state = one_layer(target), follower(target)
    x, depths = torch.randn(4, layers.WIDTH, generator=RANDOM), torch.tensor([0, 0, 1, 1])
    seen = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)

    def work(scratch: Scratch, numbers: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        first = made(x[:2], scratch.tree(depths[:2], seen[:2, :2]), state.rows)
        second = made(x[2:], scratch.tree(depths, seen[2:]), state.rows)
        return torch.cat((first, second)), numbers + 1

    for stop in (15, 22):
        tell(state, IDS, len(state.tokens), stop)
        state.feed()
        got, numbers = state.draft("tree", work, [stop], x, rows=4)
        paths = ([0], [1], [0, 2], [1, 3])
        same(got, torch.cat([want(IDS[:stop], guesses=x[path]) for path in paths]))
        assert numbers.tolist() == [stop + 1]
        assert state.count == stop - 1


def test_one_graph_serves_every_length(target: TargetModel) -> None:
    state, graphs = follower(target), target.graphs
    counts = []
    for stop in range(2, 30):
        tell(state, IDS, stop - 2 if stop == 2 else stop - 1, stop)
        same(state.feed(), want(IDS[:stop]))
        counts.append(0 if graphs is None else graphs.count)
    assert state.captured == (graphs is not None)
    assert counts[0] == counts[5] and counts[-1] <= 2  # more only where a pass reads another step of the memory


# ---------------------------------------------------------------------------------------------------- in flight


def context(length: int, flying: InFlight | None) -> DeviceContext:
    return DeviceContext(IDS[:length].tolist(), 1, flying, lambda logits, depths: logits.argmax(-1), "key")


def last_and_next(state: DraftState, made: DraftLayers, x: Tensor) -> Work:
    """What the newest row gives, and one guess behind it."""

    def work(newest: Tensor, scratch: Scratch, window: Window) -> tuple[Tensor, Tensor, Tensor]:
        return newest, made(x, scratch.line(1), state.rows), window.root

    return work


@pytest.mark.parametrize("gap", [False, True])
def test_a_round_in_flight_is_drafted_behind_before_it_is_read(target: TargetModel, gap: bool) -> None:
    """Its rows become true with it, without another pass; where something else became true, they are written anew."""
    state, guess = follower(target), torch.randn(1, layers.WIDTH, generator=RANDOM)
    work, unknown = last_and_next(state, one_layer(target), guess), range(4, 9) if gap else ()
    tell(state, IDS, 0, 5)
    tell(state, IDS, 5, 10, known=not gap)
    tell(state, IDS, 10, 18)
    if target.graphs is None:
        assert state.draft_ahead(context(18, None), "one", work, rows=1) is None
        return

    def check(length: int, flying: InFlight | None) -> None:
        made = state.draft_ahead(context(length, flying), "one", work, rows=1)
        assert made is not None
        stop = length if flying is None else length + int(flying.count)
        same(made[0], want(IDS[:stop], unknown))
        same(made[1], want(IDS[:stop], unknown, guess))
        assert made[2].tolist() == [IDS[stop - 1]]

    check(18, None)
    flying = InFlight(18, torch.cat((IDS[18:20], OTHERS[:1])), torch.tensor([2]), STATES[17:20])
    check(18, flying)
    flying.taken = 2
    tell(state, IDS, 18, 20)
    assert pairs.positions(state) == [position for position in range(19) if position not in unknown]
    same(state.feed(), want(IDS[:20], unknown))
    check(20, InFlight(20, torch.cat((IDS[20:21], OTHERS[:2])), torch.tensor([1]), STATES[19:22]))
    tell(state, torch.cat((IDS[:20], OTHERS[20:])), 20, 23)  # the round did not happen
    same(state.feed(), want(torch.cat((IDS[:20], OTHERS[20:]))[:23], unknown))
    assert not state.ready(22) and state.draft_ahead(context(22, None), "one", work, rows=1) is None


def test_a_fork_writes_the_rows_of_a_round_in_flight_itself(target: TargetModel) -> None:
    state, guess = follower(target), torch.randn(1, layers.WIDTH, generator=RANDOM)
    tell(state, IDS, 0, 18)
    flying = InFlight(18, IDS[18:21], torch.tensor([3]), STATES[17:20])
    made = state.draft_ahead(context(18, flying), "one", last_and_next(state, one_layer(target), guess), rows=1)
    assert (made is None) == (target.graphs is None)
    fork, flying.taken = state.fork(), 3
    for one in (fork, state):
        tell(one, IDS, 18, 21)
        same(one.feed(), want(IDS[:21]))
