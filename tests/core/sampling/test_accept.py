"""The acceptance law by exact enumeration: every outcome of every coin and every draw, run through the production code.

Target and drafter are tables over a vocabulary of 3: the law of the next token depends on everything before it. The law of
the first two emitted tokens must be the target's own, whatever the drafter does.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
from luck import Luck
from torch import Tensor
from toys import tree

from outrider.core.drafting import Context
from outrider.core.drafting.chain import ChainSampler
from outrider.core.sampling import accept
from outrider.core.sampling.accept import Accepted
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings

V, DEPTH = 3, 2  # vocabulary; tokens whose joint law is compared
PLAIN = Settings(temperature=1.0, top_p=1.0)


@cache
def law(seed: int, prefix: tuple[int, ...]) -> Tensor:
    """Logits [V] of a random but fixed table."""
    g = torch.Generator().manual_seed(hash((seed, *prefix)) % (1 << 31))
    return torch.randn(V, generator=g, dtype=torch.float64) * 1.5


Proposer = Callable[[Luck, tuple[int, ...], Sampler], DraftTree]


def emitted_law(propose: Proposer, settings: Settings) -> dict[tuple[int, ...], float]:
    """Exact law of the first DEPTH tokens when rounds of `propose` and the rejection rule follow each other."""
    total: dict[tuple[int, ...], float] = defaultdict(float)
    for luck in Luck().rounds():
        text: tuple[int, ...] = ()
        while len(text) < DEPTH:
            sampler = Sampler(settings, Noise(0))
            sampler.commit(text)
            guess = propose(luck, text, sampler)
            rows = [
                law(1, (*text, *(guess.ids[above] for above in guess.path(node)))) for node in range(-1, len(guess))
            ]
            verdict = accept.rejection(torch.stack(rows), guess, sampler, len(text), luck)
            text = (*text, *verdict.tokens.tolist())
        total[text[:DEPTH]] += luck.weight
    return total


def true_law(settings: Settings) -> dict[tuple[int, ...], float]:
    sampler = Sampler(settings, Noise(0))
    result = {}
    for text in itertools.product(range(V), repeat=DEPTH):
        p = 1.0
        for i, token in enumerate(text):
            p *= float(sampler.distribution(law(1, text[:i]), text[:i])[token])
        result[text] = p
    return result


def error(propose: Proposer, settings: Settings = PLAIN) -> float:
    got, want = emitted_law(propose, settings), true_law(settings)
    assert math.isclose(sum(got.values()), 1.0, abs_tol=1e-9)
    return max(abs(got[text] - want[text]) for text in want)


def drawn(q: Callable[[tuple[int, ...], Sampler], Tensor], length: int, keep: bool = True) -> Proposer:
    """A chain of `length` tokens, each drawn from q; `probs` told if `keep`."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        path: list[int] = []
        laws = []
        for _ in range(length):
            row = q((*text, *path), sampler)
            laws.append(row)
            path.append(luck.draw("draft", len(text) + len(path), row))
        return tree(path, None, torch.stack(laws) if keep else None)

    return propose


def other_model(prefix: tuple[int, ...], sampler: Sampler) -> Tensor:
    return sampler.distribution(law(2, prefix))


def same_model(prefix: tuple[int, ...], sampler: Sampler) -> Tensor:
    return sampler.distribution(law(1, prefix))


def nodes(accepted: Accepted) -> list[int]:
    return [row - 1 for row in accepted.path[1 : 1 + int(accepted.count)].tolist()]


def fixed(*tokens: int) -> Proposer:
    return lambda luck, text, sampler: tree(tokens)


def copies(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
    """Depends on the text, like prompt lookup, and is sometimes silent."""
    return tree([text[-1], text[0]] if text else [])


def static(parents: Sequence[int], tokens: Sequence[int]) -> Proposer:
    """A tree whose tokens do not depend on anything."""
    return lambda luck, text, sampler: tree(tokens, parents)


def dynamic(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
    """A tree of the likeliest tokens of another model; its form depends on what that model thinks."""
    q = other_model(text, sampler)
    best = q.argsort(descending=True).tolist()
    if float(q[best[0]]) > 0.6:
        return tree([best[0], other_best(text, best[0], sampler), best[1]], [-1, 0, -1])
    return tree([best[0], best[1], other_best(text, best[1], sampler)], [-1, -1, 1])


def other_best(text: tuple[int, ...], token: int, sampler: Sampler) -> int:
    return int(other_model((*text, token), sampler).argmax())


def siblings(replaced: bool, keep: bool = True) -> Proposer:
    """Two children of the root and one below the second, all drawn from another model, its laws told."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        first_law = other_model(text, sampler)
        first = luck.draw("draft", len(text), first_law)
        second_law = first_law.clone()
        if not replaced:
            second_law[first] = 0
            if not bool(second_law.any()):  # nothing is left: one child only
                return tree([first], None, first_law[None] if keep else None)
            second_law /= second_law.sum()
        second = luck.draw("draft", len(text), second_law)
        third_law = other_model((*text, second), sampler)
        third = luck.draw("draft", len(text) + 1, third_law)
        laws = torch.stack((first_law, second_law, third_law))
        return tree([first, second, third], [-1, -1, 1], laws if keep else None)

    return propose


def grown(keep: bool = True) -> Proposer:
    """A tree of drawn tokens, whose form follows from how sure another model is before each of them is drawn.

    One child of the root or two, no second one behind a first that was drawn as 0, and one below each child where the
    model is sure enough there.
    """

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Tensor] = []

        def add(parent: int, row: Tensor) -> int:
            depth = 0 if parent < 0 else 1
            tokens.append(luck.draw("draft", len(text) + depth, row))
            parents.append(parent)
            laws.append(row)
            return len(tokens) - 1

        root = other_model(text, sampler)
        children = [add(-1, root)]
        left = root.clone()
        left[tokens[0]] = 0
        if float(root.max()) < 0.7 and tokens[0] != 0 and bool(left.any()):
            children.append(add(-1, left / left.sum()))
        for child in children:
            below = other_model((*text, tokens[child]), sampler)
            if float(below.max()) > 0.5:
                add(child, below)
        return tree(tokens, parents, torch.stack(laws) if keep else None)

    return propose


def pruned(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
    """The same tree without the leaf that turned out less likely: it is kept for its value, so its law is another one."""
    whole = grown()(luck, text, sampler)
    assert whole.probs is not None
    last = len(whole) - 1
    unlikely = float(whole.probs[last][whole.ids[last]]) < 0.5
    end = last if unlikely else len(whole)
    return whole.first(end)


@dataclass
class Drawn:
    """The private stream of one position, by the luck of the moment."""

    luck: Luck
    position: int

    def draw(self, probs: Tensor) -> int:
        return self.luck.draw("draft", self.position, probs)


def picked(
    worth_drafting: Callable[[int, float], bool], *, keep: bool = True, lengths: set[int] | None = None
) -> Proposer:
    """A chain of up to 2 tokens of another model, picked as drafters do, which ends where `worth_drafting` says so."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        stream = partial(Drawn, luck)
        context = Context(text, 2, True, sampler.chain, sampler.distribution, stream, worth_drafting)
        picks = ChainSampler(context, 2)
        while picks.add(law(2, (*text, *picks.path))):
            pass
        draft = picks.draft()
        if lengths is not None:
            lengths.add(len(picks.path))
        if draft is None:
            return tree([])
        assert draft.confidence is not None and draft.confidence.shape == draft.tokens.shape
        return draft if keep else replace(draft, probs=None)

    return propose


def sure(depth: int, confidence: float) -> bool:
    """Whatever the rule: this one says no behind text 1, and in a draft behind its first token 0."""
    low, high = ((0.65, 0.7), (0.7, 0.75))[depth]
    return not low < confidence < high


SETTINGS = [
    PLAIN,
    Settings(temperature=0.6, top_p=1.0),
    Settings(temperature=1.0, top_k=2, top_p=1.0),
    Settings(temperature=1.0, top_p=0.7),
    Settings(temperature=0),
    Settings(temperature=1.0, top_p=1.0, frequency_penalty=0.7, repeat_penalty=1.3),
]
QUICK = [  # every kind of draft with every setting takes long
    pytest.param(settings, marks=() if settings in (PLAIN, SETTINGS[4]) else pytest.mark.thorough)
    for settings in SETTINGS
]


@pytest.mark.parametrize("settings", QUICK, ids=str)
@pytest.mark.parametrize(
    "propose",
    [
        fixed(),
        fixed(1),
        fixed(0, 2, 1),
        copies,
        drawn(other_model, 1),
        drawn(other_model, 2),
        drawn(same_model, 2),
        drawn(other_model, 2, keep=False),
        static([-1, -1, 0, 1], [1, 2, 0, 1]),
        static([-1, 0, 0, -1, 3], [0, 1, 1, 2, 0]),
        dynamic,
        siblings(replaced=False),
        siblings(replaced=True),
        siblings(replaced=False, keep=False),
        grown(),
        grown(keep=False),
        picked(sure),
        picked(sure, keep=False),
    ],
    ids=[
        *("plain", "one", "three", "copies", "q1", "q2", "q=p", "q-withheld"),
        *("tree", "twins", "dynamic", "siblings", "siblings-again", "siblings-withheld"),
        *("grown", "grown-withheld", "stopped", "stopped-withheld"),
    ],
)
def test_the_law_is_the_targets(propose: Proposer, settings: Settings) -> None:
    assert error(propose, settings) < 1e-9


def trimmed(keep: bool) -> Proposer:
    """Draws two tokens but drops what follows a sampled 0 (itself included): kept nodes depend on their own values."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        whole = drawn(other_model, 2)(luck, text, sampler)
        assert whole.probs is not None
        cut = whole.ids.index(0) if 0 in whole.ids else len(whole)
        return tree(whole.ids[:cut], None, whole.probs[:cut] if keep else None)

    return propose


def test_a_draft_trimmed_by_its_values_is_exact_without_probs() -> None:
    assert error(trimmed(keep=False)) < 1e-9


def test_a_draft_trimmed_by_its_values_must_not_keep_probs() -> None:
    assert error(trimmed(keep=True)) > 1e-3  # why the contract forbids it, and proof that this test can fail


def test_where_a_chain_stops_hangs_on_what_was_drawn() -> None:
    """Else the law of stopped chains above would show little."""
    found: dict[tuple[int, ...], set[int]] = {(): set(), (1,): set()}
    for text, lengths in found.items():
        for luck in Luck().rounds():
            picked(sure, lengths=lengths)(luck, text, Sampler(PLAIN, Noise(0)))
    assert found == {(): {1, 2}, (1,): {0}}


def test_a_chain_must_not_stop_by_what_was_drawn() -> None:
    """The same confidence, asked one token late: whether a token stays hangs on what is known only behind it."""

    def late(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        whole = picked(lambda depth, confidence: True)(luck, text, sampler)
        assert whole.probs is not None
        behind = [float(law(2, (*text, *whole.ids[: depth + 1])).softmax(-1).max()) for depth in range(2)]
        end = next((depth for depth in range(2) if not sure(depth, behind[depth])), 2)
        return whole.first(end)

    assert error(late) > 1e-3


def test_a_tree_must_not_be_pruned_by_its_values() -> None:
    assert error(pruned) > 1e-3


def test_siblings_must_tell_the_law_that_the_earlier_ones_left() -> None:
    """Drawn without replacement but told as if with: the law moves, so this test can fail."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        guess = siblings(replaced=False)(luck, text, sampler)
        assert guess.probs is not None
        if len(guess) > 1:
            guess.probs[1] = guess.probs[0]
        return guess

    assert error(propose) > 1e-3


def lying(keep: bool) -> Proposer:
    """Draws from one law and tells another."""

    def propose(luck: Luck, text: tuple[int, ...], sampler: Sampler) -> DraftTree:
        tokens = drawn(other_model, 1)(luck, text, sampler).ids
        return tree(tokens, None, torch.tensor([[0.8, 0.1, 0.1]], dtype=torch.float64) if keep else None)

    return propose


def test_a_liar_is_harmless_once_its_probs_are_dropped() -> None:
    assert error(lying(keep=False)) < 1e-9
    assert error(lying(keep=True)) > 1e-3


def test_match_walks_while_the_target_agrees() -> None:
    settings = Settings(temperature=1.0, top_p=1.0)
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    sampler = Sampler(settings, Noise(4))
    own = [sampler.token(row, 10 + i) for i, row in enumerate(logits)]
    whole = accept.match(logits, tree(own[:4]), sampler, 10)
    assert (nodes(whole), whole.tokens.tolist(), whole.choices) == ([0, 1, 2, 3], own, None)
    for wrong in range(4):
        draft = own[:4]
        draft[wrong] = (draft[wrong] + 1) % 40
        verdict = accept.match(logits, tree(draft), sampler, 10, choices=True)
        assert (int(verdict.count), verdict.tokens[-1]) == (wrong, own[wrong])
        assert verdict.choices is not None
        assert verdict.choices.tolist() == own


def test_match_draws_every_token_from_the_targets_law() -> None:
    """Under match each emitted token is the target's own draw of its position, so its law is exact for any draft."""
    sampler_for: Iterator[Sampler] = (Sampler(PLAIN, Noise(seed)) for seed in itertools.count())
    counts: dict[tuple[int, int], int] = defaultdict(int)
    n = 4000
    for _ in range(n):
        sampler = next(sampler_for)
        rows = torch.stack([law(1, ()), law(1, (1,))])
        verdict = accept.match(rows, tree([1]), sampler, 0)
        first, *rest = verdict.tokens.tolist()
        second = rest[0] if rest else sampler.token(law(1, (first,)), 1)
        counts[first, second] += 1
    sampler = Sampler(PLAIN, Noise(0))
    chi = 0.0
    for first, second in itertools.product(range(V), repeat=2):
        p = float(sampler.distribution(law(1, ()))[first] * sampler.distribution(law(1, (first,)))[second])
        chi += (counts[first, second] - n * p) ** 2 / (n * p)
    assert chi < 8 + 5 * 4


def test_match_walks_a_tree_to_the_child_that_the_target_names() -> None:
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    sampler = Sampler(PLAIN, Noise(4))
    parents = [-1, -1, 1, 1, 3]  # the target's path: node 1, then 3
    own = [sampler.token(logits[0], 10), sampler.token(logits[2], 11), sampler.token(logits[4], 12)]
    tokens = [(own[0] + 1) % 40, own[0], (own[1] + 1) % 40, own[1], (own[2] + 1) % 40]
    verdict = accept.match(logits, tree(tokens, parents), sampler, 10, choices=True)
    assert (nodes(verdict), verdict.tokens[-1]) == ([1, 3], own[2])
    assert verdict.choices is not None
    depths = [10, 11, 11, 12, 12, 13]
    assert verdict.choices.tolist() == [sampler.token(row, at) for row, at in zip(logits, depths, strict=True)]


def test_typical_keeps_the_longest_likely_path_and_is_greedy_when_cold() -> None:
    """Entropy 0.33 asks for more than 0.09, the smaller of the two bounds; an unlikely token ends its branch."""
    rows = torch.log(torch.tensor([[0.9, 0.1 - 1e-6, 1e-6], [0.5, 0.45, 0.05], [0.2, 0.2, 0.6], [1 / 3] * 3]))
    guess = tree([1, 2, 0], [-1, 0, -1])
    warm = Sampler(PLAIN, Noise(1))
    assert nodes(accept.typical(rows, guess, warm, 0)) == [0]  # 0.1 is enough, 0.05 is not; as long as [2], and first
    longer = tree([1, 1, 0], [-1, 0, -1])
    assert nodes(accept.typical(rows, longer, warm, 0)) == [0, 1]
    cold = Sampler(Settings(temperature=0), Noise(1))
    assert nodes(accept.typical(rows, longer, cold, 0)) == [2]
