"""Lookahead: what it learns is what the target chooses, its window is a Jacobi iteration, and the text is the target's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import toys

from outrider.core.drafting import Committed, Context, Draft, Fit, ModelInfo
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters import lookahead
from outrider.drafters.lookahead import KEYS, LEVEL, SET, Lookahead, LookaheadDrafter, Pool, Tree

NONE = torch.empty(0, dtype=torch.int64)
PROMPT = [5, 9, 13, 9, 5, 9, 13]
SHARP = Settings(temperature=0.8, top_p=0.95)


def context(tokens: Sequence[int], nodes: int = 8) -> Context:
    sampler = Sampler(toys.GREEDY, Noise(0))
    return Context(tokens, nodes, False, sampler.chain, sampler.distribution, sampler.noise.draft_stream)


def told(rider: LookaheadDrafter, tokens: Sequence[int]) -> LookaheadDrafter:
    rider.advance(Committed(len(rider._tokens), torch.tensor(list(tokens)), NONE))
    return rider


class Watched(LookaheadDrafter):
    """Keeps the text before each round, what it proposed and heard, its window, and the window's next guesses."""

    def reset(self) -> None:
        super().reset()
        self.rounds: list[tuple[list[int], Draft, Committed, list[int], list[int]]] = []
        self._draft: Draft | None = None

    def propose(self, context: Context) -> Draft | None:
        self._draft = super().propose(context)
        return self._draft

    def advance(self, step: Committed) -> None:
        before, draft, tree = list(self._tokens), self._draft, self._tree
        super().advance(step)
        if draft is not None and tree is not None:
            line = [tree.tokens[node] for node in tree.window]
            self.rounds.append((before, draft, step, line, list(self._window)))
        self._draft = None


class Truth:
    """The greedy choice of a toy target behind any text, one plain pass each."""

    def __init__(self) -> None:
        self._target = toys.target()

    def after(self, text: Sequence[int]) -> int:
        self._target.rewind(0)
        return int(self._target.forward(list(text), last=True).logits[0].argmax())


def paths(draft: Draft) -> list[list[int]]:
    """Tokens from the root's child to each node, the root's own empty path first."""
    tokens = draft.tokens.tolist()
    parents = range(-1, len(tokens) - 1) if draft.parents is None else draft.parents.tolist()
    found: list[list[int]] = [[]]
    for token, parent in zip(tokens, parents, strict=True):
        found.append([*found[parent + 1], token])
    return found


def test_every_choice_is_the_targets_and_enters_the_pool() -> None:
    """Also the window: its next guesses are what the target puts behind each of its prefixes, cut at the new root."""
    rider, truth = Watched(), Truth()
    toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(rider), limit=30, tokens=6)
    assert len(rider.rounds) > 5
    pool: dict[int, list[tuple[int, ...]]] = {}

    def add(gram: list[int]) -> None:
        if len(gram) == LEVEL:
            rest = tuple(gram[1:])
            grams = [some for some in pool.get(gram[0], []) if some != rest]
            pool[gram[0]] = [*grams, rest][-SET:]

    text = list(rider.rounds[0][0])
    for end in range(len(text)):
        add(text[: end + 1][-LEVEL:])
    for before, draft, step, line, following in rider.rounds:
        assert before == text
        choices = [truth.after([*before, *path]) for path in paths(draft)]
        for path, choice in zip(paths(draft), choices, strict=True):
            add([*before, *path, choice][-LEVEL:])
        jacobi = [truth.after([*before, *line[:count]]) for count in range(len(line) + 1)]
        assert following == jacobi[step.tokens.shape[0] :]
        for token in step.tokens.tolist():
            text.append(token)
            add(text[-LEVEL:])
    assert {first: list(reversed(rider._pool.after(first))) for first in rider._pool._sets} == pool


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, SHARP], ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("tokens", [1, 3, 12])
def test_the_text_is_the_targets(settings: Settings, tokens: int) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings)
    got = toys.answer(
        ChatCache(toys.target()), PROMPT, toys.guard(LookaheadDrafter()), settings=settings, tokens=tokens
    )
    assert got.token_ids == want.token_ids
    assert 0 < got.accepted < got.proposed


def test_what_was_chosen_off_the_path_is_accepted_later() -> None:
    """It agrees in sampled text, where nothing repeats and a pool of the text alone has little to offer."""

    class Deaf(LookaheadDrafter):
        def advance(self, step: Committed) -> None:
            super().advance(Committed(step.start, step.tokens, step.path))

    def accepted(rider: LookaheadDrafter) -> int:
        cache = ChatCache(toys.target())
        return toys.answer(cache, PROMPT, toys.guard(rider), settings=toys.SAMPLED, limit=150, tokens=16).accepted

    assert accepted(LookaheadDrafter()) > accepted(Deaf()) + 10


def test_rejection_tells_no_choices_and_the_greedy_text_is_the_same() -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(LookaheadDrafter()), rule="rejection")
    assert got.token_ids == want.token_ids


def test_candidates_take_half_and_the_window_the_rest() -> None:
    rider = told(LookaheadDrafter(), [1, 2, 3, 4, 5, 1, 7, 8, 9, 6, 1])
    draft = rider.propose(context(rider._tokens, 8))
    assert draft is not None and rider._tree is not None
    assert draft.tokens.tolist()[:4] == [7, 8, 9, 6]  # the newest n-gram first
    assert draft.tokens.shape[0] == 8
    assert len(rider._tree.window) == 8
    assert [rider._tree.tokens[node] for node in rider._tree.window][:4] == [7, 8, 9, 6]  # shared where they agree


def test_lines_share_their_beginning_and_the_budget() -> None:
    tree = Tree(4)
    assert tree.line([1, 2, 3], 3) == [0, 1, 2]
    assert tree.line([1, 5, 6], 4) == [0, 3]
    assert (tree.tokens, tree.parents) == ([1, 2, 3, 5], [-1, 0, 1, 0])
    assert tree.path(3) == [1, 5]


def test_the_pool_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEYS * SET < 1 << 17
    pool = Pool()
    for last in range(SET + 1):
        pool.add([1, 2, last])
    pool.add([1, 2, 5])
    assert pool.after(1)[:2] == [(2, 5), (2, SET)]
    assert (2, 0) not in pool.after(1)
    assert len(pool.after(1)) == SET
    monkeypatch.setattr(lookahead, "KEYS", 2)
    pool.add([3, 4])
    pool.add([1, 9])
    pool.add([6, 7])
    assert pool.after(3) == []
    assert pool.after(1)[0] == (9,)


def test_a_hot_switch_and_an_edit_leave_it_sound() -> None:
    drafters = {
        "toy": toys.guard(LookaheadDrafter()),
        "none": None,
        "late": toys.guard(LookaheadDrafter(), name="late"),
    }
    control = toys.Still()
    control.switches = {
        3: toys.DrafterChoice(name="late", tokens=4),
        6: toys.DrafterChoice(name="none"),
        9: toys.DrafterChoice(name="toy", tokens=4),
    }
    cache = ChatCache(toys.target())
    got = toys.answer(cache, PROMPT, drafters, control=control)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), PROMPT).token_ids
    assert [name for name, error in control.answers if error is None] == ["late", "none", "toy"]
    edited = [*PROMPT[:4], 1, 2, 3]
    got = toys.answer(cache, edited, drafters)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), edited).token_ids


def test_a_draft_known_in_part_teaches_what_is_known() -> None:
    rider = told(LookaheadDrafter(), [1, 2, 3, 4, 5, 1])
    draft = rider.propose(context(rider._tokens, 6))
    assert draft is not None
    rider.advance(Committed(6, torch.tensor([9]), NONE, choices=torch.tensor([9, 30, -1, 31])))
    assert (4, 5, 1, 9) in rider._pool.after(3)
    assert any(gram[-1] == 30 for gram in rider._pool.after(4))
    grams = [gram for first in range(40) for gram in rider._pool.after(first)]
    assert {token for gram in grams for token in gram} <= {2, 3, 4, 5, 1, 9, 30, 31}


def test_asked_twice_it_proposes_the_same() -> None:
    rider = told(LookaheadDrafter(), [1, 2, 3, 4, 5, 1])
    drafts = [rider.propose(context(rider._tokens, 12)) for _ in range(2)]
    assert drafts[0] is not None and drafts[1] is not None
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()


def test_a_fork_and_a_reset() -> None:
    rider = told(LookaheadDrafter(), [1, 2, 3, 4, 5, 1])
    copy = told(rider.fork(), [2, 8, 8, 8])
    assert rider._tokens == [1, 2, 3, 4, 5, 1]
    assert len(copy._pool.after(1)) == 2
    assert len(rider._pool.after(1)) == 1
    rider.reset()
    assert rider.propose(context([], 4)) is None
    assert rider._pool.after(1) == []


def test_it_fits_every_model() -> None:
    match = Lookahead().matches(ModelInfo("any", "mamba", 5, 5, 5, "x"))
    assert match.fit == Fit.ANY
    assert match.ready
