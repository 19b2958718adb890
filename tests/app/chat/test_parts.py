"""The parts that know no screen: sanitiser, run lengths, replies, figures, sampling words, palette, frames."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from textual.color import Color

from outrider.app.chat.clean import harmless
from outrider.app.chat.frames import SHARE, TICK, Frames
from outrider.app.chat.marks import Runs, project
from outrider.app.chat.meter import PAUSE, Meter, brief, main_drafter, mean_per_pass, size, speed, summary
from outrider.app.chat.palette import CONTRAST, Palette, contrast, tint
from outrider.app.chat.sampling import changed_sampling, describe
from outrider.app.chat.status import progress_words
from outrider.app.chat.talk import Chat, End, Reply, Turn
from outrider.app.chat.terminal import REMOTE_TICK
from outrider.app.chat.themes import DARK, LIGHT, first_theme
from outrider.app.chat.transcript import shortened
from outrider.core.base.protocol import Progress, Report, Sampling, Speedup, Step, Timing, Token


def step(seq: int, at: float, *tokens: tuple[str, Any], drafter: str = "suffix") -> Step:
    """A pass that emitted these tokens."""
    words = [Token(1, text, kind) for text, kind in tokens]
    return Step(
        request=1,
        seq=seq,
        t=at,
        drafter=drafter,
        proposed=3,
        accepted=2,
        tokens=words,
        draft_ms=1,
        verify_ms=2,
        host_ms=0,
    )


def report(text: str, **changes: Any) -> Report:
    """A report with plausible figures."""
    fields: dict[str, Any] = {
        "model": "starter",
        "drafter": "auto",
        "rule": "match",
        "seed": 1,
        "text": text,
        "token_ids": [1] * 24,
        "prompt_tokens": 9,
        "finish": "stop",
        "passes": 10,
        "proposed": 20,
        "accepted": 14,
        "kinds": "A" * 24,
        "timing": Timing(first_token_s=0.4, decode_s=1.5),
        "tokens_per_second": 41.3,
        "drafters": {"none": 1, "suffix": 9},
        "speedup": None,
    }
    return Report(**{**fields, **changes})


# ---------------------------------------------------------------------------------------------------- sanitiser


def test_harmless_keeps_offsets_and_ordinary_text() -> None:
    text = "héllo\n\t漢字 🙂 שלום مرحبا \u200d\ufe0f"
    assert harmless(text) == text
    for code in [
        *range(0x20),
        *range(0x7F, 0xA0),
        0x2028,
        0x2029,
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0xD800,
    ]:
        shown = harmless(f"a{chr(code)}b")
        assert len(shown) == 3
        if chr(code) not in "\n\t":
            assert shown[1] != chr(code) and (shown[1].isprintable() or shown[1] == "\ufffd")


def test_a_long_paste_is_shown_in_part() -> None:
    assert shortened("a\nb") == "a\nb"
    assert shortened("x" * 5000) == "x" * 2000 + "…\n(3,000 more characters)"
    assert shortened("l\n" * 100).count("\n") == 24


# ---------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize("seed", range(20))
def test_runs_agree_with_a_plain_list(seed: int) -> None:
    draw = random.Random(seed)
    runs, plain = Runs(), ""
    for _ in range(draw.randint(0, 40)):
        kind, length = draw.choice("ACBP"), draw.randint(0, 5)
        runs.add(kind, length)  # type: ignore[arg-type]
        plain += kind * length
    assert len(runs) == len(plain)
    assert "".join(run.kind * (run.end - run.start) for run in runs) == plain
    assert all(one.kind != other.kind for one, other in zip(list(runs), list(runs)[1:], strict=False))
    low = draw.randint(0, len(plain))
    high = draw.randint(low, len(plain) + 3)
    assert "".join(run.kind * (run.end - run.start) for run in runs.between(low, high)) == plain[low:high]
    runs.cut(low)
    assert "".join(run.kind * (run.end - run.start) for run in runs) == plain[:low]
    runs.add("A", 2)
    assert len(runs) == low + 2


def test_runs_encode() -> None:
    runs = Runs()
    for kind, length in (("P", 3), ("A", 10), ("A", 2), ("C", 1)):
        runs.add(kind, length)  # type: ignore[arg-type]
    assert runs.encode() == "P3A12C1"


def test_project_bridges_single_gaps_between_equal_marks_only() -> None:
    runs = Runs()
    for kind, length in (("A", 4), ("P", 4), ("A", 2)):
        runs.add(kind, length)  # type: ignore[arg-type]
    marks = project(iter(runs), [0, -1, 2, -1, 5, 6, -1, 8, 9])
    assert [(run.start, run.end, run.kind) for run in marks] == [(0, 3, "A"), (4, 6, "P"), (7, 9, "A")]
    assert project(iter(runs), [-1, -1]) == []


# ---------------------------------------------------------------------------------------------------- replies


def test_reply_gives_out_what_is_fresh_and_keeps_all() -> None:
    reply = Reply()
    assert not reply.begun and reply.answer.fresh() == ""
    reply.take(step(0, 0.1, ("Hel", "P")))
    reply.take(step(1, 0.2, ("lo", "A"), ("", "A"), (" you", "C")))
    assert reply.answer.fresh() == "Hello you" and reply.answer.fresh() == ""
    assert reply.text == "Hello you"
    reply.take(step(2, 0.3, ("!", "B")))
    assert reply.answer.fresh() == "!" and reply.text == "Hello you!" and reply.answer.runs.encode() == "P3A2C4B1"
    assert reply.finish("stop", report("Hello you!")) and reply.end is End.WHOLE


def test_reply_takes_the_reports_text_if_it_differs() -> None:
    reply = Reply()
    reply.take(step(0, 0.1, ("Hello", "A"), (" STOP", "C")))
    assert not reply.finish("cancelled", report("Hello"))
    assert reply.text == "Hello" and reply.answer.runs.encode() == "A5" and reply.end is End.STOPPED
    other = Reply()
    other.take(step(0, 0.1, ("abc", "A")))
    assert not other.finish("length", report("xyz!"))
    assert other.text == "xyz!" and other.answer.runs.encode() == "P4" and other.end is End.LENGTH


def test_messages_alternate_and_leave_out_what_was_refused() -> None:
    kept, empty = Reply(), Reply()
    kept.take(step(0, 0.1, ("half", "P")))
    kept.interrupt()
    turns = [Turn("one", empty), Turn("two", kept), Turn("refused", None, failed=True), Turn("three")]
    chat = Chat("Be kind.", turns)
    assert [(message.role, message.content) for message in chat.messages()] == [
        ("system", "Be kind."),
        ("user", "one\n\ntwo"),
        ("assistant", "half"),
        ("user", "three"),
    ]
    assert chat.last_reply() is kept and Chat().last_reply() is None


# ---------------------------------------------------------------------------------------------------- figures


def test_meter_rolls_over_two_seconds() -> None:
    meter = Meter()
    assert meter.tokens_per_second is None and meter.tokens_per_pass is None
    for n in range(50):
        meter.take(step(n, n * 0.1, *[("x", "A")] * (1 if n < 25 else 3)))
    assert meter.tokens_per_second == pytest.approx(30.0) and meter.tokens_per_pass == pytest.approx(3.0)


def test_meter_calls_a_drafter_parked_only_after_a_while() -> None:
    meter = Meter()
    meter.take(step(0, 0.0, ("x", "P")))
    meter.take(step(1, 0.1, ("x", "P"), drafter="none"))
    assert meter.drafter == "suffix" and not meter.parked
    meter.take(step(2, 2.5, ("x", "P"), drafter="none"))
    assert meter.parked


def test_the_words_for_a_choice_stay_until_they_can_be_read() -> None:
    meter = Meter()
    for seq, (at, why) in enumerate([(0.0, "one"), (0.1, "two"), (0.2, ""), (PAUSE + 0.1, "three")]):
        one = step(seq, at, ("x", "P"))
        one.why = why
        meter.take(one)
        assert meter.why == ("three" if why == "three" else "one")


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("suffix, 8 tokens: 3.1 tokens a pass at 1.4x the cost; 2.2x plain", "8 tokens, 2.2x plain"),
        ("parked: suffix would give 0.93x; next try in 32 rounds", "parked: suffix would give 0.93x"),
        ("plain: no drafter has a guess", "plain: no drafter has a guess"),
        ("measuring plain speed", "measuring plain speed"),
    ],
)
def test_the_words_for_a_choice_in_brief(why: str, said: str) -> None:
    assert brief(why) == said


def test_summary_says_what_a_reader_wants() -> None:
    assert " · ".join(summary(report("x"))) == "41 tok/s · 2.4/pass · 70% accepted · suffix · 1.9 s"
    fast = report("x", speedup=Speedup(1.74, 0.1, 8))
    assert "1.7×" in summary(fast)
    plain = report("x", proposed=0, accepted=0, drafters={"none": 23}, passes=0, tokens_per_second=0.0)
    assert summary(plain) == ["no drafting", "1.9 s"]
    assert summary(report("x", rule="typical"))[0] == "lossy: typical acceptance"
    assert mean_per_pass(plain) is None and main_drafter(plain) == "none"
    assert speed(4.26) == "4.3 tok/s" and [size(n) for n in (5, 98_362_432, 1_200)] == ["5 B", "98 MB", "1.2 kB"]


def test_progress_is_put_in_words() -> None:
    assert progress_words(Progress(request=1, phase="weights", done=43, total=100)) == "weights 43%"
    assert progress_words(Progress(request=1, phase="weights", done=5e6, unit="bytes")) == "weights 5.0 MB"
    assert progress_words(Progress(request=1, phase="prompt", done=7, unit="tokens")) == "prompt 7 tokens"
    assert progress_words(Progress(request=1, phase="warm-up")) == "warm-up"


# ---------------------------------------------------------------------------------------------------- sampling


def test_sampling_words() -> None:
    start = Sampling(temperature=0.7)
    changed = changed_sampling(start, "top_k 40")
    assert changed.top_k == 40 and start.top_k is None
    assert changed_sampling(start, "") is start
    assert describe(Sampling(), None) == "Sampling: the model's defaults."
    assert describe(Sampling(seed=3), Sampling(temperature=0.5)) == "Sampling: temperature 0.5 (model), seed 3."
    for words in ("temperature nan", "seed 1.5", "top-p 0", "nothing 1", "seed"):
        with pytest.raises(ValueError, match=r".+\."):
            changed_sampling(start, words)


# ---------------------------------------------------------------------------------------------------- palette


@pytest.mark.parametrize("theme", [DARK, LIGHT])
@pytest.mark.parametrize("colors", ["truecolor", "256"])
def test_tint_keeps_text_readable(theme: Any, colors: str) -> None:
    surface, text = Color.parse(theme.background), Color.parse(theme.foreground)
    found = tint(dark=theme.dark, surface=surface, text=text, colors=colors)
    assert found is not None and found.a < 0.3
    assert contrast(text, surface + found) >= CONTRAST


def test_tint_gives_way_to_an_underline() -> None:
    white, grey = Color.parse("white"), Color.parse("#777777")
    assert tint(dark=False, surface=white, text=grey, colors="truecolor") is None
    assert tint(dark=False, surface=white, text=Color.parse("black"), colors="standard") is None
    assert tint(dark=False, surface=white, text=Color.parse("black"), colors=None) is None
    accepted = Palette().style("mark-accepted")
    assert accepted is not None and accepted.underline


def test_first_theme_follows_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORFGBG", "0;15")
    assert first_theme() == LIGHT.name
    monkeypatch.setenv("COLORFGBG", "15;0")
    assert first_theme() == DARK.name
    monkeypatch.delenv("COLORFGBG")
    assert first_theme() == DARK.name


# ---------------------------------------------------------------------------------------------------- frames


async def test_frames_paint_once_for_many_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_TTY", raising=False)
    painted = 0

    async def paint() -> None:
        nonlocal painted
        painted += 1

    frames = Frames(paint, lambda: asyncio.sleep(0))
    task = asyncio.create_task(frames.run())
    for _ in range(200):
        frames.wake()
        await asyncio.sleep(0)
    assert painted == 1
    await asyncio.sleep(TICK * 2)
    assert painted == 2
    task.cancel()


async def test_frames_leave_time_after_a_costly_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_TTY", "/dev/pts/1")
    waits: list[float] = []
    clock = iter([0.0, 0.05, 1.0, 1.001])

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise asyncio.CancelledError

    async def nothing() -> None:
        return

    frames = Frames(nothing, nothing)
    monkeypatch.setattr("outrider.app.chat.frames.time.thread_time", lambda: next(clock))
    monkeypatch.setattr("outrider.app.chat.frames.asyncio.sleep", sleep)
    original = nothing

    async def again() -> None:
        frames.wake()
        await original()

    frames._paint = again
    frames.wake()
    with pytest.raises(asyncio.CancelledError):
        await frames.run()
    assert waits == [pytest.approx(SHARE * 0.05), REMOTE_TICK]
