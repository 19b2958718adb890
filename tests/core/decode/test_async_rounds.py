"""Rounds on the device: recorded once and replayed, they give the text that rounds of the host give."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import golden
import pytest
import torch
import toys
from replay import Replay

from outrider.core.base.protocol import DrafterChoice, Report, Step
from outrider.core.decode.async_rounds import AsyncRounds
from outrider.core.drafting import Context, Draft, Drafter, Needs, Shape, Stateless
from outrider.core.formats.checkpoint import describe
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.policy import Policy
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite

PROMPT = [5, 9, 13, 9, 5, 9, 13]
SETTINGS = {
    "greedy": toys.GREEDY,
    "whole": toys.SAMPLED,
    "filtered": Settings(temperature=0.8, top_p=0.9),
    "top_k": Settings(temperature=0.8, top_k=5, min_p=0.02),
    "penalised": Settings(temperature=0.8, repeat_penalty=1.2),  # the host's work
}
MIXERS = ("qwen3_5", "deepseek_v3", "nemotron_h", "lfm2")  # one of each that the toy has not
KINDS = [
    "qwen3_5",
    *(
        pytest.param(kind, marks=pytest.mark.thorough)
        for kind in (*MIXERS[1:], "llama", "gemma3", "gpt_oss", "gemma4_e")
    ),
]


def flying(capture: Capture | None = None, context: int = 256) -> TargetModel:
    """The toy with a graph runner."""
    toy = toys.target(context=context)
    return TargetModel(toy.decoder, toy.info, context, capture or Replay())


def drafters(truth: list[int], prompt: list[int], vocab: int) -> dict[str, Callable[[], Drafter | None]]:
    def knows() -> toys.Knows:
        return toys.Knows(len(prompt), truth, right=2, vocab=vocab)

    return {
        "none": lambda: None,
        "chain": knows,
        "tree": lambda: toys.Bushy(knows(), turn=1),
        "states": toys.Listener,
        "device": lambda: toys.Bigram(vocab, device=True),
    }


def spans(report: Report, steps: list[Step], seconds: float) -> None:
    """Every time that is told is one of an answer of so many `seconds`, and no reading of the clock."""
    timing = report.timing
    assert min(timing.draft_s, timing.verify_s, timing.decode_s, timing.prefill_s) >= 0
    assert timing.decode_s + timing.prefill_s <= seconds
    assert timing.draft_s + timing.verify_s <= 2 * seconds  # a draft for the next round runs beside this one's reading
    for step in steps:
        assert min(step.draft_ms, step.verify_ms, step.host_ms) >= 0
        assert step.draft_ms + step.verify_ms + step.host_ms <= 2e3 * seconds


def same(decoder: Decoder, like: TargetModel, prompt: list[int], settings: Settings) -> None:
    """Every kind of drafter on one graph runner, one answer after the other, against plain rounds of the host."""
    plain = TargetModel(decoder, like.info, like.context)
    want = toys.answer(ChatCache(plain), prompt, settings=settings).token_ids
    cache = ChatCache(like)
    for name, make in drafters(want, prompt, plain.vocab).items():
        drafter = make()
        guarded = None if drafter is None else toys.guard(drafter)
        events, began = list[Any](), time.perf_counter()
        got = toys.answer(cache, prompt, guarded, settings=settings, events=events)
        assert got.token_ids == want, name
        spans(got, [event for event in events if isinstance(event, Step)], time.perf_counter() - began)
        assert guarded is None or not guarded.failed
        assert like.length <= len(cache.tokens)
    assert like.graph_runner is not None and like.graph_runner.capture.trouble is None


@pytest.mark.parametrize("settings", list(SETTINGS.values()), ids=list(SETTINGS))
def test_same_text(settings: Settings) -> None:
    target = flying()
    same(target.decoder, target, PROMPT, settings)
    assert target.graph_runner is not None and target.graph_runner.capture.count > 3


@pytest.mark.parametrize("kind", KINDS)
def test_same_text_of_every_mixer(kind: str) -> None:
    folder = golden.FOLDER / kind
    decoder = golden.decoder(folder, torch.float32, 256 + MAX_DRAFT_ROWS)
    prompt = golden.tensors(kind)["greedy.prompt_ids"][0].tolist()
    target = TargetModel(decoder, describe(folder), 256, Replay())
    same(decoder, target, prompt, SETTINGS["filtered"])


def test_rings() -> None:
    """A sliding layer's ring, written by passes whose place the host does not know."""
    folder = golden.FOLDER / "gemma3"
    decoder = golden.decoder(folder, torch.float32, 1024 + MAX_DRAFT_ROWS)
    target = TargetModel(decoder, describe(folder), 1024, Replay())
    assert any(not state.cut for state in target.cache.states if state is not None)
    prompt = golden.tensors("gemma3")["greedy.prompt_ids"][0].tolist() * 20
    same(decoder, target, prompt, toys.GREEDY)


def test_the_next_round_is_launched_before_one_is_read() -> None:
    """And what was launched beyond the end leaves no trace: the next turn is right, EOS in the middle of a draft too."""
    settings = toys.GREEDY
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings).token_ids
    for drafter in (None, toys.Bigram(device=True)):
        cache = ChatCache(flying())
        guarded = None if drafter is None else toys.guard(drafter)
        eos = (want[9],)
        first = toys.answer(cache, PROMPT, guarded, settings=settings, eos=eos)
        assert first.token_ids == want[: want.index(want[9])] and first.finish == "stop"
        turn = [*PROMPT, *first.token_ids, 7, 8]
        second = toys.answer(cache, turn, guarded, settings=settings)
        assert second.token_ids == toys.answer(ChatCache(toys.target()), turn, settings=settings).token_ids


def test_states_are_fetched_even_where_the_lane_stands_already() -> None:
    """The same place again, but reached by other passes, which leave recurrent states in tensors of their own."""
    folder = golden.FOLDER / "qwen3_5"
    decoder = golden.decoder(folder, torch.float32, 256 + MAX_DRAFT_ROWS)
    prompt = golden.tensors("qwen3_5")["greedy.prompt_ids"][0].tolist()
    target = TargetModel(decoder, describe(folder), 256, Replay())
    want = toys.answer(ChatCache(TargetModel(decoder, target.info, 256)), prompt).token_ids
    other = [*prompt[:-4], *prompt[:4]]
    cache = ChatCache(target)
    toys.answer(cache, other, limit=3)
    assert target.graph_runner is not None
    target.graph_runner.advanced((len(prompt), want[0]))  # as if an answer had ended there
    target.graph_runner.base.fill_(len(prompt))
    target.graph_runner.root.fill_(want[0])
    assert toys.answer(cache, prompt).token_ids == want


@pytest.mark.parametrize("context", [24, 40])
def test_the_brim(context: int) -> None:
    for drafter in (None, toys.Bigram(device=True), toys.Listener()):
        want = toys.answer(ChatCache(toys.target(context=context)), PROMPT, limit=None)
        guarded = None if drafter is None else toys.guard(drafter)
        got = toys.answer(ChatCache(flying(context=context)), PROMPT, guarded, limit=None, tokens=8)
        assert (got.token_ids, got.finish) == (want.token_ids, "length")


def test_switches_while_rounds_are_in_the_air() -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT).token_ids
    table = {
        "none": None,
        "bigram": toys.guard(toys.Bigram(device=True), name="bigram"),
        "listener": toys.guard(toys.Listener(), name="listener"),
        "knows": toys.guard(toys.Knows(len(PROMPT), want, right=2), name="knows"),
    }
    names = ["bigram", "listener", "none", "knows", "bigram", "none", "listener", "knows", "none", "bigram", "knows"]
    control = toys.Still({2 + 2 * turn: DrafterChoice(name=name, tokens=3) for turn, name in enumerate(names)})
    got = toys.answer(ChatCache(flying()), PROMPT, table, control=control)
    assert got.token_ids == want
    assert not any(error for _, error in control.answers)
    assert not any(guarded.failed for guarded in table.values() if guarded is not None)


def test_a_choice_that_the_device_is_not_sure_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two ids to look at a nucleus is rarely found: the host chooses, and what was in the air is forgotten."""
    monkeypatch.setattr("outrider.core.sampling.device.POOL", 2)
    target = flying()
    same(target.decoder, target, PROMPT, Settings(temperature=1.5, top_p=0.95))


def test_broken_weights_are_noticed() -> None:
    from outrider.core.base.errors import ModelError

    target = flying()
    weight = target.decoder.weights.norm.weight
    assert weight is not None
    weight[3] = float("nan")
    with pytest.raises(ModelError):
        toys.answer(ChatCache(target), PROMPT)


def test_detail_reads_each_round_at_once() -> None:
    events: list = []
    plain: list = []
    toys.answer(ChatCache(flying()), PROMPT, settings=toys.SAMPLED, detail=True, events=events)
    toys.answer(ChatCache(toys.target()), PROMPT, settings=toys.SAMPLED, detail=True, events=plain)
    for mine, theirs in zip(events, plain, strict=True):
        assert [token.id for token in mine.tokens] == [token.id for token in theirs.tokens]
        for one, other in zip(mine.top, theirs.top, strict=True):
            assert [token for token, _ in one] == [token for token, _ in other]


class Failing(Capture):
    """Records nothing."""

    def job(self, work, changed=()):
        self.trouble = "no graphs here"
        return work


def test_a_capture_that_fails_is_no_end() -> None:
    """The job runs as it is, and why is kept for `doctor`."""
    target = flying(Failing())
    want = toys.answer(ChatCache(toys.target()), PROMPT).token_ids
    assert toys.answer(ChatCache(target), PROMPT).token_ids == want


def test_what_a_drafter_cannot_record_stops_no_pass_of_the_target() -> None:
    class Half(Replay):
        def apart(self) -> Capture:
            return Failing()

    target = flying(Half())
    twice = target.capture(lambda x: x * 2, torch.ones(1))
    assert twice(torch.full((1,), 3.0)).tolist() == [6.0]
    toys.answer(ChatCache(target), PROMPT)
    assert target.graphs is not None and target.graphs.trouble
    assert (
        target.graph_runner is not None
        and target.graph_runner.capture.count > 0
        and target.graph_runner.capture.trouble is None
    )


def test_rounds_tell_how_long_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every way through a round, the one included where the host has to choose after all."""
    from outrider.core.decode.rounds import Rounds
    from outrider.core.sampling.noise import Noise
    from outrider.core.sampling.sample import Sampler

    monkeypatch.setattr("outrider.core.sampling.device.POOL", 2)
    settings = Settings(temperature=1.5, top_p=0.95)
    for target in (flying(), toys.target()):
        for drafter in (None, toys.Knows(len(PROMPT), [1] * 40, right=2), toys.Bigram(device=True)):
            rider = None if drafter is None else toys.guard(drafter)
            target.forward(PROMPT[:-1], last=True)
            target.commit(len(PROMPT) - 1)
            rounds = Rounds(target, list(PROMPT), Sampler(settings, Noise(1), PROMPT))
            for _ in range(12):
                began = time.perf_counter()
                done = rounds.run(rider, 3)
                seconds = time.perf_counter() - began
                assert 0 <= done.verify_s <= 12 * seconds + 1 and 0 <= done.draft_s <= seconds + 1
                assert 0 <= done.advance_s <= seconds and 0 < done.total_s < 60
            rounds.close()
            target.rewind(0)


# ---------------------------------------------------------------------------------------------------- auto


class Silent(Stateless):
    """Never proposes."""

    free = True


class Sometimes(Stateless):
    """Knows the text, and proposes only where one in `every` tokens comes next."""

    free = True
    shape = Shape(8, 8)

    def __init__(self, truth: list[int], every: int) -> None:
        self.truth, self.every = truth, every

    def propose(self, context: Context) -> Draft | None:
        done = len(context.tokens) - len(PROMPT)
        return None if done % self.every else Draft(torch.tensor(self.truth[done : done + min(4, context.nodes)]))


class Stepwise(Stateless):
    """Asked for drafts that cost something, and never right."""

    needs = Needs(hidden=(1,))
    shape = Shape(4, 4)

    def propose(self, context: Context) -> Draft | None:
        return Draft(torch.tensor([47] * min(4, context.nodes)))


def auto(
    monkeypatch: pytest.MonkeyPatch, parts: list[Drafter], settings: Settings, limit: int = 200
) -> tuple[Report, float, int]:
    """An answer under `auto`; of its plain rounds the share that was launched while another was in flight, and their number."""
    ahead: list[bool] = []
    run = AsyncRounds._run

    def counted(self: AsyncRounds, captured: Any, draft: Any, *rest: Any) -> Any:
        if not len(draft):
            ahead.append(bool(self))
        return run(self, captured, draft, *rest)

    monkeypatch.setattr(AsyncRounds, "_run", counted)
    policy = Policy()
    for rows in (1, 2, 4, 8, 17, 33):
        policy.calibrate(rows, 5e-4 + 5e-4 * rows)  # less than is measured, so that no probe wins
    monkeypatch.setattr(policy.costs, "saw", lambda rows, seconds, context: None)
    riders = [toys.guard(part, name=f"part {number}") for number, part in enumerate(parts)]
    made = toys.answer(
        ChatCache(flying()),
        PROMPT,
        {"auto": Composite(riders, policy)},
        settings=settings,
        limit=limit,
        policy=policy,
        tokens=None,
    )
    assert not any(rider.failed for rider in riders)
    return made, sum(ahead) / max(1, len(ahead)), len(ahead)


@pytest.mark.parametrize("settings", [toys.GREEDY, SETTINGS["filtered"]], ids=["greedy", "T=0.8"])
@pytest.mark.parametrize("kind", ["silent", "losing", "sometimes"])
def test_auto_launches_plain_rounds_ahead(monkeypatch: pytest.MonkeyPatch, settings: Settings, kind: str) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, limit=200).token_ids
    parts: dict[str, list[Drafter]] = {
        "silent": [Silent(), Silent()],
        "losing": [Silent(), Stepwise()],
        "sometimes": [Sometimes(want, 5), Silent()],
    }
    got, share, rounds = auto(monkeypatch, parts[kind], settings)
    assert got.token_ids == want
    if kind == "sometimes":  # a draft that comes too late costs more than was won, so that is rare
        assert got.accepted > 80 and share < 0.5
    else:
        assert rounds > 150 and share >= 0.95
