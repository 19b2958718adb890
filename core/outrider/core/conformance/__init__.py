"""Whether a drafter keeps the contract of `drafting`, shown on a loaded target. Also for authors of plugins:

    from outrider.core.conformance import check, failures

    assert not failures(check(target, lambda target: MyDrafter(target), [prompt_ids]))

Every check answers `ok`; `skipped`, where this drafter or this text gave it nothing to judge; or `failed`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import torch
from torch import Tensor

from outrider.core.base.errors import OutriderError
from outrider.core.drafting.active import GuardedDrafter, is_interrupt, words_of
from outrider.core.drafting.contract import Draft, Drafter
from outrider.core.drafting.draft_check import flaw
from outrider.core.model.capture import capture_for
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings

from .law import Law
from .rig import ANSWER, Ask, Broken, Make, Nothing, Rig, Run, WatchedDrafter, as_good, name_of, right, tokens_of

SAMPLED = Settings(temperature=0.8, top_p=1.0)
SEEDS = (1, 2)
PROMPT = 192  # the newest tokens of a prompt that are used
REPEATED, TIMES = 24, 4  # tokens of a text that repeats itself
ROOM = 24  # tokens of an answer that ends at the context's brim
KEPT = 64 << 10  # bytes that may stay after closing
DRAWS, LEAST_DRAWS = 600, 100
LAW_SECONDS = 40.0
LOOKS = 6  # drafts of one answer that are compared with a fresh drafter's

NAMES = (
    *("greedy", "sampled", "rejection", "partial", "rewind", "switch"),
    *("brim", "eos", "memory", "fork", "budget", "no_trace"),
)

Tell = Callable[[str, int, int], None]


class Check(msgspec.Struct, frozen=True):
    """One check and what it found, in a sentence."""

    name: str
    verdict: Literal["ok", "skipped", "failed"]
    text: str


def check(
    target: TargetModel,
    make: Make,
    prompts: Sequence[Sequence[int]],
    *,
    trusted: bool = True,
    tell: Tell | None = None,
    names: Sequence[str] = NAMES,
) -> list[Check]:
    """Run every check, or those named. `make` gives a fresh drafter for a target, which is called `make.drafter` in what is
    found, if there is such a name; `prompts` are token ids.

    `target` lends its weights alone. `tell` gets the name and number of each check and how many there are. Raises what
    `make` raises at the first call.
    """
    texts = [tuple(ids[-PROMPT:]) for ids in prompts]
    texts.append(texts[0][-REPEATED:] * TIMES)  # most models continue with a repetition, and most drafters guess it
    kit = _Kit(target, make, texts, trusted)
    done = []
    try:
        for number, name in enumerate(names):
            if tell is not None:
                tell(name, number, len(names))
            done.append(_one(name, getattr(kit, name)))
    finally:
        kit.close()
    return done


def failures(checks: Sequence[Check]) -> list[str]:
    """The failed ones, a sentence each."""
    return [f"{one.name}: {one.text}" for one in checks if one.verdict == "failed"]


def _one(name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", run())
    except Nothing as reason:
        return Check(name, "skipped", str(reason))
    except Broken as reason:
        return Check(name, "failed", str(reason))
    except OutriderError as error:
        return Check(name, "failed", error.message)
    except BaseException as error:  # a plugin may raise anything anywhere, and that is what is looked for
        if is_interrupt(error):
            raise
        return Check(name, "failed", f"It raised {words_of(error)}.")


class _Kit:
    """The checks; each is a method that returns what it found, or raises Nothing or Broken."""

    def __init__(self, target: TargetModel, make: Make, prompts: list[tuple[int, ...]], trusted: bool) -> None:
        self.prompts, self.first = prompts, prompts[0]
        self.trusted = trusted
        self._lender, self._make = target, make
        self.rig = Rig(target, 3 * ANSWER + 2 * max(len(ids) for ids in prompts))
        self._inner: Drafter = make(self.rig.target)
        self._name = name_of(make, self._inner)
        self._subject: WatchedDrafter | None = None
        self._answers: dict[tuple[int, ...], Run] = {}
        self.most = 0  # draft tokens that were accepted on one prompt
        self.place: tuple[Sequence[int], int | None] = self.first, None  # a text, and the token after it

    def subject(self, *, twice: bool = False) -> WatchedDrafter:
        """The drafter, reset; a new one where the last one failed."""
        if self._subject is not None and self._subject.drafter.failed:
            self._inner = self._make(self.rig.target)
        self._subject = WatchedDrafter(self._inner, self._name, trusted=self.trusted, twice=twice)
        return self._subject

    def close(self) -> None:
        """Close the drafter."""
        if self._subject is None:
            self._inner.close()
        else:
            self._subject.close()

    def greedy(self) -> str:
        """The text at temperature 0 is that of plain decoding, in the device form too if there is one."""
        proposed = accepted = tokens = 0
        for device in (False, True):
            for ids in self.prompts:
                got = self._on_device(ids) if device else self._ridden(ids)
                if got is None:
                    break
                self.rig.same(Ask(ids), got)
                self._choose(ids, got)
                proposed += got.report.proposed
                accepted += got.report.accepted
                tokens += len(got.ids)
        if not proposed:
            raise Nothing("It proposed nothing on these prompts.")
        return f"{tokens} tokens as without it, {accepted} of {proposed} draft tokens were accepted."

    def _ridden(self, ids: tuple[int, ...]) -> Run:
        """The greedy answer to a prompt in the host form; several checks look at it, and it is made once."""
        if ids not in self._answers:
            self._answers[ids] = self.rig.run(Ask(ids), self.subject())
        return self._answers[ids]

    def _on_device(self, ids: tuple[int, ...]) -> Run | None:
        """The same drafted on the device, in rounds that are captured where that is possible; None where it cannot do that."""
        target = self.rig.target
        rig = Rig(self._lender, target.context, capture_for(target.device))
        drafter = self._make(rig.target)
        subject = WatchedDrafter(drafter, self._name, trusted=self.trusted, device=getattr(drafter, "device", False))
        try:
            return rig.run(Ask(ids), subject) if subject.watch.device else None
        finally:
            subject.close()

    def _choose(self, ids: tuple[int, ...], run: Run) -> None:
        """Go on with the prompt where most tokens were accepted, and with a place where it drafts."""
        if run.report.accepted > self.most:
            self.first, self.most = ids, run.report.accepted
        number = next((number for number, draft in enumerate(run.drafts) if draft), None)
        if number is not None:
            before = [*ids, *run.ids[: _done(run, number)]]
            self.place = before[:-1], before[-1]

    def sampled(self) -> str:
        """Under the match rule the text depends on the seed, not on the drafter."""
        proposed = 0
        for seed in SEEDS:
            ask = Ask(self.first, SAMPLED, seed)
            got = self.rig.run(ask, self.subject())
            self.rig.same(ask, got)
            proposed += got.report.proposed
        if not proposed:
            raise Nothing("It proposed nothing while tokens were sampled.")
        return f"The same text with and without it for {len(SEEDS)} seeds."

    def rejection(self) -> str:
        """Under the rejection rule the next tokens have the target's law."""
        subject = self.subject()
        subject.drafter.trusted = True
        law = Law(self.rig.target, self.rig.prefill(subject.drafter, *self.place), subject.drafter)
        began, told = time.perf_counter(), 0
        for seed in range(DRAWS):
            if time.perf_counter() - began > LAW_SECONDS:
                break
            told += law.draw(subject.drafter, seed)
        subject.judge()
        if law.n < LEAST_DRAWS:
            raise Nothing(f"{law.n} drafts in {LAW_SECONDS:.0f} s are too few to judge by.")
        return law.verdict() if told else f"It tells no probabilities. {law.verdict()}"

    def partial(self) -> str:
        """A draft that is right in part leaves the drafter as it should be: the next one is as good as a fresh drafter's."""
        ours: tuple[list[list[int]], int] = [], 0
        fresh: tuple[list[list[int]], int] = [], 0
        for ids in self.prompts:
            run = self._ridden(ids)
            self.rig.same(Ask(ids), run)
            for number in _partial(run)[:LOOKS]:
                done = _done(run, number)
                draft = self._afresh([*ids, *run.ids[:done]], ANSWER - done - 1)
                ours = [*ours[0], run.drafts[number]], ours[1] + run.steps[number + 1].accepted
                fresh = [*fresh[0], tokens_of(draft)], fresh[1] + right(draft, run.ids[done:])
        if not ours[0]:
            raise Nothing("No draft was right in part on these prompts.")
        told = as_good(ours, fresh, "drafts that were right in part")
        return f"The text is the same; after {len(ours[0])} drafts that were right in part {told}."

    def _afresh(self, tokens: list[int], most: int) -> Draft | None:
        """What the drafter proposes after a text that it gets in one step."""
        subject = self.subject()
        self.rig.prefill(subject.drafter, tokens[:-1], tokens[-1])
        draft = self.rig.draft(subject.drafter, tokens, min(subject.width, most))
        subject.judge()
        return draft

    def rewind(self) -> str:
        """After an edit in the middle of the conversation it goes on as a fresh one would."""
        subject, cache = self.subject(), self.rig.new_cache()
        whole = (*self.first, *self.rig.run(Ask(self.first), subject, cache).ids)
        edited = (*whole[: len(whole) // 2], *reversed(self.first[-8:]), *self.first)
        got = self.rig.run(Ask(edited), subject, cache)
        fresh = self.rig.run(Ask(edited), self.subject())
        self.rig.same(Ask(edited), got)
        self.rig.same(Ask(edited), fresh)
        return f"The text is the same; {as_good(got.drafted, fresh.drafted, 'an edit')}."

    def switch(self) -> str:
        """Taken up in the middle of an answer, left, and taken up again, it changes no word."""
        ask = Ask(self.first, switches=(3, 6, 9))
        got = self.rig.run(ask, self.subject())
        self.rig.same(ask, got)
        return f"The same text through 3 switches; it proposed {got.report.proposed} tokens meanwhile."

    def brim(self) -> str:
        """It comes to the end of the context without trouble."""
        rig = Rig(self._lender, len(self.first) + ROOM)
        ask = Ask(self.first, limit=None)
        subject = WatchedDrafter(self._make(rig.target), self._name, trusted=self.trusted)
        try:
            got = rig.run(ask, subject)
            rig.same(ask, got)
        finally:
            subject.close()
        left = rig.target.context - len(self.first) - len(got.ids)
        if left or got.report.finish != "length":
            raise Broken(f"The answer ended {left} tokens before the context did.")
        return f"The answer fills the context of {rig.target.context} tokens to the last one."

    def eos(self) -> str:
        """An end of the answer inside a draft ends it there, and the next turn goes on from it."""
        ids, end, inside = self._end()
        ask, subject, cache = Ask(ids, eos=end), self.subject(), self.rig.new_cache()
        got = self.rig.run(ask, subject, cache)
        more = Ask((*ids, *got.ids, *ids[:4]))
        after = self.rig.run(more, subject, cache)
        self.rig.same(ask, got)
        self.rig.same(more, after)
        if got.report.finish != "stop":
            raise Broken(f"The answer did not end at its end token, but by {got.report.finish}.")
        if not inside:
            raise Nothing("Every token that was accepted had stood in the answer before, so none could be its end.")
        return f"An end token inside a draft ends the answer after {len(got.ids)} tokens; the next turn is right too."

    def _end(self) -> tuple[tuple[int, ...], int, bool]:
        """A prompt, a token to end its answer by, and whether it was accepted there: best with another accepted after it."""
        for ids in dict.fromkeys((self.first, *self.prompts)):
            run = self._ridden(ids)
            kinds, fresh = run.report.kinds, [i for i, token in enumerate(run.ids) if token not in run.ids[:i]]
            inside = [i for i in fresh if kinds[i : i + 2] == "AA"] or [i for i in fresh if kinds[i] == "A"]
            if inside:
                return ids, run.ids[inside[-1]], True
        return self.first, self.rig.run(Ask(self.first), None).ids[-1], False

    def memory(self) -> str:
        """What it holds is free again once it is closed, though the engine may still know its name."""
        self._cycle()  # whatever the target keeps for passes of new widths
        before = _live(self.rig.target.device)
        closed = [self._cycle() for _ in range(2)]
        left = (_live(self.rig.target.device) - before) / len(closed)
        if 2 * left > KEPT:
            raise Broken(f"{left / 1e6:.1f} MB stay behind each time it is loaded and closed.")
        return "Nothing stays behind when it is closed."

    def _cycle(self) -> GuardedDrafter:
        """Load, draft, close; what the engine is left with."""
        subject = WatchedDrafter(self._make(self.rig.target), self._name, trusted=self.trusted)
        try:
            self.rig.run(replace(Ask(self.first), limit=8), subject)
        finally:
            subject.close()
        return subject.drafter

    def fork(self) -> str:
        """A fork follows its own continuation; neither it nor its end is felt by the first one."""
        subject, more = self.subject(), list(self.first[-5:])
        tokens = self.rig.prefill(subject.drafter, *self.place)
        before = tokens_of(self.rig.draft(subject.drafter, tokens, subject.width))
        other = self._branch(subject)
        other.drafter.known = subject.drafter.known
        self.rig.extend(other.drafter, tokens, more)
        self.rig.draft(other.drafter, [*tokens, *more], subject.width)
        other.judge()
        self._prune(subject, other)
        self.rig.back(tokens[:-1])
        after = tokens_of(self.rig.draft(subject.drafter, tokens, subject.width))
        subject.judge()
        if after != before:
            raise Broken(f"A fork went its own way, and the first one drafts {after} where it drafted {before}.")
        other = self._branch(subject)
        other.drafter.reset()
        self.rig.same(Ask(self.first), self.rig.run(Ask(self.first), other))
        self._prune(subject, other)
        if not before:
            raise Nothing("It proposed nothing here; its forks do no harm.")
        return "Two forks went their own ways, and its own draft stayed the same."

    def _branch(self, subject: WatchedDrafter) -> WatchedDrafter:
        """A fork under guard; unlike a fresh drafter it keeps what it knows."""
        fork = subject.watch.fork()
        return WatchedDrafter(fork, self._name, trusted=self.trusted, keep=True)

    def _prune(self, subject: WatchedDrafter, other: WatchedDrafter) -> None:
        """Close a fork, unless it is the drafter itself: one without state is its own copy."""
        if other.watch.inner is not subject.watch.inner:
            other.close()

    def budget(self) -> str:
        """It keeps to the number of nodes it is given and to the shape it announced."""
        subject = self.subject()
        tokens, shape, most = self.rig.prefill(subject.drafter, *self.place), subject.drafter.shape, 0
        for nodes in sorted({min(nodes, shape.nodes) for nodes in (1, 2, 3, 5, shape.nodes)}):
            draft = subject.watch.inner.propose(self.rig.context(subject.drafter, tokens, nodes))
            if draft is None:
                continue
            problem = flaw(draft, nodes, shape, self.rig.target.vocab)
            if problem:
                raise Broken(f"With room for {nodes} nodes it proposed {problem}.")
            if draft.depth > shape.depth:
                raise Broken(f"Its draft is {draft.depth} deep, it announced {shape.depth}.")
            most = max(most, len(tokens_of(draft)))
        if not most:
            raise Nothing("It proposed nothing here.")
        return f"At most {most} of {shape.nodes} nodes, never more than were allowed."

    def no_trace(self) -> str:
        """Being asked for a draft changes nothing: asked twice it goes on as if asked once."""
        once = self._ridden(self.first)
        got = self.rig.run(Ask(self.first), self.subject(twice=True))
        self.rig.same(Ask(self.first), got)
        if not got.report.proposed:
            raise Nothing("It proposed nothing here.")
        return f"Asked twice for each draft it proposes the same; {as_good(got.drafted, once.drafted, 'being asked twice')}."


def _partial(run: Run) -> list[int]:
    """Rounds, from 0, that drafted after a draft that was right in part."""
    rounds = []
    for number in range(1, len(run.drafts)):
        kinds = [token.kind for token in run.steps[number].tokens]
        if kinds[0] == "A" and kinds[-1] == "C" and run.drafts[number]:
            rounds.append(number)
    return rounds


def _done(run: Run, number: int) -> int:
    """Tokens of an answer that were there before a round."""
    return sum(len(step.tokens) for step in run.steps[: number + 1])


def _live(device: torch.device) -> int:
    """Bytes that tensors hold."""
    gc.collect()
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    tensors = (thing for thing in gc.get_objects() if issubclass(type(thing), Tensor))
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())
