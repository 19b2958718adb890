"""The pool: one copy of each drafter with what it has heard, room where memory is short, and a bound on what waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import toys

from outrider.core.base.errors import DrafterError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Context, Draft, Needs, Shape, Stateless
from outrider.core.policy.policy import Policy
from outrider.core.session import pool as pools
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite
from outrider.core.session.pool import DrafterPool, PooledDrafter, Wanted

NOBODY = torch.empty(0, dtype=torch.int64)
CONTEXT = Context([1, 2], 4, False, None, None, None)  # type: ignore[arg-type]


class Heavy(Stateless):
    """Keeps what it hears; short of memory when it is told to be. The second token of what it hears then is lost on it."""

    shape = Shape(4, 4)

    def __init__(self, needs: tuple[int, ...] = ()) -> None:
        self.needs = Needs(hidden=needs)
        self.heard, self.short, self.closed = list[int](), "", False

    def advance(self, step: Committed) -> None:
        self.heard.append(int(step.tokens[0]))
        self._take("advance")
        self.heard += step.tokens.tolist()[1:]

    def propose(self, context: Context) -> Draft | None:
        self._take("propose")
        return Draft(torch.tensor([3]))

    def rewind(self, length: int) -> None:
        del self.heard[length:]

    def close(self) -> None:
        self.closed = True

    def _take(self, phase: str) -> None:
        if self.short == phase:
            self.short = ""
            raise torch.OutOfMemoryError("CUDA out of memory")


class Shop:
    """Loads drafters; `full`: how many more loads find no memory."""

    def __init__(self) -> None:
        self.loaded, self.made, self.notes, self.full = list[str](), dict[str, Heavy](), list[str](), 0

    def load(self, wanted: Wanted) -> PooledDrafter:
        if self.full:
            self.full -= 1
            raise DrafterError("It failed.", "No memory.") from MemoryError()
        self.loaded.append(wanted.name)
        self.made[wanted.name] = Heavy()
        drafter = PooledDrafter(wanted.name, self.made[wanted.name], True, self.notes.append)
        drafter.free = wanted.name.startswith("free")
        return drafter


def step(start: int, *tokens: int, hidden: torch.Tensor | None = None) -> Committed:
    return Committed(start, torch.tensor(tokens), NOBODY, hidden)


def test_the_same_drafter_whatever_asks_for_it() -> None:
    pool, shop = DrafterPool(), Shop()
    (first,) = pool.take([Wanted("a", "/some/path", {"size": 2, "unset": None})], shop.load)
    assert pool.take([Wanted("a", "/some/./path", {"size": "2"}), Wanted("b")], shop.load)[0] is first
    others = (Wanted("a"), Wanted("a", "/some/path"), Wanted("a", "/other", {"size": 2}))
    assert all(pool.take([other], shop.load)[0] is not first for other in others)
    assert shop.loaded == ["a", "b", "a", "a", "a"]


def test_where_loading_finds_no_memory_the_one_used_longest_ago_leaves() -> None:
    pool, shop = DrafterPool(), Shop()
    for names in (["free", "old"], ["new"], ["old"], ["new"]):
        pool.take([Wanted(name) for name in names], shop.load)
    shop.full = 1
    pool.take([Wanted("free"), Wanted("next")], shop.load)
    assert shop.made["old"].closed and not shop.made["new"].closed
    assert {drafter.name for drafter in pool} == {"free", "new", "next"}
    shop.full = 1
    pool.take([Wanted("old")], shop.load)  # loaded again
    assert shop.loaded == ["free", "old", "new", "next", "old"] and shop.made["new"].closed
    shop.full = 9
    with pytest.raises(DrafterError):
        pool.take([Wanted("old"), Wanted("none left")], shop.load)
    assert {drafter.name for drafter in pool} == {"free", "old"}  # those that draft stay, and free ones
    assert pool.failed(Wanted("none left")) and not pool.failed(Wanted("old"))


def test_loading_that_fails_for_another_reason_closes_nobody() -> None:
    pool, shop = DrafterPool(), Shop()
    pool.take([Wanted("old")], shop.load)

    def broken(wanted: Wanted) -> PooledDrafter:
        raise DrafterError("It failed.", "") from ValueError()

    with pytest.raises(DrafterError):
        pool.take([Wanted("new")], broken)
    assert not shop.made["old"].closed


@pytest.mark.parametrize("phase", ["advance", "propose"])
def test_while_drafting_too_and_the_draft_is_made(phase: str) -> None:
    pool, shop = DrafterPool(), Shop()
    pool.take([Wanted("idle")], shop.load)
    (drafter,) = pool.take([Wanted("now")], shop.load)
    shop.made["now"].short = phase
    drafter.observe(step(0, 5, 6))
    drafter.advance(step(2, 7, 8))
    assert drafter.propose(CONTEXT, 48) is not None
    assert shop.made["now"].heard == [5, 6, 7, 8] and shop.made["idle"].closed
    assert not drafter.failed and not shop.notes
    shop.made["now"].short = phase
    drafter.advance(step(4, 9))
    drafter.propose(CONTEXT, 48)
    assert drafter.failed and len(shop.notes) == 1 and "ran out of memory" in shop.notes[0]


@pytest.mark.parametrize("width", [1, 64])
def test_what_waits_is_bounded_in_bytes_of_its_own_states(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of all that are read, and not in tokens alone."""
    monkeypatch.setattr(pools, "HELD_BYTES", 4 * 10 * 64)  # ten states of 64 numbers
    wide, narrow = Heavy((1, 2)), Heavy((2,))
    parts = [PooledDrafter(name, one, True, print) for name, one in (("wide", wide), ("narrow", narrow))]
    both = Composite(parts, Policy())
    most = {"wide": 0, "narrow": 0}
    for at in range(100):
        both.advance(step(at, at % 48, hidden=torch.zeros(1, 2, width)))
        for part in parts:
            most[part.name] = max(most[part.name], part.behind)
    assert most == ({"wide": 4, "narrow": 9} if width == 64 else {"wide": 100, "narrow": 100})
    assert [part.known for part in parts] == [100, 100]
    for part in parts:
        part.catch_up()
    assert wide.heard == narrow.heard == [at % 48 for at in range(100)]


def test_what_it_has_heard_is_not_told_again_in_other_company() -> None:
    """A drafter that rode alone knows more than one that joins it; each hears every token once, in order, with its states."""
    one, other = toys.Listener(), toys.Listener()
    drafters = [toys.guard(one, name="one"), toys.guard(other, name="other")]
    cache, prompt = ChatCache(toys.target()), [number * 7 % 48 for number in range(40)]
    made = Policy()
    together = Composite(drafters, made)
    first = toys.answer(cache, prompt, drafters[0], limit=8)
    assert other.heard == []
    longer = [*prompt, *first.token_ids, 1, 2]
    table = {"one": drafters[0], "both": together, "other": drafters[1]}
    control = toys.Still({3: DrafterChoice(name="both", tokens=4), 5: DrafterChoice(name="other", tokens=4)})
    toys.answer(cache, longer, table, limit=24, control=control, policy=made)
    toys.answer(cache, longer[:30], together, limit=12, policy=made)  # an edit of an earlier turn
    for drafter in drafters:
        drafter.catch_up()
    assert one.heard == other.heard == cache.tokens and not any(drafter.failed for drafter in drafters)


def test_a_failure_is_forgiven_by_its_own_name_alone() -> None:
    pool, shop = DrafterPool(), Shop()
    drafter, other = pool.take([Wanted("a"), Wanted("b")], shop.load)
    for one in (drafter, other):
        one._call("advance", _raise)
    pool.weights |= {"a": None, "b": "/there"}
    pool.forgive("a")
    assert not pool.failed(Wanted("a")) and pool.failed(Wanted("b")) and pool.weights == {"b": "/there"}
    pool.forgive("auto")
    assert not pool.failed(Wanted("b")) and len(shop.notes) == 2


def _raise() -> None:
    raise ValueError("it broke")


def test_forks_follow_their_own_conversation_and_are_not_the_pools() -> None:
    pool, shop = DrafterPool(), Shop()
    (drafter,) = pool.take([Wanted("a")], shop.load)
    fork: Callable = lambda: Heavy()  # noqa: E731
    shop.made["a"].fork = fork  # type: ignore[method-assign]
    drafter.advance(step(0, 5, 6))
    other = Composite([drafter], Policy()).fork(print)
    assert other is not None and other.known == 0
    other.advance(step(0, 9))
    pool.rewind(0)
    assert other.known == 1 and drafter.known == 0
    other.close()
    assert not shop.made["a"].closed and not drafter.failed
