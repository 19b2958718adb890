"""The job behind `outrider verify`: the text of every drafter against the plain one, on this machine, greedy and sampled.

Passes of different widths add their sums up in different orders, so that two tokens that are as good as equally likely may
change places. Such a near-tie is told from a mistake by the same prefix in fp32. In exact mode there are no near-ties.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from torch import Tensor

from outrider.core.base.errors import Cancelled, OutriderError, UsageError
from outrider.core.base.protocol import (
    BenchPrompt,
    DrafterChoice,
    Generate,
    Message,
    Notice,
    Progress,
    Report,
    Sampling,
    Verify,
)
from outrider.core.decode.round_result import RoundResult
from outrider.core.drafting.active import ActiveDrafter
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler
from outrider.core.session.answer import Answer, AnswerRequest
from outrider.core.session.answer_runs import PLAIN, Answered, Prompting, Quiet, parting
from outrider.core.session.chat_cache import CHUNK
from outrider.core.session.engine import Engine, Say, check_choice

from . import verify_chat
from .drafter_test import usual
from .verify_chat import TOKENS, TURNS, Asked, ChatTally

TEMPERATURE = 0.8  # of sampled text, where nothing is said
NEAR = 1e-4  # gap in fp32 below which rounding may decide
NEAR_ROUNDED = 0.05  # the same where weights or sums are rounded
LESS = 16  # bits of memory for each parameter, below which weights are quantised

Mode = Literal["greedy", "sampled"]


class Said(msgspec.Struct):
    """What one of two answers said. `gap`: between its two best scores, of the pass that said it; None: not known."""

    id: int | None  # None: the answer ended here
    text: str
    gap: float | None = None


class Parting(msgspec.Struct, kw_only=True):
    """Where a drafted answer leaves the plain one."""

    drafter: str
    mode: Mode
    prompt: str
    turn: int
    token: int  # of the answer, from 0
    plain: Said
    drafted: Said
    gap: float | None = None  # between the two best scores in fp32
    flow: str = ""  # of an answer of the chat, see `verify_chat`; "": it reused nothing
    verdict: Literal["near-tie", "difference", "unchecked"] = "difference"
    why: str = ""  # it was not checked


class Tally(msgspec.Struct, kw_only=True):
    """One drafter in one mode. `tokens`: compared ones."""

    drafter: str
    mode: Mode
    answers: int = 0
    identical: int = 0
    near_ties: int = 0
    differences: int = 0
    unchecked: int = 0
    tokens: int = 0
    passes: int = 0
    tokens_per_pass: float = 0.0

    def add(self, plain: Answered, ours: Answered) -> None:
        """Count one answer."""
        want, got = plain.report.token_ids, ours.report.token_ids
        decoded = self.tokens_per_pass * self.passes + max(0, len(got) - 1)  # the first token is the prefill's
        self.answers += 1
        self.identical += want == got
        self.tokens += min(parting(want, got) + 1, max(len(want), len(got)))
        self.passes += ours.report.passes
        self.tokens_per_pass = decoded / self.passes if self.passes else 0.0


def run(engine: Engine, request: Verify, say: Say, cancelled: Callable[[], bool]) -> dict[str, Any]:
    """Everything, or what was compared until it was cancelled. Raises UsageError, and what loading raises."""
    if not request.prompts:
        raise UsageError("There are no prompts to compare with.", "Give --prompts FILE.jsonl or other --categories.")
    if request.rule == "typical":
        raise UsageError(
            "Typical acceptance is lossy: it keeps tokens that the model alone would not have written.",
            "Verify --rule match or --rule rejection.",
        )
    for choice in request.drafters:
        check_choice(choice)
    model = engine.load(request.model, request.id, say, cancelled)
    loaded = model.loaded

    def report(text: str) -> None:
        say(Notice(text, request.id))

    pinned = [_pinned(choice, engine.drafter(model, choice, report)) for choice in request.drafters]
    del model  # its memory may be needed for another
    job = _Job(engine, msgspec.structs.replace(request, drafters=pinned), say, cancelled)
    finished = job.compare() and job.chat()
    if finished:
        finished = job.recheck(loaded.dtype == "float32" and loaded.bits >= LESS)
    tallies, chat, partings = job.results()
    return {
        "model": request.model.model,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "threads": loaded.threads,
        "exact": request.model.exact is not None,
        "rule": request.rule,
        "settings": {
            "load": msgspec.to_builtins(request.model),
            "sampling": {mode: msgspec.to_builtins(sampling) for mode, sampling in job.modes.items()},
            "prompts": len(request.prompts),
        },
        "finished": finished,
        "same": finished and not any(tally.differences or tally.unchecked for tally in (*tallies, *chat)),
        "drafters": [msgspec.to_builtins(tally) for tally in tallies],
        "partings": [msgspec.to_builtins(parting) for parting in partings if not parting.flow],
        "chat": {
            "drafters": [msgspec.to_builtins(tally) for tally in chat],
            "partings": [msgspec.to_builtins(parting) for parting in partings if parting.flow],
        },
    }


class _Asking(Prompting):
    """Answers under the rule that was asked for."""

    def __init__(
        self, engine: Engine, request: Verify, sampling: Sampling, say: Say, cancelled: Callable[[], bool]
    ) -> None:
        super().__init__(engine, request, sampling, say, cancelled)
        self._rule = request.rule

    def request(self, messages: list[Message], choice: DrafterChoice, limit: int | None = None) -> Generate:
        """As `Prompting`; where the model has no chat template, the turns as text that it continues."""
        request = msgspec.structs.replace(super().request(messages, choice, limit), rule=self._rule)
        model = self._engine.model
        if model is None or model.tokenizer.template is not None:
            return request
        return msgspec.structs.replace(request, messages=None, prompt="\n\n".join(one.content for one in messages))


@dataclass(frozen=True, slots=True)
class _Place:
    """A parting, and what the models saw there."""

    parting: Parting
    order: AnswerRequest
    prefix: list[int]  # tokens of the answer before it

    def gap(self, logits: Tensor, sampler: Sampler, path: Sequence[int] = ()) -> float | None:
        """Between the two best scores of a row [V]; None where the filters left one id."""
        _, scores = sampler.compared(logits, len(self.order.ids) + len(self.prefix), path)
        best = scores.topk(min(2, scores.shape[0])).values.tolist()
        return best[0] - best[1] if len(best) > 1 else None


class _Job:
    """One request."""

    def __init__(self, engine: Engine, request: Verify, say: Say, cancelled: Callable[[], bool]) -> None:
        self._engine, self._request, self._say, self._cancelled = engine, request, say, cancelled
        self.modes = _modes(request)
        self._tallies = {
            (choice.name, mode): Tally(drafter=choice.name, mode=mode)
            for mode in self.modes
            for choice in request.drafters
        }
        self._chat: dict[tuple[str, str], ChatTally] = {}
        self._places: list[_Place] = []
        self._done = 0

    def compare(self) -> bool:
        """All answers, plain and drafted; False if it was cancelled."""
        try:
            for mode, sampling in self.modes.items():
                asking = _Asking(self._engine, self._request, sampling, self._say, self._cancelled)
                for prompt in self._request.prompts:
                    self._prompt(asking, mode, prompt)
        except Cancelled:
            return False
        return True

    def chat(self) -> bool:
        """A chat in which each answer reuses what the ones before it left in the cache; False if it was cancelled."""
        most = min(TOKENS, self.modes["greedy"].max_tokens or TOKENS)
        sampling = msgspec.structs.replace(self.modes["greedy"], max_tokens=most)
        asking = _Asking(self._engine, self._request, sampling, self._say, self._cancelled)
        choices = [PLAIN, *self._request.drafters]

        def ask(messages: list[Message], choice: DrafterChoice) -> Report:
            total = (TURNS + 2) * len(choices)
            self._tell("chat", sum(tally.answers for tally in self._chat.values()), total, "answers", _named(choice))
            return asking.answer(messages, choice, keep=True).report

        try:
            asked = verify_chat.chat(self._request.prompts, lambda messages: asking.answer(messages, PLAIN).report)
            parted = list[tuple[Asked, DrafterChoice, list[int]]]()
            for one, choice, report in verify_chat.compare(asked, choices, ask):
                tally = ChatTally(drafter=choice.name, flow=one.flow)
                tally = self._chat.setdefault((choice.name, one.flow), tally)
                tally.answers += 1
                tally.identical += report.token_ids == one.want
                if report.token_ids != one.want:
                    parted.append((one, choice, list(report.token_ids)))
            for one, choice, got in parted:
                generate = asking.request(one.messages, choice)
                self._places.append(self._place(generate, ("greedy", "chat", one.turn), one.want, got, one.flow))
        except Cancelled:
            return False
        return True

    def recheck(self, pure: bool) -> bool:
        """Say of every parting whether rounding may decide there; `pure`: the model is fp32 throughout. False if cancelled."""
        if self._request.model.exact is not None or not self._places:
            return True
        try:
            self._load_fp32()
            for number, place in enumerate(self._places):
                if self._cancelled():
                    return False
                self._tell("recheck", number, len(self._places), "differences", place.parting.prompt)
                gap = self._fp32_gap(place)
                near = gap is not None and gap < (NEAR if pure else NEAR_ROUNDED)
                place.parting.gap, place.parting.verdict = gap, "near-tie" if near else "difference"
        except Cancelled:
            return False
        except OutriderError as error:
            for place in self._places:
                place.parting.why = f"The model could not be loaded in fp32: {error.message}"
        return True

    def results(self) -> tuple[list[Tally], list[ChatTally], list[Parting]]:
        """Everything that was found."""
        partings = [place.parting for place in self._places]
        for (name, mode), tally in self._tallies.items():
            self._judge(tally, [one for one in partings if (one.drafter, one.mode, one.flow) == (name, mode, "")])
        for (name, flow), tally in self._chat.items():
            self._judge(tally, [one for one in partings if (one.drafter, one.flow) == (name, flow)])
        return list(self._tallies.values()), list(self._chat.values()), partings

    @staticmethod
    def _judge(tally: Tally | ChatTally, partings: Sequence[Parting]) -> None:
        verdicts = [parting.verdict for parting in partings]
        tally.near_ties, tally.differences = verdicts.count("near-tie"), verdicts.count("difference")
        tally.unchecked = verdicts.count("unchecked")

    # ------------------------------------------------------------------ answers

    def _prompt(self, asking: _Asking, mode: Mode, prompt: BenchPrompt) -> None:
        drafters = self._request.drafters
        total = len(self.modes) * (1 + len(drafters)) * sum(len(prompt.turns) for prompt in self._request.prompts)

        def begins(choice: DrafterChoice) -> None:
            self._tell("verify", self._done, total, "answers", f"{prompt.id}, {mode}, {_named(choice)}")
            self._done += 1

        asking.begins = begins
        history: list[Message] = []
        for turn, (plain, *others) in enumerate(asking.turns(prompt, drafters)):
            history.append(Message("user", prompt.turns[turn]))
            for choice, ours in zip(drafters, others, strict=True):
                self._tallies[choice.name, mode].add(plain, ours)
                if ours.report.token_ids != plain.report.token_ids:
                    generate = asking.request(list(history), choice)
                    self._note(generate, (mode, prompt.id, turn), plain.report.token_ids, ours.report.token_ids)
            history.append(Message("assistant", plain.report.text, plain.report.thinking))

    def _note(self, generate: Generate, where: tuple[Mode, str, int], want: list[int], got: list[int]) -> None:
        """Keep where a drafted answer leaves the plain one."""
        place = self._place(generate, where, want, got)
        self._places.append(place)
        plain, drafted = place.parting.plain, place.parting.drafted
        plain.gap = self._gap_again(place, generate, PLAIN, plain.id)
        drafted.gap = self._gap_again(place, generate, generate.drafter, drafted.id)

    def _place(
        self, generate: Generate, where: tuple[Mode, str, int], want: list[int], got: list[int], flow: str = ""
    ) -> _Place:
        model = self._engine.model
        assert model is not None
        (mode, prompt, turn), at = where, parting(want, got)
        plain, drafted = (
            Said(token, "" if token is None else model.tokenizer.decode([token]))
            for token in (next(iter(ids[at:]), None) for ids in (want, got))
        )
        found = Parting(
            drafter=generate.drafter.name,
            mode=mode,
            prompt=prompt,
            turn=turn,
            token=at,
            plain=plain,
            drafted=drafted,
            flow=flow,
            verdict="unchecked" if generate.model.exact is None else "difference",
        )
        return _Place(found, self._engine.order(model, generate, time.perf_counter()), want[:at])

    def _gap_again(self, place: _Place, generate: Generate, choice: DrafterChoice, said: int | None) -> float | None:
        """The gap in the pass that said a token: the answer is made anew up to there. None if it goes another way now."""
        model, at, gaps = self._engine.model, len(place.prefix), list[float | None]()
        assert model is not None

        def watch(done: RoundResult, sampler: Sampler) -> None:
            first = len(model.cache.tokens) - len(done.tokens) - len(place.order.ids)
            if first <= at < first + len(done.tokens):
                path = done.tokens[: at - first]
                gaps.append(place.gap(done.logits[done.rows[at - first]], sampler, path))

        order = replace(place.order, drafter=choice, watch=watch)  # the same limit, as drafts are shorter before it
        control = Quiet(lambda: bool(gaps) or self._cancelled())
        self._engine.forget()
        choose = self._engine.chooser(model, generate, self._say, control)
        report = Answer(order, model.cache, model.policy, choose, lambda event: None).run(control)
        if self._cancelled():
            raise Cancelled
        again = report.token_ids[: at + 1] == place.prefix + ([] if said is None else [said])
        return gaps[0] if again and gaps else None

    # ------------------------------------------------------------------ fp32

    def _load_fp32(self) -> None:
        """The same model in fp32, packed matrices as they are."""
        model = self._engine.model
        if model is None or model.loaded.dtype != "float32":
            del model  # memory is free with the last reference
            choice = msgspec.structs.replace(self._request.model, dtype="fp32")
            self._engine.load(choice, self._request.id, self._say, self._cancelled)

    def _fp32_gap(self, place: _Place) -> float | None:
        model = self._engine.model
        assert model is not None
        target, ids = model.cache.target, [*place.order.ids, *place.prefix]
        self._engine.forget()
        sampler = Sampler(place.order.settings, Noise(place.order.seed), place.order.ids)
        sampler.commit(place.prefix)
        logits = None
        for at in range(0, len(ids), CHUNK):
            logits = target.forward(ids[at : at + CHUNK], last=True).logits
            target.commit(min(at + CHUNK, len(ids)))
        target.rewind(0)
        assert logits is not None
        return place.gap(logits[0], sampler)

    def _tell(self, phase: str, done: int, total: int, unit: str, note: str) -> None:
        self._say(Progress(self._request.id, phase, done, total, unit, note))


def _pinned(choice: DrafterChoice, drafter: ActiveDrafter | None) -> DrafterChoice:
    """As many tokens each round as are usual: a policy might find that drafting does not pay, and then nothing would be compared.

    Where several compete, that is part of what is compared.
    """
    if choice.tokens is not None or choice.name == "auto" or drafter is None or len(drafter.parts) > 1:
        return choice
    return msgspec.structs.replace(choice, tokens=usual(drafter.shape))


def _modes(request: Verify) -> dict[Mode, Sampling]:
    """Greedy and, where it is promised to be the same, sampled text.

    Sampled without filters unless they are asked for: where the last token inside one falls out by rounding, scores say nothing.
    """
    asked = request.sampling
    modes: dict[Mode, Sampling] = {"greedy": msgspec.structs.replace(asked, temperature=0.0)}
    if request.rule == "match" and asked.temperature != 0:
        filters = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "temperature": TEMPERATURE, "seed": 0}
        missing = {name: value for name, value in filters.items() if getattr(asked, name) is None}
        modes["sampled"] = msgspec.structs.replace(asked, **missing)
    return modes


def _named(choice: DrafterChoice) -> str:
    return "plain" if choice.name == PLAIN.name else choice.name
