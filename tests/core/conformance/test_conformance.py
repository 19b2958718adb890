"""The conformance kit: good drafters pass, and for every check there is one that breaks the contract and is caught."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import toys

from outrider.core import conformance
from outrider.core.conformance import NAMES, Check, check, failures
from outrider.core.drafting import Committed, Context, Draft, Drafter, Needs, Shape, Stateless
from outrider.core.drafting.chain import ChainSampler
from outrider.core.model.model import TargetModel

pytestmark = pytest.mark.thorough
THIRD_PARTY = Path(__file__).parents[2] / "fixtures" / "third_party"
PROMPTS = [[5, 9, 13, 9, 5, 9, 13, 2, 7], [1, 2, 3, 4, 1, 2, 3]]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for toys, whose laws are flat."""
    monkeypatch.setattr(conformance, "DRAWS", 160)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """Flat enough that several tokens are likely."""
    return toys.target(sharp=0.3)


def verdicts(target: TargetModel, make: Callable[[TargetModel], Drafter], *names: str) -> dict[str, Check]:
    """Every check, or those named, by name."""
    return {one.name: one for one in check(target, make, PROMPTS, names=names or NAMES)}


class Oracle(Stateless):
    """Asks a copy of the target, greedily or with the engine's own noise; every third token is wrong on purpose.

    It keeps the conversation in a list of its own, as a drafter with states would, and guesses from that list.
    """

    def __init__(self, target: TargetModel) -> None:
        self.shape = Shape(nodes=8, depth=8)
        self.model = TargetModel(target.decoder, target.info, target.context)
        self.heard: list[int] = []
        self.scratch = torch.zeros(64 << 10)  # what a real one would hold

    def reset(self) -> None:
        self.heard = []

    def advance(self, step: Committed) -> None:
        assert step.start == len(self.heard)
        self.heard += step.tokens.tolist()

    def rewind(self, length: int) -> None:
        del self.heard[length:]

    def fork(self) -> Oracle:
        twin = type(self)(self.model)
        twin.heard = list(self.heard)
        return twin

    def propose(self, context: Context) -> Draft | None:
        return Draft(torch.tensor(self.guess(context)))

    def guess(self, context: Context) -> list[int]:
        path: list[int] = []
        while len(path) < min(context.nodes, 4):
            ids = [*self.heard, *path]
            self.model.rewind(0)
            row = self.model.forward(ids, last=True).logits
            token = int(context.sample(row, len(ids), path)[0])
            path.append(token if (len(ids) + 1) % 3 else (token + 1) % 48)
        return path


class Honest(Oracle):
    """Draws from a law of its own and tells it: the model's, sharper."""

    def propose(self, context: Context) -> Draft | None:
        if not context.probs:
            return super().propose(context)
        tokens: list[int] = []
        laws: list[torch.Tensor] = []
        while len(tokens) < context.nodes:
            self.model.rewind(0)
            row = self.model.forward([*self.heard, *tokens], last=True).logits[0]
            laws.append(context.to_probs(row * 6, tokens))
            tokens.append(context.rng(len(context.tokens) + len(tokens)).draw(laws[-1]))
        return Draft(torch.tensor(tokens), probs=self.told(torch.stack(laws)))

    def told(self, laws: torch.Tensor) -> torch.Tensor:
        return laws


class Stops(Honest):
    """Asks whether to go on, by how sure it is before it draws."""

    def propose(self, context: Context) -> Draft | None:
        if not context.probs:
            return super().propose(context)
        picks = ChainSampler(context, context.nodes)
        while True:
            self.model.rewind(0)
            row = self.model.forward([*self.heard, *picks.path], last=True).logits[0]
            if not picks.add(row * 6):
                return picks.draft()


class Forked(Oracle):
    """A tree: beside every token of the chain stands another one."""

    def propose(self, context: Context) -> Draft | None:
        tokens: list[int] = []
        parents: list[int] = []
        last = -1
        for token in self.guess(context)[: context.nodes // 2]:
            tokens += [(token + 5) % 48, token]
            parents += [last, last]
            last = len(tokens) - 1
        return Draft(torch.tensor(tokens, dtype=torch.int64), torch.tensor(parents, dtype=torch.int64))


def test_a_good_drafter_passes_every_check(target: TargetModel) -> None:
    found = verdicts(target, Honest)
    assert list(found) == list(NAMES)
    assert {name: one.text for name, one in found.items() if one.verdict != "ok"} == {}


def test_stopping_keeps_the_law(target: TargetModel) -> None:
    found = verdicts(target, Stops, "rejection")["rejection"]
    assert (found.verdict, "no probabilities" in found.text) == ("ok", False), found.text


def test_trees_pass_too(target: TargetModel) -> None:
    found = verdicts(target, Forked, "greedy", "rejection", "partial", "eos", "budget")
    assert {one.verdict for one in found.values()} == {"ok"}
    assert "It tells no probabilities" in found["rejection"].text


def test_a_silent_drafter_is_refused_and_not_failed(target: TargetModel) -> None:
    found = verdicts(target, lambda target: Stateless(), "greedy", "rejection", "partial", "brim", "fork", "budget")
    assert {one.verdict for one in found.values()} == {"ok", "skipped"}
    assert found["greedy"].verdict == found["budget"].verdict == "skipped"


def test_both_forms_of_a_device_drafter_are_run(target: TargetModel) -> None:
    class Wrong(toys.Bigram):
        def propose_device(self, context) -> None:
            raise RuntimeError("no such thing on a device")

    names = ("greedy", "rewind")
    assert failures(check(target, lambda target: toys.Bigram(device=True), PROMPTS, names=names)) == []
    assert "propose_device" in verdicts(target, lambda target: Wrong(device=True), "greedy")["greedy"].text


def test_a_third_party_tests_its_plugin_with_it(target: TargetModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(THIRD_PARTY))
    theirs = runpy.run_path(str(THIRD_PARTY / "tests" / "test_echo.py"))
    theirs["test_echo_keeps_the_contract"](target, PROMPTS)


# ---------------------------------------------------------------------------------------------------- breakers


class Vandal(Oracle):
    """Writes into the target's K/V."""

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target)
        self.victim = target

    def propose(self, context: Context) -> Draft | None:
        self.victim.kv(0)[1].fill_(3.0)
        return super().propose(context)


class OnlyGreedy(Oracle):
    """Its host code does not survive sampled tokens."""

    def propose(self, context: Context) -> Draft | None:
        first = context.sample(torch.zeros(1, 48), len(context.tokens), [])
        if int(first) != 0:
            raise ValueError("equal logits should give id 0")
        return super().propose(context)


class Liar(Honest):
    """Tells that the likely is unlikely."""

    def told(self, laws: torch.Tensor) -> torch.Tensor:
        flipped = torch.where(laws > 0, 1 / laws, 0)
        return flipped / flipped.sum(-1, keepdim=True)


class Elsewhere(Honest):
    """Lies where the target rules everything out, so that the text does not show it."""

    def propose(self, context: Context) -> Draft | None:
        if not context.probs:
            return super().propose(context)
        law = torch.arange(1, 49, dtype=torch.float64)
        row = self.model.forward(list(context.tokens), last=True).logits[0]
        law[row.topk(8).indices] = 0
        token = context.rng(len(context.tokens)).draw(law / law.sum())
        return Draft(torch.tensor([token]), probs=torch.full((1, 48), 1 / 48, dtype=torch.float64))


class Trims(Honest):
    """Looks at its draft, and drops it where it is not the likeliest."""

    def propose(self, context: Context) -> Draft | None:
        draft = super().propose(context)
        assert draft is not None
        dropped = draft.probs is not None and int(draft.tokens[0]) != int(draft.probs[0].argmax())
        return None if dropped else draft


class SureAfterwards(Honest):
    """Says how sure it is by the chance of what it drew."""

    def propose(self, context: Context) -> Draft | None:
        draft = super().propose(context)
        if draft is None or draft.probs is None or context.worth_drafting is None:
            return draft
        held = draft.probs.gather(1, draft.tokens[:, None])[:, 0].tolist()
        end = next((depth for depth, chance in enumerate(held) if not context.worth_drafting(depth, chance)), len(held))
        return Draft(draft.tokens[:end], probs=draft.probs[:end])


class KeepsDrafts(Oracle):
    """What was rejected of a draft stays in its memory for a round."""

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target)
        self.drafted: list[int] = []
        self.stale: list[int] = []

    def advance(self, step: Committed) -> None:
        super().advance(step)
        self.stale = self.drafted[step.path.shape[0] :] if step.path.numel() else []

    def propose(self, context: Context) -> Draft | None:
        self.heard += self.stale
        self.drafted = self.guess(context)
        del self.heard[len(self.heard) - len(self.stale) :]
        return Draft(torch.tensor(self.drafted))


class NeverCuts(Oracle):
    """Deaf to rewind."""

    def rewind(self, length: int) -> None:
        """Not today."""

    def advance(self, step: Committed) -> None:
        self.heard += step.tokens.tolist()


class NeedsStates(Oracle):
    """Takes it for granted that states come with every token."""

    needs = Needs(hidden=(1,))

    def advance(self, step: Committed) -> None:
        assert step.hidden is not None or step.start == 0
        super().advance(step)


class ShortBuffer(Oracle):
    """Its buffer ends before the context does."""

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target)
        self.buffer = torch.zeros(target.context - 6)

    def advance(self, step: Committed) -> None:
        super().advance(step)
        self.buffer[len(self.heard) - 1] = 1.0


class NoCut(Oracle):
    """Cannot go back by a few tokens, as is asked after an end inside a draft."""

    def rewind(self, length: int) -> None:
        if len(self.heard) - length < 8:
            raise ValueError("too little to cut")
        super().rewind(length)


class Hoards(Oracle):
    """Puts its tensors where nobody finds them again."""

    attic: list[torch.Tensor] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target)
        self.attic.append(self.scratch)


class OneHead(Oracle):
    """Its forks share the list."""

    def fork(self) -> Oracle:
        twin = type(self)(self.model)
        twin.heard = self.heard
        return twin


class Greedy(Oracle):
    """Always four nodes."""

    def propose(self, context: Context) -> Draft | None:
        return Draft(torch.tensor([1, 2, 3, 4]))


class Restless(Oracle):
    """Every question moves it on."""

    def __init__(self, target: TargetModel) -> None:
        super().__init__(target)
        self.asked = 0

    def propose(self, context: Context) -> Draft | None:
        self.asked += 1
        return Draft((torch.tensor(self.guess(context)) + self.asked) % 48)


BREAKERS: list[tuple[str, type[Oracle], str]] = [
    ("greedy", Vandal, "without the drafter"),
    ("sampled", OnlyGreedy, "equal logits should give id 0"),
    ("rejection", Liar, "law"),
    ("rejection", Elsewhere, "not drawn from the law"),
    ("rejection", Trims, "law"),
    ("rejection", SureAfterwards, "law"),
    ("partial", KeepsDrafts, "right in part"),
    ("rewind", NeverCuts, "After an edit"),
    ("switch", NeedsStates, "AssertionError"),
    ("brim", ShortBuffer, "IndexError"),
    ("eos", NoCut, "too little to cut"),
    ("memory", Hoards, "stay behind"),
    ("fork", OneHead, "A fork went its own way"),
    ("budget", Greedy, "4 tokens where"),
    ("no_trace", Restless, "left a trace"),
]


def test_every_check_has_a_breaker() -> None:
    assert {name for name, _, _ in BREAKERS} == set(NAMES)


@pytest.mark.parametrize(("name", "make", "words"), BREAKERS, ids=[f"{n}-{m.__name__}" for n, m, _ in BREAKERS])
def test_who_breaks_the_contract_is_caught(target: TargetModel, name: str, make: type[Oracle], words: str) -> None:
    found = verdicts(target, make, name)[name]
    assert (found.verdict, words in found.text) == ("failed", True), found.text


def test_what_breaks_is_called_by_its_name(target: TargetModel) -> None:
    told = verdicts(target, OnlyGreedy, "sampled")["sampled"].text
    assert told.startswith("The drafter OnlyGreedy failed in propose: ValueError")

    class Named:
        drafter = "theirs"

        def __call__(self, target: TargetModel) -> Drafter:
            return OnlyGreedy(target)

    assert verdicts(target, Named(), "sampled")["sampled"].text.startswith("The drafter theirs failed in propose")
