"""Figures of drafting: counts of passes, lines of panel and strip, causes of a low gain, and their place on the screen."""

from __future__ import annotations

import random
from dataclasses import replace
from importlib.resources import as_file, files
from types import SimpleNamespace
from typing import Any

import pytest
from chat_support import answer

from outrider.app.chat import layout
from outrider.app.chat.keymap import build
from outrider.app.chat.meter import Meter, mean_per_pass, summary
from outrider.app.chat.stats.figures import ENOUGH, Figures, gather, session_words
from outrider.app.chat.stats.lines import WIDTH, bar, count, number, panel, share, sparkline, strip
from outrider.app.chat.stats.tally import COLUMNS, SLICE, Share, Tally, Totals
from outrider.app.chat.stats.why import Slow, cause, explained
from outrider.app.chat.status import figures as status_figures
from outrider.app.chat.talk import Reply
from outrider.app.chat.terms import TERMS
from outrider.app.scripted import read_trace
from outrider.core.base.protocol import (
    Done,
    DrafterChoice,
    MemoryPlan,
    PlainPass,
    PlainTime,
    Report,
    Speedup,
    Step,
    Timing,
    Token,
)

PHASES = ("prose", "code", "thinking", "json")


def passes(draw: random.Random, count: int) -> list[Step]:
    """A reply's steps: the prompt's, then chains, trees and plain ones."""
    first = Step(1, 0, 0.5, "none", 0, 0, [Token(1, "a", "P")], 0.0, 400.0, 0.0, prompt=120, reused=20)
    steps, t = [first], 0.5
    for seq in range(1, count):
        proposed = draw.choice((0, 0, 1, 4, 8))
        depth = proposed if draw.random() < 0.7 else (proposed + 1) // 2
        accepted = draw.randint(0, depth)
        t += draw.uniform(0.01, 0.2)
        last = "P" if not proposed else "C" if accepted < depth else "B"
        tokens = [Token(seq, "x", "A") for _ in range(accepted)] + [Token(seq, "y", last)]  # type: ignore[arg-type]
        steps.append(
            Step(
                *(1, seq, t, "suffix" if proposed else "none", proposed, accepted, tokens),
                *(draw.uniform(0, 3), draw.uniform(5, 15), draw.uniform(0, 1), depth),
                phase=draw.choice(PHASES),  # type: ignore[arg-type]
                plain=PlainPass(20.0, 1.0, seq) if seq % 3 == 0 else None,
            )
        )
    return steps


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_those_of_the_trace(seed: int) -> None:
    steps = passes(random.Random(seed), 60)
    tally = Tally()
    for step in steps:
        tally.take(step)
    rest, drafted = steps[1:], [step for step in steps[1:] if step.proposed]
    assert tally.all.passes == len(rest) and tally.all.tokens == sum(len(step.tokens) for step in rest)
    assert tally.drafted.passes == len(drafted) and tally.plain.passes == len(rest) - len(drafted)
    assert (tally.proposed, tally.accepted) == tuple(
        sum(getattr(step, name) for step in steps) for name in ("proposed", "accepted")
    )
    chains = [step for step in drafted if step.depth == step.proposed]
    assert tally.ignored == sum(max(0, step.proposed - step.accepted - 1) for step in chains)
    for depth, (right, reached) in enumerate(tally.depths, 1):
        there = [step for step in drafted if step.depth >= depth and step.accepted >= depth - 1]
        assert reached == len(there)
        assert right == sum(step.accepted >= depth for step in there) / len(there)
    assert len(tally.depths) == max(min(step.depth, step.accepted + 1) for step in drafted)
    assert tally.all.ms == pytest.approx(
        tuple(sum(getattr(step, f"{part}_ms") for step in rest) / len(rest) for part in ("draft", "verify", "host"))
    )
    for phase in PHASES:
        those = [step for step in rest if step.phase == phase]
        assert tally.phases[phase].tokens_per_pass == sum(len(step.tokens) for step in those) / len(those)
    assert tally.decode_s == pytest.approx(steps[-1].t - steps[0].t)
    assert tally.rate == pytest.approx(tally.all.tokens / tally.decode_s)
    assert (tally.first_token_s, tally.prefill_rate, tally.prompt) == (0.5, 250.0, 120)
    assert tally.context == 120 + sum(len(step.tokens) for step in steps)
    assert tally.measured == PlainPass(20.0, 1.0, 57)
    wanted: dict[int, list[int]] = {}
    for step in rest:
        wanted.setdefault(int(step.t / SLICE), []).append(len(step.tokens))
    newest = max(wanted)
    expected = [
        sum(wanted[at]) / len(wanted[at]) if at in wanted else 0.0
        for at in range(max(min(wanted), newest - COLUMNS + 1), newest + 1)
    ]
    assert tally.history == pytest.approx(expected)


@pytest.mark.parametrize("name", ["demo", "thinking"])
def test_counts_are_those_of_a_recorded_report(name: str) -> None:
    with as_file(files("outrider.assets").joinpath(f"traces/{name}.jsonl")) as path:
        answers = read_trace(path).answers
    for cues in answers:
        tally, done = Tally(), cues[-1].frame
        for cue in cues:
            if isinstance(cue.frame, Step):
                tally.take(cue.frame)
        assert isinstance(done, Done)
        told = done.report
        assert (tally.all.passes, tally.proposed, tally.accepted) == (told.passes, told.proposed, told.accepted)
        assert tally.written == len(told.token_ids) and tally.drafters == told.drafters
        assert tally.all.tokens_per_pass == pytest.approx(
            mean_per_pass(told), abs=1.001 / told.passes
        )  # it counts the end sign too
        assert tally.rate == pytest.approx(told.tokens_per_second, rel=0.02)


def test_a_reply_that_goes_on_is_one_reply() -> None:
    steps = passes(random.Random(1), 20)
    whole, split = Tally(), Tally()
    for step in steps:
        whole.take(step)
    again = passes(random.Random(2), 10)
    for step in (*steps, *again):
        split.take(step)
    assert split.all.passes == whole.all.passes + 9 and split.first_token_s == 0.5
    assert split.decode_s == pytest.approx(whole.decode_s + again[-1].t - again[0].t)


def report(**changes: Any) -> Report:
    told: dict[str, Any] = {
        **{"model": "m", "drafter": "auto", "rule": "match", "seed": 1, "text": "", "token_ids": [1] * 31},
        **{"prompt_tokens": 5, "finish": "length", "passes": 10, "proposed": 40, "accepted": 20, "kinds": "A" * 31},
        **{"timing": Timing(decode_s=2.0), "tokens_per_second": 15.0, "drafters": {}, "speedup": None},
    }
    return Report(**{**told, **changes})


def test_totals_add_up() -> None:
    totals = Totals()
    totals.add(report(speedup=Speedup(2.0, 0.1, 20)))
    totals.add(report(passes=30, timing=Timing(decode_s=4.0)))
    totals.add(report(passes=0, token_ids=[1], timing=Timing()))
    totals.add(report(token_ids=[1] * 900, accepted=800, speedup=Speedup(9.0, 0.1, 20), loops=True))
    assert (totals.replies, totals.tokens_per_pass, totals.rate) == (3, 60 / 40, 60 / 6)
    assert totals.speedup is not None and (totals.speedup.value, totals.speedup.n) == (2.0, 20)


# ---------------------------------------------------------------------------------------------------- lines

FULL = Figures(
    *("prompt_lookup", "auto", "running", "prompt_lookup, 5 tokens: 3.1 tokens a pass at 1.2x the cost; 2.6x plain"),
    **{"rate": 212.4, "rate_mean": 9.87, "per_pass": 3.614, "per_pass_mean": 3.4, "proposed": 1543, "accepted": 1204},
    **{"ignored": 180, "depths": ((0.88, 412), (0.74, 300), (0.61, 200), (0.41, 15)), "ms": (1.13, 9.8, 0.4)},
    **{"first_token_s": 0.31, "prefill_rate": 812.0, "times": 2.41, "times_now": 2.5, "error": 0.08, "n": 41},
    **{"phases": (("prose", 3.1), ("code", 4.8)), "history": (1.0, 2.0, 0.0, 4.0), "context": 3100, "context_most": 8192},
    memory=MemoryPlan(
        device="cpu", dtype="bf16", quantize="auto", context=8192, weights=98_000_000, states=189_000_000,
        overhead=268_000_000, total=0, free=12_100_000_000,
    ),
)  # fmt: skip


def test_panel_says_everything_and_never_moves() -> None:
    full = panel(FULL, Totals(), None)
    bare = panel(Figures("auto", "auto", "ready"), Totals(), None)
    assert len(full) == len(bare) and all(len(line.text) <= WIDTH for line in (*full, *bare))
    text = "\n".join(line.text for line in full)
    for words in ("auto · running", "212       9.9", "3.61      3.40", "78%      1,204 of 1,543", "2.41× ±0.08 n 41",
                  "d1 ███████░   88%", "d4 ▯▯▯░░░░░   41%", "draft  1.1 verify  9.8", "prose  3.1 code   4.8",
                  "98 MB", "189 MB", "268 MB", "12 GB", "3.1k/8.2k", "ignored     12%"):  # fmt: skip
        assert words in text, words
    for times, colour in ((2.41, "$text-success"), (0.91, "$text-warning")):
        lines = panel(replace(FULL, times=times), Totals(), None)
        styles = {text.strip(): style for line in lines for text, style in line.parts}
        assert styles[f"{times}× ±0.08 n 41"] == colour
    assert not {term for line in full for term in line.terms} - set(TERMS)
    places = [next(n for n, line in enumerate(some) if line.text.startswith("ms draft")) for some in (full, bare)]
    assert places[0] == places[1]


def test_strip_fits() -> None:
    for width in (76, 98, 120):
        for figures in (FULL, Figures("no drafter", "off", "off"), replace(FULL, drafter="x" * 40)):
            lines = strip(figures, Totals(), None, width)
            assert len(lines) == 3 and all(len(line.text) <= width for line in lines)
            assert not {term for line in lines for term in line.terms} - set(TERMS)


def test_numbers_in_their_places() -> None:
    assert [number(value, 6) for value in (None, 0.04, 9.96, 99.9, 1234.5)] == [
        "     –", "   0.0", "  10.0", "  99.9", "  1234"]  # fmt: skip
    assert (share(1, 3), share(0, 0), count(812), count(3140), count(32768)) == (" 33%", "   –", "812", "3.1k", "33k")
    assert (bar(1.0, 20), bar(0.5, 19)) == ("████████", "▯▯▯▯░░░░")
    assert sparkline([1, 3, 0, 5]).strip() == "▁▅ █" and len(sparkline([])) == COLUMNS
    for term in TERMS.values():
        assert term.label and term.definition.endswith(".") and term.definition.count(". ") == 0


# ---------------------------------------------------------------------------------------------------- why


def test_the_largest_cause_is_named() -> None:
    def told(**changes: Any) -> str:
        found = cause(replace(FULL, **changes))
        return found.text if found else ""

    good = {"proposed": 100, "accepted": 90}
    plain = Share(20, 20, 0.0, 200.0, 20.0)  # 10 ms to verify
    assert told() == ""
    assert "Guessing takes 45%" in told(drafted=Share(50, 150, 500, 550, 50), plain=plain, **good)
    slow = told(drafted=Share(50, 150, 50, 1250, 50), plain=plain, context=28_000, **good)
    assert slow == "Checking costs 2.5× a plain pass at 28,000 tokens of context"
    bad = {"proposed": 100, "accepted": 20, "drafted": Share(50, 60, 50, 550, 50), "plain": plain}
    deep = told(**bad, depths=((0.8, 50), (0.5, 40), (0.09, 20)))
    assert deep == "Tokens at depth 3 and beyond: 9% accepted"
    assert told(**bad, depths=((0.2, 50), (0.09, 10))) == "20% of the guesses are right"
    assert told(drafted=Share(5, 5), plain=plain, **good) == "Only 20% of the passes had a guess"
    assert "Sampling and text" in told(drafted=Share(50, 150, 50, 550, 900), plain=plain, **good)
    assert told(reason="plain: no drafter has a guess") == "The drafter has no guess for this text"
    assert "cannot ride here: needs weights" in told(state="unavailable", reason="needs weights")
    parked = cause(replace(FULL, state="parked", drafted=Share(50, 150, 500, 550, 50), plain=plain, **good))
    assert parked is not None and parked.action.startswith("It is parked")
    words = explained(replace(FULL, times=0.94, **bad))
    for part in (
        "2.6x plain",
        "0.94 times plain ± 0.08, against 41",
        "20 of 100 guesses right",
        "1: 88% of 412",
        "What holds",
    ):
        assert part in words


def test_a_cause_is_told_when_the_gain_stays_low() -> None:
    slow, low = Slow(), replace(FULL, running=True, times_now=1.04)
    assert [slow.told(low, now) for now in (0.0, 2.9, 3.0, 9.0)] == [False, False, True, True]
    assert not slow.told(replace(low, times_now=1.06), 9.5) and not slow.told(low, 10.0)
    assert not Slow().told(replace(low, n=ENOUGH - 1), 99.0)


# ---------------------------------------------------------------------------------------------------- places


def test_places_by_size() -> None:
    def seen(width: int, height: int, mode: layout.Mode, **more: bool) -> tuple[bool, bool, str]:
        made = layout.plan((width, height), 100, mode, **more)
        assert made.left >= 1 and made.right >= 1
        return made.header, made.strip, made.side

    assert seen(110, 24, "panel") == (True, False, "beside") and seen(110, 23, "strip") == (False, True, "")
    assert seen(109, 40, "panel") == (True, True, "") and seen(80, 20, "strip") == (False, True, "")
    assert seen(79, 40, "panel") == (True, False, "") and seen(60, 20, "strip", over=True) == (False, False, "over")
    assert seen(100, 30, "panel", over=True) == (True, False, "over") and seen(20, 5, "panel") == (False, False, "")
    assert seen(120, 30, "chip", pane=True) == (True, False, "beside") and seen(100, 30, "chip", pane=True)[2] == ""
    wide = layout.plan((200, 40), 100, "panel")
    assert (wide.left, wide.right) == (30, 30 + layout.SIDE)

    def cycle(width: int) -> list[tuple[str, bool]]:
        now: tuple[layout.Mode, bool] = ("chip", False)
        found = []
        for _ in range(3):
            now = layout.following(width, now[0], over=now[1])
            found.append(now)
        return found

    assert cycle(120) == [("strip", False), ("panel", False), ("chip", False)]
    assert cycle(90) == [("strip", False), ("strip", True), ("chip", False)]
    assert cycle(60) == [("chip", True), ("chip", False), ("chip", True)]


async def test_figures_on_the_screen(ride: Any) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve\n"
    async with ride(answer(text, "AAC"), size=(120, 40)) as chat:
        head = chat.lines()[0]
        assert "Tiny Test 1M · fast" in head and "ctx 0/256" in head
        await chat.ask("hello rivers")
        assert "hello rivers" in chat.lines()[0] and "ctx 18/256" in chat.lines()[0]
        for mode, words in (("strip", "verify   1.0"), ("panel", "first token")):
            await chat.pilot.press("f5")
            await chat.until(lambda words=words: words in chat.screen())
            assert chat.chat.stats.mode == mode
        assert "accepted" in chat.screen() and "d1" in chat.screen() and "session 1: " in chat.screen()
        moved = chat.chat.stats.panel.told
        await chat.pilot.hover("#panel", offset=(3, 2))
        await chat.until(lambda: chat.chat.stats.panel.tooltip)
        assert "Tokens written per second" in str(chat.chat.stats.panel.tooltip)
        await chat.pilot.resize_terminal(100, 30)
        await chat.until(lambda: not chat.chat.stats.side.display and "ms draft" in chat.screen())
        await chat.pilot.press("f5")
        await chat.until(lambda: chat.chat.stats.side.has_class("-over") and chat.chat.stats.side.display)
        await chat.pilot.press("escape")
        await chat.until(lambda: not chat.chat.stats.side.display)
        await chat.pilot.resize_terminal(60, 20)
        await chat.until(lambda: "Tiny Test" not in chat.lines()[0] and not chat.chat.stats.strip.display)
        chat.chat.status.unflash()
        await chat.pilot.pause(0)
        assert [key in chat.status for key in ("F1 help", "F2 drafter", "F4 marks", "^o more", "F5")] == [True] * 4 + [
            False
        ]
        await chat.pilot.resize_terminal(20, 5)
        await chat.type("/stats panel")
        await chat.type("/stats nothing")
        await chat.pilot.resize_terminal(110, 24)
        await chat.until(lambda: chat.chat.stats.side.display)
        await chat.type("/why")
        assert "tokens a pass" in chat.notes[-2] and "chip, strip or panel, not nothing" in chat.notes[-1]
        assert len(moved) == len(chat.chat.stats.panel.told)
    async with ride(answer(text), size=(120, 40)) as chat:  # remembered
        assert chat.chat.stats.mode == "panel" and chat.chat.stats.side.display


def test_the_live_speed_up_is_the_reports(seed: int = 3) -> None:
    from outrider.app.chat.stats.figures import _of_tally
    from outrider.app.chat.talk import Reply

    tally, reply = Tally(), Reply()
    for step in passes(random.Random(seed), 40):
        tally.take(step)
        reply.meter.take(step)
    told = _of_tally(reply, tally)
    assert told["times"] == pytest.approx(20.0 * tally.rate / 1000)
    assert told["n"] == 39 and isinstance(reply.meter, Meter)


async def test_figures_are_titled_with_the_reply_and_drafter_they_are_of(ride: Any) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve\n"
    async with ride(answer(text, "AAC"), answer(text, "AAC"), size=(120, 40)) as chat:
        await chat.ask("hello")
        await chat.type("/stats panel")
        await chat.until(lambda: "last: prompt_lookup" in chat.screen())
        chat.chat.status.unflash()
        await chat.until(lambda: "/pass" in chat.status)
        await chat.type("/drafter suffix")
        await chat.until(lambda: "suffix: nothing measured yet." in " ".join(chat.screen().split()))
        assert "pinned · ready" in chat.screen() and "last: prompt_lookup" in chat.screen()
        assert "You chose this drafter" not in chat.screen()
        chat.chat.status.unflash()
        await chat.until(lambda: "suffix" in chat.status)
        assert "/pass" not in chat.status and "not riding" not in chat.status
        await chat.type("/why")
        assert (
            "suffix: pinned, ready. Nothing is measured of it yet; what follows is of the last reply: pro"
            in chat.notes[-1]
        )
        assert "What holds it back" not in chat.notes[-1] and "It pays" not in chat.notes[-1]
        await chat.type("/drafter prompt_lookup")
        await chat.until(lambda: "prompt_lookup    " in chat.screen() and "nothing measured" not in chat.screen())


async def test_a_note_about_a_reply_stands_under_it_and_goes_with_it(ride: Any) -> None:
    def order(chat: Any) -> list[str]:
        return [type(widget).__name__ for widget in chat.chat.transcript.children]

    async with ride(answer("One.\n"), answer("Two.\n"), answer("Again.\n"), size=(100, 40)) as chat:
        await chat.ask("first")
        await chat.type("/why")
        await chat.ask("second")
        await chat.type("/set")  # about nothing in particular
        await chat.type("/why")
        assert order(chat) == ["UserMessage", "ReplyView", "Note", "UserMessage", "ReplyView", "Note", "Note"]
        why = [note.about is not None for note in chat.chat.query("Note")]
        assert why == [True, True, False]
        await chat.type("/delete message")
        await chat.until(lambda: order(chat) == ["UserMessage", "ReplyView", "Note", "UserMessage", "Note"])
        await chat.type("/delete message")
        await chat.until(lambda: order(chat) == ["UserMessage", "ReplyView", "Note", "Note"])
        await chat.type("/regen")
        await chat.until(lambda: "Again." in chat.screen())
        await chat.ready()
        assert order(chat) == ["UserMessage", "ReplyView", "Note"]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_title_is_told_from_what_the_model_is(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from textual.geometry import Size

    from outrider.app.chat.header import Header

    header = Header()
    monkeypatch.setattr(Header, "size", property(lambda _: Size(width, 1)))
    header._told = "SmolLM2-135M.Q4_1", ("fast", ""), "Explain how a rainbow forms " * 9, ("ctx 1/2", "")
    line = header.render().plain
    assert (len(line) <= width and "fast    Explain" in line) or "Explain" not in line
    assert line.endswith("ctx 1/2") and line.count("…") == ("Explain" in line)


def test_the_key_to_all_others_is_never_left_out() -> None:
    from outrider.app.chat.status import _kept, hints

    told = hints(build("default", {}))
    assert [key for key, _ in _kept(told, 200)] == ["F1", "F2", "F3", "F4", "F5", "^o"]
    assert [key for key, _ in _kept(told, 40)] == ["F1", "F2", "^o"]
    assert [key for key, _ in _kept(told, 10)] == ["^o"] and _kept(told, 5) == []


# ---------------------------------------------------------------------------------------------------- one verdict


def test_many_replies_tell_what_each_alone_does_not() -> None:
    """Each is too close to 1 for a figure; adding up only those that have one would flatter."""
    totals = Totals()
    for _ in range(2):
        totals.add(report(plain=PlainTime(2.2, 0.14, 3)))
        assert totals.speedup is None
    for _ in range(20):
        totals.add(report(plain=PlainTime(2.2, 0.14, 3)))
    made = totals.speedup
    assert made is not None and made.value == pytest.approx(1.1) and 0.02 < made.error < 0.03 and made.n == 66
    assert "1.1× ±0.03" in session_words(totals)


@pytest.mark.parametrize("seconds", [0.5, 1.8, 1.9, 2.0, 2.1, 2.2, 4.0])
@pytest.mark.parametrize("error", [0.02, 0.3])
def test_every_place_tells_the_same_verdict(seconds: float, error: float) -> None:
    """The line under the reply, the status line, strip, panel, /why: one figure, or none, and green for a gain alone."""
    told = report(plain=PlainTime(seconds, error, 9), drafters={"eagle": 10})
    told.speedup = told.plain.speedup(told.timing.decode_s) if told.plain else None
    reply, tally = Reply(), Tally()
    reply.report = told
    for step in passes(random.Random(1), 20):
        tally.take(step)
        reply.meter.take(step)
    figures = gather(session_with(reply), reply, tally)
    words = explained(figures)
    lines = (*panel(figures, Totals(), None), *strip(figures, Totals(), None, 120))
    styles = {style for line in lines for text, style in line.parts if "×" in text and "plain " not in text}
    chip = [one for one in status_figures(session_with(reply)) if "×" in one.text]
    if told.speedup is None:
        assert figures.times is None and "times plain" not in words and "It pays" not in words and not chip
        assert not [text for text in summary(told) if "×" in text] and "as fast as" in words
        assert {"$text-disabled"} == styles
        return
    value = told.speedup.value
    assert f"{value:.2f} times plain" in words and figures.times == value
    assert ("It pays." in words) == (value >= 1.05)
    green = value > 1
    assert {one.style for one in chip} == styles == {"$text-success" if green else "$text-warning"}
    (shown,) = (text for text in summary(told) if "×" in text)
    assert shown == chip[0].text and (float(shown[:-1]) > 1) == green


def test_nothing_holds_back_what_was_not_measured() -> None:
    words = explained(replace(FULL, times=None, drafted=Share(4, 34), accepted=15, proposed=35))
    assert "Too short to measure" in words and "What holds" not in words and "times plain" not in words


def test_the_figures_of_a_running_reply_are_sure_too() -> None:
    from outrider.app.chat.stats.figures import _of_tally

    tally, reply = Tally(), Reply()
    for step in passes(random.Random(3), 40):
        step.plain = PlainPass(20.0, 20.0, step.seq)
        tally.take(step)
        reply.meter.take(step)
    told = _of_tally(reply, tally)
    assert told["times"] is None and told["estimate"] == pytest.approx(20.0 * tally.rate / 1000)


def session_with(reply: Reply) -> Any:
    """What the figures ask of a session whose last reply that is."""
    chat = SimpleNamespace(last_reply=lambda: reply)
    return SimpleNamespace(loaded=None, drafter=DrafterChoice(name="auto"), current=None, chat=chat)
