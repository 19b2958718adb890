"""Answers made together: each is what it would be alone, whatever the others do, and leaves nothing behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import crowd
import pytest
import torch
import toys

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    Event,
    Generate,
    Message,
    ModelChoice,
    Notice,
    Report,
    Sampling,
    Step,
)
from outrider.core.drafting import Context, Draft, Drafter, Needs, Stateless
from outrider.core.library.library import resolve
from outrider.core.model.cache.states import Cache
from outrider.core.model.model import TargetModel
from outrider.core.policy.policy import Policy
from outrider.core.sampling.sample import Settings
from outrider.core.session import batch
from outrider.core.session.answer import AnswerRequest
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.drafters.prompt_lookup import Lookup

PROMPTS = [
    [5, 9, 13, 9, 5, 9, 13],
    [1, 2, 3],
    [40, 41, 42, 43, 44, 45, 46, 47, 40, 41, 42],
    [7],
    [3, 3, 3, 3],
    [11, 30, 2, 11, 30],
]
PENALISED = Settings(temperature=0.9, top_p=0.9, repeat_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.2)


def order(number: int, settings: Settings = toys.GREEDY, **more) -> AnswerRequest:
    prompt = PROMPTS[number % len(PROMPTS)]
    return crowd.order(number, prompt, settings=settings, **{"limit": 20 + number, **more})


def alone(one: AnswerRequest, drafter: Drafter | None = None) -> Report:
    rider = None if drafter is None else toys.guard(drafter)
    return toys.answer(
        ChatCache(toys.target()),
        one.ids,
        rider,
        settings=one.settings,
        seed=one.seed,
        rule=one.rule,
        limit=one.limit,
        eos=list(one.eos),
        stop=one.stop,
        tokens=one.drafter.tokens,
    )


def together(
    orders: Sequence[AnswerRequest],
    drafters: Sequence[Drafter | None] | None = None,
    *,
    target: TargetModel | None = None,
    at_once: int | None = None,
    events: list[Event] | None = None,
    control: toys.Still | None = None,
    notes: list[str] | None = None,
) -> list[Report]:
    riders = [
        None if drafter is None else toys.guard(drafter, notes=notes) for drafter in drafters or [None] * len(orders)
    ]
    say = (events if events is not None else []).append
    return crowd.together(target or toys.target(), orders, riders, at_once=at_once, say=say, control=control)


def lucky(orders: Sequence[AnswerRequest], want: Sequence[Report]) -> list[Drafter | None]:
    """A drafter for each answer that is right for so many tokens of each draft, and one answer without any."""
    made: list[Drafter | None] = [
        toys.Knows(len(one.ids), report.token_ids, right=luck)
        for one, report, luck in zip(orders, want, (99, 0, 2, 1, 3, 99), strict=True)
    ]
    made[4] = None
    return made


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("at_once", [None, 2])
def test_each_text_is_its_own(settings: Settings, at_once: int | None) -> None:
    orders = [order(number, settings) for number in range(6)]
    want = [alone(one) for one in orders]
    got = together(orders, lucky(orders, want), at_once=at_once)
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert [report.text for report in got] == [report.text for report in want]
    assert [report.finish for report in got] == ["length"] * 6
    assert got[0].accepted == got[0].proposed > 0 and got[0].passes < want[0].passes / 3
    assert got[1].accepted == 0 < got[1].proposed
    assert 0 < got[2].accepted < got[2].proposed
    assert got[4].proposed == 0 and got[4].drafters == {"none": got[4].passes}


def test_answers_that_nobody_drafts_for_are_drawn_together(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [Settings(temperature=t, top_k=k, top_p=1.0) for t, k in ((0.7, 5), (1.3, 5), (0.0, 5), (1.0, 9), (1.0, 0))]
    orders = [order(number, kinds[number % 5], seed=number) for number in range(6)]
    drawn: list[int] = []
    chosen = batch._chosen

    def counted(live: Any, passes: Any) -> Any:
        found = chosen(live, passes)
        drawn.append(len(found))
        return found

    monkeypatch.setattr(batch, "_chosen", counted)
    got = together(orders, [None] * 6)
    assert max(drawn) == 5
    monkeypatch.setattr(batch, "_chosen", lambda live, passes: {})
    assert [report.token_ids for report in together(orders, [None] * 6)] == [report.token_ids for report in got]
    want = [alone(one) for one in orders]
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert {report.kinds for report in got} == {report.kinds for report in want}
    assert [report.passes for report in got] == [report.passes for report in want]


def test_numbers_are_those_of_an_answer_alone() -> None:
    orders = [order(number) for number in range(6)]
    texts = [alone(one) for one in orders]
    drafters = lucky(orders, texts)
    want = [alone(one, drafter) for one, drafter in zip(orders, drafters, strict=True)]
    events: list[Event] = []
    got = together(orders, drafters, events=events)
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for name in ("passes", "proposed", "accepted", "kinds", "drafters", "seed", "prompt_tokens"):
            assert getattr(mine, name) == getattr(theirs, name), name
        steps = [event for event in events if isinstance(event, Step) and event.request == number]
        assert [step.seq for step in steps] == list(range(mine.passes + 1))
        assert "".join(token.text for step in steps for token in step.tokens) == mine.text
        ends = [event for event in events if isinstance(event, Done) and event.request == number]
        assert [end.report.token_ids for end in ends] == [mine.token_ids]
        timing = mine.timing
        assert 0 < timing.verify_s < timing.decode_s
        assert mine.tokens_per_second == pytest.approx((len(mine.token_ids) - 1) / timing.decode_s)
        assert mine.speedup is None


@pytest.mark.parametrize("loops", [False, True])
def test_the_policy_learns_of_drafts_unless_an_answer_ran_in_circles(
    loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch._BatchedAnswer, "_loops", lambda self: loops and self.order.request == 2)
    orders, policy = [order(number) for number in range(6)], Policy()
    riders = [None if one is None else toys.guard(one) for one in lucky(orders, [alone(one) for one in orders])]
    crowd.together(toys.target(), orders, riders, policy=policy)
    assert [name for name, arm in policy.drafters().items() if arm.acceptance.rounds] == ([] if loops else ["toy"])
    assert policy.batch_costs is not None and policy.batch_costs.drafting("toy").n > 0  # what time it took is true


@pytest.mark.parametrize("rule", ["rejection", "typical"])
def test_other_rules(rule: str) -> None:
    """The same luck as alone: the streams hang on the position."""
    law = torch.full((48,), 1 / 48)
    orders = [order(number, toys.SAMPLED, rule=rule) for number in range(4)]
    want = [alone(one, toys.OneLaw(law)) for one in orders]
    got = together(orders, [toys.OneLaw(law) for _ in orders])
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert sum(report.accepted for report in got) == sum(report.accepted for report in want) > 0


class Watching(toys.Listener):
    """Reads the target's rows and runs its first layer; `wrong` collects what does not belong to its own conversation."""

    needs = Needs(early=1, kv=(0,))

    def __init__(self, target: TargetModel, wrong: list[str]) -> None:
        super().__init__()
        self.target, self.wrong = target, wrong

    def fork(self) -> Watching:
        return Watching(self.target, self.wrong)

    def propose(self, context: Context) -> Draft | None:
        at = len(context.tokens) - 1
        keys, _, length = self.target.kv(0)
        own = toys.target()
        own.forward(context.tokens[:-1])
        own.commit(at)
        if length != at or not torch.allclose(keys[:, :at], own.kv(0)[0][:, :at], atol=1e-4):
            self.wrong.append(f"rows of {length} tokens at {at}")
        ids = torch.tensor([context.tokens[-1], 3])
        if not torch.allclose(self.target.early(ids, at, 1), own.early(ids, at, 1), atol=1e-4):
            self.wrong.append(f"early at {at}")
        return Draft(ids[: context.nodes])


def test_a_drafter_sees_the_target_of_its_own_conversation() -> None:
    orders = [order(number, limit=8) for number in range(4)]
    target, wrong = toys.target(), []
    got = together(orders, [Watching(target, wrong) for _ in orders], target=target, at_once=3)
    assert wrong == []
    assert [report.token_ids for report in got] == [alone(one).token_ids for one in orders]
    assert sum(report.proposed for report in got) > 0


def test_trees() -> None:
    orders = [order(number, tokens=8) for number in range(3)]
    want = [alone(one) for one in orders]
    trees = [
        toys.Bushy(toys.Knows(len(one.ids), report.token_ids), turn=1) for one, report in zip(orders, want, strict=True)
    ]
    got = together(orders, trees)
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert all(report.accepted * 2 == report.proposed > 0 for report in got)


def test_states_belong_to_their_answer() -> None:
    """Every drafter hears its own conversation, and states as one pass over that text gives them."""
    orders = [order(number) for number in range(4)]
    heard: list[toys.Listener] = []

    class Forking(toys.Listener):
        def fork(self) -> toys.Listener:
            heard.append(toys.Listener())
            return heard[-1]

    got = together(orders, [Forking() for _ in orders], at_once=3)
    for one, report, listener in zip(orders, got, heard, strict=True):
        tokens = [*one.ids, *report.token_ids]
        assert listener.heard[: len(tokens)] == tokens
        whole = toys.target().forward(listener.heard, states=(0, 2)).hidden
        assert whole is not None and listener.states[0] is None
        for at, state in enumerate(listener.states[1:], 1):
            assert state is not None
            torch.testing.assert_close(state, whole[at - 1], atol=1e-4, rtol=1e-4)


def test_ends_inside_a_draft() -> None:
    """EOS, a stop string and a limit, each within an accepted draft of another answer."""
    plain = [alone(order(number)) for number in range(3)]
    eos = plain[0].token_ids[7]
    stop = f"<{plain[1].token_ids[6]}>"
    orders = [order(0, eos=frozenset([eos])), order(1, stop=(stop,)), order(2, limit=6)]
    want = [alone(one) for one in orders]
    drafters = [toys.Knows(len(one.ids), report.token_ids) for one, report in zip(orders, plain, strict=True)]
    got = together(orders, drafters)
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert [report.finish for report in got] == ["stop", "stop", "length"]
    assert [report.text for report in got] == [report.text for report in want]
    assert len(got[2].token_ids) == 6


def test_the_context_ends_an_answer() -> None:
    orders = [order(0, limit=None), order(1, limit=9)]
    got = together(orders, [toys.Anything(), Lookup()], target=toys.target(context=24))
    assert len(orders[0].ids) + len(got[0].token_ids) == 24
    assert [report.finish for report in got] == ["length", "length"]
    want = [alone(one).token_ids for one in (order(0, limit=len(got[0].token_ids)), orders[1])]
    assert [report.token_ids for report in got] == want


def test_prompts_that_do_not_fit_are_told_before_any_answer() -> None:
    events: list[Event] = []
    with pytest.raises(UsageError, match="7 tokens"):
        together([order(1), order(0)], target=toys.target(context=7), events=events)
    assert not events
    with pytest.raises(UsageError, match="0 answers"):
        together([order(0)], at_once=0)


def test_no_more_than_asked_run_at_once() -> None:
    orders = [order(number % 6, request=number, limit=4 + 3 * (number % 4)) for number in range(9)]
    events: list[Event] = []
    got = together(orders, at_once=3, events=events)
    assert [report.token_ids for report in got] == [alone(one).token_ids for one in orders]
    assert crowd.most_at_once(events) == 3
    assert {event.request for event in events if isinstance(event, Done)} == set(range(9))


def test_a_drafter_that_breaks_costs_nobody_anything() -> None:
    orders = [order(number) for number in range(3)]
    want = [alone(one) for one in orders]

    class Fragile(toys.Broken):
        def fork(self) -> toys.Broken:
            return toys.Broken("propose", after=3)

    right = toys.Knows(len(orders[2].ids), want[2].token_ids)
    events: list[Event] = []
    got = together(orders, [Lookup(), Fragile("never"), right], events=events)
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    notices = [event for event in events if isinstance(event, Notice)]
    assert [notice.request for notice in notices] == [1] and "it broke" in notices[0].text
    assert got[1].drafters == {"toy": 2, "none": got[1].passes - 2}
    assert got[2].accepted == got[2].proposed > 0


def test_a_drafter_that_cannot_fork_stays_at_home() -> None:
    class Single(toys.Broken):
        def fork(self) -> toys.Broken:
            raise RuntimeError("there is one of me")

    notes: list[str] = []
    orders = [order(0), order(1)]
    got = together(orders, [Single("never"), Lookup()], notes=notes)
    assert [report.token_ids for report in got] == [alone(one).token_ids for one in orders]
    assert got[0].proposed == 0 and len(notes) == 1 and "there is one of me" in notes[0]


def test_cancelled_half_way() -> None:
    orders = [order(number) for number in range(5)]
    want = [alone(one) for one in orders]
    events: list[Event] = []
    got = together(orders, at_once=2, control=toys.Still(stop_after=10), events=events)
    assert [report.finish for report in got] == ["cancelled"] * 5
    for report, whole in zip(got, want, strict=True):
        assert report.token_ids == whole.token_ids[: len(report.token_ids)]
    assert 0 < len(got[0].token_ids) < len(want[0].token_ids)
    assert [len(report.token_ids) for report in got[2:]] == [0, 0, 0]
    assert sorted(event.request for event in events if isinstance(event, Done)) == list(range(5))


class Counted(Stateless):
    """Remembers who was made and who was closed."""

    def __init__(self, made: list[weakref.ref[Counted]], closed: list[int]) -> None:
        self.shape = toys.Anything().shape
        self.made, self.closed, self.number = made, closed, len(made)
        made.append(weakref.ref(self))

    def fork(self) -> Counted:
        return Counted(self.made, self.closed)

    def propose(self, context: Context) -> Draft | None:
        return Draft(torch.tensor([1, 2][: context.nodes]))

    def close(self) -> None:
        self.closed.append(self.number)


@pytest.mark.parametrize("stop_after", [None, 10])
def test_nothing_is_held_in_the_end(stop_after: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """States go with their answer, forks are closed; the target's conversation and the drafters at home are as they were."""
    target, rider = toys.target(), toys.guard(Lookup())
    toys.answer(ChatCache(target), PROMPTS[0], rider)
    before = target.cache, target.length, rider.known
    caches: list[weakref.ref[Cache]] = []
    new = target.decoder.new_cache

    def counting(capacity: int) -> Cache:
        assert sum(one() is not None for one in caches) < 3
        made = new(capacity)
        caches.append(weakref.ref(made))
        return made

    monkeypatch.setattr(target.decoder, "new_cache", counting)
    forks: list[weakref.ref[Counted]] = []
    closed: list[int] = []
    home = Counted(forks, closed)
    orders = [order(number) for number in range(6)]
    riders = [toys.guard(home)] * 5 + [rider]
    crowd.together(target, orders, riders, at_once=3, control=toys.Still(stop_after=stop_after))
    gc.collect()
    assert len(caches) == (6 if stop_after is None else 3)
    assert not [one for one in caches if one() is not None]
    assert sorted(closed) == list(range(1, len(forks))) and len(forks) > 3
    assert [one() for one in forks if one() is not None] == [home]
    assert (target.cache, target.length, rider.known) == before
    monkeypatch.undo()
    longer = [*PROMPTS[0], 4, 2]
    want = toys.answer(ChatCache(toys.target()), longer).token_ids
    assert toys.answer(ChatCache(target), longer, rider).token_ids == want


def test_a_drafter_that_is_its_own_fork_stays_open() -> None:
    closed: list[str] = []

    class Plain(toys.Anything):
        def close(self) -> None:
            closed.append("others ride with it")

    orders = [order(number) for number in range(3)]
    got = together(orders, [Plain() for _ in orders])
    assert sum(report.proposed for report in got) > 0
    assert closed == []


def test_memory_bounds_how_many_run(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = [order(number, limit=20) for number in range(6)]
    target = toys.target()
    need = target.decoder.new_cache(len(PROMPTS[2]) + 20 + 64).nbytes  # of the longest prompt
    events: list[Event] = []
    monkeypatch.setattr(batch.memory, "free", lambda device: int(2.5 * need / batch.SHARE))
    together(orders, target=target, events=events)
    assert crowd.most_at_once(events) == 2
    with pytest.raises(ModelError, match="6 answers at once need") as told:
        together(orders, target=target, at_once=6)
    assert "--max-tokens" in told.value.hint
    monkeypatch.setattr(batch.memory, "free", lambda device: need // 2)
    with pytest.raises(ModelError, match="1 answers at once"):
        together(orders, target=target)


@pytest.mark.real
def test_the_starter_gives_the_same_text_together() -> None:
    """In fp32, greedy and seeded, plain and drafted, with answers of different lengths and a place less than answers."""
    try:
        resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter is not in the local library: outrider models pull starter")
    model = ModelChoice(model="starter", dtype="fp32", device="cpu")
    words = "red apple, green apple, yellow apple, red pear, green pear, yellow pear"
    prompts = [
        "What is the capital of France?",
        f"Repeat this list: {words}.",
        "Name a river.",
        f"Sort this list: {words}.",
    ]
    asked = [
        Generate(
            number,
            model,
            messages=[Message("user", text)],
            sampling=Sampling(temperature=0.8 * (number == 2), seed=number, max_tokens=24 + 4 * number),
            drafter=DrafterChoice(name=name),
        )
        for number, (text, name) in enumerate(zip(prompts, ("none", "suffix", "suffix", "prompt_lookup"), strict=True))
    ]
    engine = Engine()
    want = [engine.generate(one, lambda event: None, toys.Still()) for one in asked]
    got = engine.generate_many(asked, lambda event: None, toys.Still(), 3)
    assert [report.token_ids for report in got] == [report.token_ids for report in want]
    assert [report.text for report in got] == [report.text for report in want]
    assert got[1].accepted > 0
    with pytest.raises(UsageError, match="one model"):
        engine.generate_many(
            [*asked, Generate(9, ModelChoice(model="other"), prompt="x")], lambda event: None, toys.Still()
        )
    assert engine.generate_many([], lambda event: None, toys.Still()) == []
