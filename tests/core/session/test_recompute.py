"""A drafter that takes up late is told the states of what was read before it, and the target's cache stays as it is."""

from __future__ import annotations

from typing import Any

import golden
import kinds
import pytest
import torch
import toys
from torch import Tensor

from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, ModelInfo, Needs
from outrider.core.model.model import TargetModel
from outrider.core.policy.costs import Costs
from outrider.core.policy.policy import Policy
from outrider.core.session import recompute
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite
from outrider.core.session.recompute import affordable, give_states

PROMPT = [number * 7 % 48 for number in range(40)]
RIDES = DrafterChoice(name="rides", tokens=4)


def check(listener: toys.Listener, chat_cache: ChatCache) -> None:
    """Every state but the first token's is known and the right one."""
    whole = toys.target().forward(chat_cache.tokens, states=(0, 2)).hidden
    assert whole is not None and listener.heard == chat_cache.tokens
    assert listener.states[0] is None
    for at, state in enumerate(listener.states[1:], 1):
        assert state is not None, at
        torch.testing.assert_close(state, whole[at - 1], atol=1e-4, rtol=1e-4)


def answered(listener: toys.Listener, way: str, make: Any) -> ChatCache:
    """An answer in which the listener takes up late; `make`: what rides of it."""
    chat_cache = ChatCache(toys.target())
    table = {"none": None, "rides": make(toys.guard(listener))}
    control = toys.Still(switches={4: RIDES}) if way == "switch" else None
    want = toys.answer(ChatCache(toys.target()), PROMPT, limit=12)
    got = toys.answer(chat_cache, PROMPT, table, limit=12, control=control)
    if way == "regenerate":
        got = toys.answer(chat_cache, PROMPT, table["rides"], limit=12)
    assert got.token_ids == want.token_ids and got.proposed
    return chat_cache


@pytest.mark.parametrize("way", ["switch", "regenerate"])
def test_it_gets_the_states_of_what_it_missed(way: str) -> None:
    listener = toys.Listener()
    check(listener, answered(listener, way, lambda rider: rider))


@pytest.mark.parametrize("way", ["switch", "regenerate"])
def test_so_do_those_that_ride_together(way: str) -> None:
    listener = toys.Listener()

    def composite(rider: Any) -> Composite:
        free = toys.guard(toys.Anything(), name="free")
        free.free = True
        return Composite([free, rider], Policy())

    made: list[Composite] = []
    chat_cache = answered(listener, way, lambda rider: made.append(composite(rider)) or made[0])
    for part in made[0]._parts:
        part.catch_up()
    check(listener, chat_cache)


def parts(target: TargetModel) -> list[Tensor]:
    """Copies of all that a conversation has left in a target."""
    found = []
    for state in target.cache.states:
        found += [part.clone() for part in (*getattr(state, "parts", ()), *getattr(state, "now", ()))]
    return found


@pytest.mark.parametrize("kind", list(kinds.KINDS))
def test_the_cache_stays_bit_for_bit(kind: str) -> None:
    name = kinds.KINDS[kind]
    decoder = golden.decoder(golden.FOLDER / name, torch.float32, 128)
    target = TargetModel(decoder, ModelInfo(name, "golden", 256, 64, len(decoder.weights.blocks), "bytes"), 60)
    target.cache = decoder.new_cache(128, slack=8, rings=0)
    ids = golden.tensors(name)["input_ids"][0].tolist()
    states: list[Tensor] = []
    for at in range(0, 40, 8):
        made = target.forward(ids[at : at + 8], states=(1, 2)).hidden
        assert made is not None
        states.append(made)
        target.commit(at + 8)
    listener = toys.Listener()
    listener.needs = Needs(hidden=(1, 2))
    rider = toys.guard(listener)
    rider.advance(Committed(0, torch.tensor(ids[:41]), torch.empty(0, dtype=torch.int64)))
    before = parts(target)
    give_states(target, ids[:41], rider, Costs())
    assert target.length == 40
    assert all(torch.equal(old, new) for old, new in zip(before, parts(target), strict=True))
    got = [state for state in listener.states[1:] if state is not None]
    torch.testing.assert_close(torch.stack(got), torch.cat(states), atol=1e-3, rtol=1e-3)


def test_what_it_knows_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it rode from the start, nor for the one token at the seam of two turns."""
    chat_cache, rider = ChatCache(toys.target()), toys.guard(toys.Listener())
    first = toys.answer(chat_cache, PROMPT, rider, limit=12)
    monkeypatch.setattr(TargetModel, "standing", lambda self, cache: 1 / 0)
    toys.answer(chat_cache, [*PROMPT, *first.token_ids, 1, 2, 3], rider, limit=12)
    toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(toys.Anything()), limit=4)  # it needs no states


def test_only_the_newest_tokens_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "MOST", 16)
    listener = toys.Listener()
    chat_cache = answered(listener, "regenerate", lambda rider: rider)
    known = [state is not None for state in listener.states]
    first = len(PROMPT) + 1 - 16
    assert known == [False] * first + [True] * (len(chat_cache.tokens) - first)


@pytest.mark.parametrize(
    ("plain", "row", "tokens"), [(0.002, 0.0001, 1024), (0.005, 0.0005, 1000), (0.2, 0.02, 120), (0.2, 0.2, 12)]
)
def test_it_keeps_to_its_time(plain: float, row: float, tokens: int) -> None:
    costs = Costs()
    costs.calibrate(1, plain)
    costs.calibrate(32, max(plain, 32 * row))
    assert affordable(costs) == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize("chunk", [7, 16, 39])
def test_pieces_of_what_is_read_again_fit_together(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "CHUNK", chunk)
    listener = toys.Listener()
    check(listener, answered(listener, "regenerate", lambda rider: rider))


def test_a_gap_among_the_newest_tokens_is_filled_however_much_is_known_before() -> None:
    """An answer of 30 tokens that another drafter made, behind a long chat that this one knows."""
    chat_cache, listener = ChatCache(toys.target()), toys.Listener()
    rider = toys.guard(listener)
    prompt = [number * 5 % 48 for number in range(150)]
    first = toys.answer(chat_cache, prompt, rider, limit=4)
    longer = [*prompt, *first.token_ids]
    second = toys.answer(chat_cache, longer, {"none": None, "rides": rider}, limit=30)
    toys.answer(chat_cache, [*longer, *second.token_ids, 1], rider, limit=8)
    check(listener, chat_cache)
