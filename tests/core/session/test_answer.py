"""Whole answers on a toy model: losslessness for any drafter, and everything that can happen in the middle of one."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import toys

from outrider.app.chat import context
from outrider.core.base.errors import DrafterError, UsageError
from outrider.core.base.protocol import DrafterChoice, Progress, Report, Step
from outrider.core.drafting import Committed as Fact
from outrider.core.drafting import Drafter
from outrider.core.model.capture import Capture
from outrider.core.model.model import TargetModel
from outrider.core.policy.plain import PlainMeter
from outrider.core.policy.policy import Policy
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.prompt_lookup import Lookup

PROMPT = [5, 9, 13, 9, 5, 9, 13]
PENALISED = Settings(temperature=0.9, top_p=0.9, repeat_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.2)


def plain(settings: Settings = toys.GREEDY, limit: int = 40, **more) -> Report:
    return toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, limit=limit, **more)


def drafted(drafter: Drafter, settings: Settings = toys.GREEDY, **more) -> Report:
    notes: list[str] = []
    report = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(drafter, notes=notes), settings=settings, **more)
    assert not notes
    return report


def makers(settings: Settings) -> dict[str, Drafter]:
    truth = plain(settings).token_ids
    return {
        "always right": toys.Knows(len(PROMPT), truth),
        "always wrong": toys.Knows(len(PROMPT), truth, right=0),
        "partly right": toys.Knows(len(PROMPT), truth, right=2),
        "random": toys.Anything(),
        "tree": toys.Bushy(toys.Knows(len(PROMPT), truth, right=3)),
        "tree-second": toys.Bushy(toys.Knows(len(PROMPT), truth, right=3), turn=1),
        "lookup": Lookup(),
        "states": toys.Listener(),
    }


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("name", list(makers(toys.GREEDY)))
def test_the_text_does_not_depend_on_the_drafter(name: str, settings: Settings) -> None:
    want = plain(settings)
    got = drafted(makers(settings)[name], settings)
    assert got.token_ids == want.token_ids
    assert got.seed == want.seed
    assert len(got.kinds) == len(got.token_ids)
    if name == "always right":
        assert got.accepted == got.proposed
        assert got.passes < want.passes / 3
    if name == "always wrong":
        assert got.accepted == 0
        assert set(got.kinds) <= {"P", "C"}


def test_numbers_add_up() -> None:
    truth = plain().token_ids
    events: list = []
    report = drafted(toys.Knows(len(PROMPT), truth, right=2), events=events)
    steps = [event for event in events if isinstance(event, Step)]
    assert report.kinds[0] == "P"
    assert report.passes == len(steps) - 1 == sum(report.drafters.values())
    assert report.proposed == sum(step.proposed for step in steps)
    assert report.accepted == sum(step.accepted for step in steps)
    assert "".join(token.kind for step in steps for token in step.tokens) == report.kinds
    assert "".join(token.text for step in steps for token in step.tokens) == report.text
    assert [step.seq for step in steps] == list(range(len(steps)))
    assert report.kinds.count("A") <= report.accepted
    assert report.tokens_per_second == pytest.approx((len(report.token_ids) - 1) / report.timing.decode_s)
    assert report.prompt_tokens == len(PROMPT)
    assert report.finish == "length"


@pytest.mark.parametrize("tree", [False, True])
def test_what_a_drafter_takes_is_learnt_where_it_rides_by_its_name(tree: bool) -> None:
    policy, inner = Policy(), toys.Knows(len(PROMPT), plain().token_ids, right=2)
    report = toys.answer(
        ChatCache(toys.target()), PROMPT, toys.guard(toys.Bushy(inner) if tree else inner), policy=policy
    )
    known = policy.costs.drafting("toy")
    assert known.n == report.drafters["toy"] - 1  # the first draft takes up the prompt as well
    assert 0 < known.of(4) < report.timing.draft_s


def test_states_are_aligned() -> None:
    """hidden[i] is the state that produced tokens[i]: recomputed in one pass over the whole text."""
    listener = toys.Listener()
    cache = ChatCache(toys.target())
    prompt = [i % 48 for i in range(3, 3 + 30)]
    toys.answer(cache, prompt, toys.guard(listener), limit=12)
    model = toys.target()
    whole = model.forward(cache.tokens, states=(0, 2)).hidden
    assert whole is not None
    assert listener.heard == cache.tokens
    assert listener.states[0] is None  # nothing produced the first token of the prompt
    for at, state in enumerate(listener.states[1:], 1):
        assert state is not None
        torch.testing.assert_close(state, whole[at - 1], atol=1e-4, rtol=1e-4)


def test_states_over_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.core.session.answer.CHUNK", 7)
    listener = toys.Listener()
    cache = ChatCache(toys.target())
    prompt = [i % 48 for i in range(33)]
    events: list = []
    toys.answer(cache, prompt, toys.guard(listener), limit=5, events=events)
    assert all(state is not None for state in listener.states[1:])
    assert [int(event.done) for event in events if isinstance(event, Progress)] == [7, 14, 21, 28, 33]


def test_prefix_is_reused_and_leaves_no_trace() -> None:
    drafter = toys.guard(Lookup())
    cache = ChatCache(toys.target())
    first = toys.answer(cache, PROMPT, drafter)
    longer = [*PROMPT, *first.token_ids, 3, 1]
    before = cache.target.length
    assert before > len(PROMPT)
    again = toys.answer(cache, longer, drafter)
    assert again.token_ids == toys.answer(ChatCache(toys.target()), longer).token_ids
    other = [*PROMPT[:3], 40, 41]  # an edit: rewind of target and drafter
    assert toys.answer(cache, other, drafter).token_ids == toys.answer(ChatCache(toys.target()), other).token_ids
    same = toys.answer(cache, PROMPT, drafter)
    assert same.token_ids == first.token_ids


def test_the_same_prompt_again_prefills_one_token() -> None:
    cache = ChatCache(toys.target())
    toys.answer(cache, PROMPT, limit=1)
    assert cache.reuse(PROMPT) == len(PROMPT) - 1


def test_a_prompt_that_is_cached_whole_takes_its_first_token_from_kept_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass over the prompt, for plain decoding as for a drafter that reads the last state; an edit is prefilled."""
    cache, listening = ChatCache(toys.target()), toys.guard(toys.Listener())
    first = toys.answer(cache, PROMPT, listening, limit=6)
    prefilled: list[int] = []
    forward = TargetModel.forward

    def counted(self: TargetModel, ids: Any, **rest: Any) -> Any:
        prefilled.extend([len(ids)] if rest.get("last") else [])
        return forward(self, ids, **rest)

    monkeypatch.setattr(TargetModel, "forward", counted)
    for drafter in (listening, None, toys.guard(Lookup())):
        again = toys.answer(cache, PROMPT, drafter, limit=6)
        assert again.token_ids == first.token_ids and again.reused == len(PROMPT)
    assert prefilled == []
    assert toys.answer(cache, [*PROMPT, 5], limit=2).reused == len(PROMPT)
    assert toys.answer(cache, PROMPT, limit=6).token_ids == first.token_ids
    assert prefilled == [1, 1]  # of the newest prompt alone


def test_a_state_that_was_not_kept_costs_one_token_and_no_other_text() -> None:
    cache, listener = ChatCache(toys.target()), toys.Listener()
    first = toys.answer(cache, PROMPT, limit=6)
    again = toys.answer(cache, PROMPT, toys.guard(listener), limit=6)
    assert again.token_ids == first.token_ids and again.reused == len(PROMPT) - 1
    assert listener.states[len(PROMPT)] is not None
    kept = toys.answer(cache, PROMPT, toys.guard(listener), limit=6)
    assert kept.token_ids == first.token_ids and kept.reused == len(PROMPT)


def test_eos_inside_a_draft() -> None:
    truth = plain().token_ids
    eos = truth[7]
    at = truth.index(eos)
    want = plain(eos=[eos])
    got = drafted(toys.Knows(len(PROMPT), truth), eos=[eos], tokens=16)
    assert got.token_ids == want.token_ids == truth[:at]
    assert got.finish == "stop"
    assert len(got.kinds) == at


def test_context_limit_with_eos_inside_a_draft() -> None:
    """At the brim a draft may hold the EOS and more; the answer ends at whichever comes first."""
    truth = plain().token_ids
    for room in range(2, 14):
        for eos in ((), (truth[9],)):
            small = len(PROMPT) + room
            want = toys.answer(ChatCache(toys.target(context=small)), PROMPT, limit=None, eos=eos)
            right = toys.guard(toys.Knows(len(PROMPT), truth))
            got = toys.answer(ChatCache(toys.target(context=small)), PROMPT, right, limit=None, eos=eos, tokens=16)
            assert got.token_ids == want.token_ids
            assert got.finish == want.finish
            assert got.limit == want.limit == ("context" if got.finish == "length" else None)
            assert len(got.token_ids) <= room


def test_a_prompt_over_the_context_is_refused_before_any_work() -> None:
    cache = ChatCache(toys.target(context=16))
    with pytest.raises(UsageError, match=r"16 tokens; with room for an answer 15 fit") as caught:
        toys.answer(cache, list(range(16)))
    assert caught.value.hint
    assert context._REFUSED.match(str(caught.value))  # by which the chat tells it from other refusals
    assert cache.target.length == 0
    report = toys.answer(cache, list(range(15)), limit=None)
    assert (len(report.token_ids), report.finish, report.limit) == (1, "length", "context")


def test_max_tokens_inside_a_block() -> None:
    truth = plain().token_ids
    for limit in range(1, 9):
        got = drafted(toys.Knows(len(PROMPT), truth), limit=limit, tokens=6)
        assert got.token_ids == truth[:limit]
        assert (got.finish, got.limit) == ("length", "tokens")


def test_stop_string_inside_a_block() -> None:
    truth = plain().token_ids
    stop = f"<{truth[5]}><{truth[6]}>"
    want = plain(stop=[stop])
    got = drafted(toys.Knows(len(PROMPT), truth), stop=[stop], tokens=16)
    assert got.token_ids == want.token_ids
    assert got.text == want.text == "".join(f"<{i}>" for i in want.token_ids)
    assert got.finish == "stop"


def test_plain_answers_claim_no_speed_up() -> None:
    truth = plain().token_ids
    for report in (plain(), drafted(toys.Knows(len(PROMPT), truth), limit=1), drafted(toys.Anything(), limit=1)):
        assert report.speedup is None and report.plain is None


def test_the_time_in_which_a_drafter_hears_is_no_part_of_a_plain_pass() -> None:
    class Slow(toys.Knows):
        def advance(self, step: Fact) -> None:
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                pass

    truth, policy = plain(limit=90).token_ids, Policy()
    policy.calibrate(1, 1e-3)
    policy.calibrate(8, 1.2e-3)
    rider = toys.guard(Slow(len(PROMPT), truth, right=1))
    seen: list[float] = []
    add = PlainMeter.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainMeter, "add", lambda self, one: (seen.append(one.total - one.own), add(self, one)))
        toys.answer(ChatCache(toys.target()), PROMPT, rider, limit=90, policy=policy)
    assert seen and min(seen) >= 0.004


def test_an_answer_that_runs_in_circles_says_so_and_teaches_nothing() -> None:
    """It would teach that drafts of any length are right."""
    stuck, free = Settings(temperature=0.0, logit_bias=((7, 1e3),)), toys.GREEDY
    right = toys.guard(toys.Knows(len(PROMPT), [7] * 200))
    cache, policy = ChatCache(toys.target()), Policy()
    policy.calibrate(1, 1e-3)
    short = toys.answer(cache, PROMPT, right, settings=stuck, limit=40, tokens=None, policy=policy)
    known = policy.dump()
    assert not short.loops and known
    long = toys.answer(cache, PROMPT, right, settings=stuck, limit=100, tokens=None, policy=policy)
    assert long.loops and long.accepted > 20
    assert policy.dump() == known
    toys.answer(cache, PROMPT, right, settings=free, limit=40, tokens=None, policy=policy)
    assert policy.dump() != known


def test_cancel_keeps_what_was_said() -> None:
    report = drafted(toys.Anything(), control=toys.Still(stop_after=5))
    assert report.finish == "cancelled"
    assert 0 < len(report.token_ids) < 40
    assert report.token_ids == plain().token_ids[: len(report.token_ids)]


def test_cancel_during_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.core.session.answer.CHUNK", 4)
    cache = ChatCache(toys.target())
    report = toys.answer(cache, list(range(40)), control=toys.Still(stop_after=2))
    assert (report.finish, report.token_ids, report.passes) == ("cancelled", [], 0)
    assert (
        toys.answer(cache, list(range(40))).token_ids
        == toys.answer(ChatCache(toys.target()), list(range(40))).token_ids
    )


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED], ids=["greedy", "sampled"])
def test_hot_switch_every_few_passes(settings: Settings) -> None:
    truth = plain(settings, limit=60).token_ids
    table = {
        "lookup": toys.guard(Lookup(), name="lookup"),
        "none": None,
        "states": toys.guard(toys.Listener(), name="states"),
        "right": toys.guard(toys.Knows(len(PROMPT), truth, right=2), name="right"),
    }
    names = ["none", "states", "right", "lookup", "states", "none", "lookup", "states"]
    control = toys.Still({3 + 2 * i: DrafterChoice(name=name, tokens=3) for i, name in enumerate(names)})
    got = toys.answer(ChatCache(toys.target()), PROMPT, table, settings=settings, limit=60, control=control)
    assert got.token_ids == truth
    assert len(control.answers) == len(names)
    assert all(error is None for _, error in control.answers)
    assert len(got.drafters) >= 3


def test_a_failed_switch_leaves_the_old_drafter_riding() -> None:
    truth = plain().token_ids
    right = toys.guard(toys.Knows(len(PROMPT), truth, right=2))

    class Table(dict):
        def __missing__(self, name: str):
            raise DrafterError(f"There is no drafter {name!r}.")

    control = toys.Still({3: DrafterChoice(name="nonsense")})
    got = toys.answer(ChatCache(toys.target()), PROMPT, Table(toy=right), control=control)
    assert got.token_ids == truth
    assert isinstance(control.answers[0][1], DrafterError)
    assert got.drafters["toy"] > 5


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def test_the_device_form_gives_the_text_of_the_host_form(settings: Settings) -> None:
    want = plain(settings)
    host = drafted(toys.Bigram(device=False), settings, tokens=3)
    toy = toys.target()
    cache = ChatCache(TargetModel(toy.decoder, toy.info, toy.context, Capture()))
    device = toys.answer(cache, PROMPT, toys.guard(toys.Bigram(device=True)), settings=settings, tokens=3, detail=True)
    assert device.token_ids == host.token_ids == want.token_ids
    assert device.kinds == host.kinds
    assert (device.passes, device.proposed, device.accepted) == (host.passes, host.proposed, host.accepted)
    assert device.accepted > 0


def test_probs_are_used_only_from_the_trusted() -> None:
    law = torch.full((48,), 1 / 48, dtype=torch.float64)
    for trusted in (True, False):
        guarded = toys.guard(toys.OneLaw(law), trusted=trusted)
        report = toys.answer(
            ChatCache(toys.target()), PROMPT, guarded, settings=toys.SAMPLED, rule="rejection", limit=20
        )
        assert len(report.token_ids) == 20
        assert not guarded.failed


def test_rejection_is_greedy_at_temperature_zero() -> None:
    truth = plain().token_ids
    assert drafted(toys.Knows(len(PROMPT), truth, right=2), rule="rejection").token_ids == truth
    assert drafted(toys.Anything(), rule="rejection").token_ids == truth


def test_detail_tells_probabilities_and_rejections() -> None:
    truth = plain().token_ids
    events: list = []
    drafted(toys.Knows(len(PROMPT), truth, right=2), events=events, detail=True)
    steps = [event for event in events if isinstance(event, Step)]
    for step in steps:
        assert step.top is not None
        for token, best in zip(step.tokens, step.top, strict=True):
            assert best[0][0] == token.id  # greedy: the emitted token is the best one
            assert token.p == pytest.approx(best[0][1])
        assert step.rejected is not None
        assert len(step.rejected) == step.proposed - step.accepted
        assert step.top_text is not None and [len(texts) for texts in step.top_text] == [len(best) for best in step.top]
    first = [(step, one) for step in steps for one in step.rejected or () if one.depth == step.accepted]
    assert first
    for step, one in first:  # what was overruled stood where the token did that took its place
        assert one.p is not None and one.p <= (step.tokens[-1].p or 0)


def test_chances_alone_are_those_of_the_detail() -> None:
    truth = plain().token_ids
    told: list[list[float | None]] = []
    for detail, chances in ((True, False), (False, True), (False, False)):
        events: list = []
        knows = toys.Knows(len(PROMPT), truth, right=2)
        report = drafted(knows, events=events, detail=detail, chances=chances)
        assert report.token_ids == truth
        told.append([token.p for event in events if isinstance(event, Step) for token in event.tokens])
    assert told[1] == pytest.approx(told[0]) and set(told[2]) == {None}


def test_first_children() -> None:
    assert toys.tree(range(6), [-1, -1, 0, 0, 2, 1]).first_children == [0, 2, 4]
    assert toys.tree([], []).first_children == []


def test_steps_tell_prompt_phase_and_plain_passes() -> None:
    cache, events = ChatCache(toys.target()), []
    toys.answer(cache, PROMPT, limit=12, events=events)
    steps = [event for event in events if isinstance(event, Step)]
    assert (steps[0].prompt, steps[0].reused) == (len(PROMPT), 0)
    assert not any(step.prompt or step.reused for step in steps[1:])
    assert {step.phase for step in steps} == {"prose"} and steps[0].plain is None
    events.clear()
    again = toys.answer(cache, [*PROMPT, 4], limit=4, events=events)
    assert events[0].reused == again.reused > 0
