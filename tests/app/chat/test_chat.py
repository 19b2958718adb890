"""The chat as a user meets it, over a scripted engine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
from chat_support import Ride, answer, end, fails, notices, step, tinted, underlined
from textual.widgets import Static

from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.session import State
from outrider.app.chat.talk import End, Reply
from outrider.app.chat.transcript import UserMessage, Welcome
from outrider.core.base import protocol

LONG = " ".join(f"word{n}" for n in range(1800)) + "\n"
SLOW = answer(LONG, "PAB", pause=0.02)  # it waits to be stopped: what is done meanwhile takes a small part of its time
SIZES = [(80, 24), *(pytest.param(size, marks=pytest.mark.thorough) for size in ((60, 20), (120, 40)))]


def last(chat: Ride) -> Reply:
    """The newest reply."""
    reply = chat.session.chat.turns[-1].reply
    assert reply is not None
    return reply


async def writing(chat: Ride, characters: int = 40) -> None:
    """Wait until the reply is under way."""
    await chat.until(lambda: chat.session.state is State.WRITING and len(last(chat).answer.runs) > characters)


def kinds(chat: Ride) -> str:
    """The kinds of the newest reply, one letter a run."""
    return "".join(run.kind for run in last(chat).answer.runs)


async def test_welcome_goes_with_the_first_message(ride: Any) -> None:
    async with ride(answer("Hello there.\n")) as chat:
        assert "Tiny Test 1M" in chat.screen() and "enter" in chat.screen() and "F1" in chat.screen()
        await chat.pilot.press("h", "i", "enter")
        await chat.until(lambda: chat.session.chat.turns)
        await chat.ready()
        assert not chat.chat.query(Welcome)
        assert "Hello there." in chat.screen() and "hi" in chat.screen()


@pytest.mark.parametrize("size", SIZES)
async def test_reply_streams_with_marks_and_figures(ride: Any, size: tuple[int, int]) -> None:
    text = "# Big title\n\nSome **bold words** here.\n\n- item `code` end\n\n```py\nx = one\n```\n"
    async with ride(answer(text, "PA", pause=0.02), size=size) as chat:
        await chat.ask("go")
        views = list(chat.chat.query(Settled))
        assert "".join(view.piece.text for view in views) == text
        leaves = [leaf for view in views for leaf in view.query("_Paragraph, _H1, Label")]
        ground = chat.app.palette.ground
        assert ground is not None
        assert [tinted(leaf, ground) for leaf in leaves[:2]] == ["Big/", "Some words/"]
        chat.app.palette.adapt(None)
        chat.chat.sight.repaint()
        assert [underlined(leaf) for leaf in leaves] == ["Big/", "Some words/", " code/", " =/"]
        assert last(chat).text == text
        assert "/pass" in chat.screen() and "% accepted · prompt_lookup" in chat.screen()
        assert "ready" in chat.status


async def test_table_cells_are_marked(ride: Any) -> None:
    text = "| one | two |\n|---|---|\n| same | same |\n| x | same |\n"
    async with ride(answer(text, "PPPAPPPPPAPPPPAPP")) as chat:
        await chat.ask("go")
        chat.app.palette.adapt(None)
        chat.chat.sight.repaint()
        (table,) = chat.chat.query("_Table")
        assert underlined(table) == "two//same/same/"
        shown = [line.strip(" ▁▂▃▄▅▆▇█") for line in chat.lines()]
        at = next(n for n, line in enumerate(shown) if line.startswith("one"))
        assert shown[at : at + 4] == ["one  │ two", "─────┼─────", "same │ same", "x    │ same"]


async def test_tail_has_exact_marks(ride: Any) -> None:
    lines = [step(0, 0.0, [("plain", "P"), (" *acc", "A"), ("ep[ted", "A"), (" not", "C")]), end()]
    lines[-1]["at"] = 60.0
    async with ride(lines) as chat:
        await chat.type("go")
        await writing(chat, 15)
        chat.app.palette.adapt(None)
        chat.chat.sight.repaint()
        tail = chat.chat.query_one(MarkedText)
        await chat.until(lambda: underlined(tail) == " *accep[ted/")
        assert "plain *accep[ted not" in chat.screen()
        await chat.pilot.press("escape")
        await chat.ready()


async def test_f2_switches_the_drafter_in_mid_answer(ride: Any) -> None:
    async with ride(SLOW) as chat:
        await chat.type("go")
        await writing(chat)
        await chat.pilot.press("f2")
        assert chat.session.drafter.name == "none" and "Drafting off" in chat.status
        await chat.until(lambda: last(chat).drafters[-1] == "none")
        await chat.pilot.press("f2")
        assert "prompt_lookup" in chat.status and "repeats the chat" in chat.status
        await chat.until(lambda: last(chat).drafters[-1] == "prompt_lookup")
        await chat.pilot.press("shift+f2", "shift+f2", "shift+f2")
        assert chat.session.drafter.name == "suffix"
        await chat.until(lambda: last(chat).drafters[-1] == "suffix")
        await chat.pilot.press("escape")
        await chat.ready()
        assert last(chat).drafters[:3] == ["prompt_lookup", "none", "prompt_lookup"]
        assert LONG.startswith(last(chat).text)
        report = last(chat).report
        assert report is not None and report.drafters["none"] > 0


async def test_f3_switches_drafting_off_and_back(ride: Any) -> None:
    async with ride(SLOW) as chat:
        chat.chat.choices.drafter("suffix")
        await chat.type("go")
        await writing(chat)
        await chat.pilot.press("f3")
        await chat.until(lambda: kinds(chat).endswith("P"))
        runs, size = len(kinds(chat)), len(last(chat).answer.runs)
        await chat.until(lambda: last(chat).drafters[-1] == "none" and len(last(chat).answer.runs) > size + 100)
        assert len(kinds(chat)) <= runs + 1
        await chat.pilot.press("f3")
        await chat.until(lambda: last(chat).drafters[-1] == "suffix")
        await chat.pilot.press("escape")
        await chat.ready()


async def test_f4_switches_all_marks_at_once(ride: Any) -> None:
    first = answer("Settled words here.\n\nAnd more words.\n", "PA")
    async with ride(first, SLOW) as chat:
        chat.app.palette.adapt(None)
        await chat.ask("one")
        await chat.type("two")
        await writing(chat)
        marks = lambda: "".join(underlined(text) for text in chat.chat.query("_Paragraph, MarkedText")).strip("/")  # noqa: E731
        assert marks()
        for words in ("Marks passes", "Marks corrections", "Marks confidence", "Marks off"):
            await chat.pilot.press("f4")
            await chat.until(lambda words=words: words in chat.status)
        await chat.until(lambda: not marks().replace("/", ""))
        await chat.pilot.press("f4")
        await chat.until(marks)
        await chat.pilot.press("escape")
        await chat.ready()


async def test_esc_stops_and_keeps_the_text(ride: Any) -> None:
    async with ride(SLOW, answer("Fine.\n")) as chat:
        await chat.type("go")
        await writing(chat)
        await chat.pilot.press("escape")
        await chat.ready()
        kept = last(chat).text
        assert last(chat).end is End.STOPPED and LONG.startswith(kept) and len(kept) > 40
        assert "stopped · " in chat.screen() and kept[:20] in chat.screen()
        await chat.ask("next")
        said = [(message.role, message.content) for message in chat.session.chat.messages()]
        assert said == [("user", "go"), ("assistant", kept), ("user", "next"), ("assistant", "Fine.\n")]


async def test_killed_engine_keeps_the_text_and_comes_back(ride: Any) -> None:
    async with ride(SLOW, process=True) as chat:
        await chat.type("go")
        await writing(chat)
        first = chat.session.client.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await chat.until(lambda: last(chat).end is End.INTERRUPTED)
        kept = last(chat).text
        await chat.ready()
        assert kept and LONG.startswith(kept)
        (card,) = chat.cards
        assert "stopped working" in card and "SIGKILL" in card and "just go on" in card
        assert "interrupted" in chat.screen()
        assert chat.session.client.pid != first
        await chat.type("again")
        await writing(chat)
        await chat.pilot.press("escape")
        await chat.ready()
        assert last(chat).end is End.STOPPED and LONG.startswith(last(chat).text)
        assert [message.content for message in chat.session.chat.messages()][:2] == ["go", kept]


async def test_second_stop_ends_an_engine_that_does_not_answer(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.app.chat.session._DEAF", 0.05)
    async with ride(SLOW, process=True) as chat:
        await chat.type("go")
        await writing(chat)
        os.kill(chat.session.client.pid, signal.SIGSTOP)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.session.state is State.STOPPING and "stopping" in chat.status)
        await asyncio.sleep(0.1)  # the deaf one is given longer than `_DEAF`
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.cards)
        await chat.ready()
        assert last(chat).end is End.INTERRUPTED and last(chat).begun


async def test_engine_that_dies_between_replies_comes_back(ride: Any) -> None:
    async with ride(answer("Yes.\n"), process=True) as chat:
        os.kill(chat.session.client.pid, signal.SIGTERM)
        await chat.until(lambda: chat.cards)
        await chat.ready()
        await chat.ask("still there?")
        assert last(chat).text == "Yes.\n"


async def test_engine_that_cannot_start_is_tried_again_with_the_next_message(ride: Any) -> None:
    async with ride(command=(sys.executable, "-c", "import sys; sys.exit('no luck today')"), ready=False) as chat:
        await chat.until(lambda: chat.cards)
        await chat.ready()
        assert "exit code 1" in chat.cards[0] and "no luck today" in chat.cards[0]
        assert chat.session.state is State.DIED and "engine died" in chat.status
        await chat.type("hello")
        await chat.until(lambda: len(chat.cards) == 2)
        assert "hello" in chat.screen()
    async with ride(command=("/nowhere/engine",), ready=False) as chat:
        await chat.until(lambda: chat.cards)
        assert "could not be started" in chat.cards[0]


async def test_model_that_cannot_be_loaded_is_a_card(ride: Any) -> None:
    frame = {"type": "Failed", "request": 0, "message": "There is no model `x`.", "hint": "See `outrider models list`."}
    async with ride(load=[{"on": "load", "at": 0.0, "frame": frame}], ready=False) as chat:
        await chat.until(lambda: chat.cards)
        await chat.ready()
        assert "could not be loaded" in chat.cards[0] and "models list" in chat.cards[0]
        assert "no model" in chat.status


async def test_refused_message_is_a_card_and_comes_back_for_editing(ride: Any) -> None:
    refusal = fails("The prompt has 999 tokens, the model takes 256.", "Shorten it or begin a new chat.")
    async with ride(refusal, answer("Better.\n")) as chat:
        await chat.ask("far too long")
        (card,) = chat.cards
        assert "999 tokens" in card and "new chat" in card
        assert chat.chat.prompt.text == "far too long"
        await chat.ask("short")
        assert [message.content for message in chat.session.chat.messages()] == ["short", "Better.\n"]


async def test_failure_in_mid_answer_keeps_the_text(ride: Any) -> None:
    lines = [step(0, 0.0, [("Half of", "P")]), *fails("Out of memory.", "Use a smaller context.")]
    lines[-1]["at"] = 0.1
    async with ride(lines) as chat:
        await chat.ask("go")
        assert last(chat).end is End.INTERRUPTED and "Half of" in chat.screen() and "Out of memory" in chat.cards[0]
        assert chat.chat.prompt.text == ""
        assert [message.content for message in chat.session.chat.messages()] == ["go", "Half of"]


async def test_notice_is_a_line(ride: Any) -> None:
    async with ride([*notices("The drafter `suffix` failed and was closed."), *answer("Fine.\n")]) as chat:
        await chat.ask("go")
        assert chat.notes == ["The drafter `suffix` failed and was closed."]


def is_loaded(event: protocol.Event) -> bool:
    """Whether the model is there."""
    return isinstance(event, protocol.Result)


async def test_messages_wait_until_the_engine_is_ready(ride: Any) -> None:
    async with ride(answer("First.\n"), answer("Second.\n"), hold=is_loaded, ready=False) as chat:
        await chat.until(lambda: "loading · reading weights 43%" in chat.status)
        await chat.type("one")
        await chat.type("two")
        await chat.until(lambda: len(chat.chat.query("UserMessage.-waiting")) == 2 and "two" in chat.screen())
        chat.release()
        await chat.until(lambda: len(chat.session.chat.turns) == 2 and last(chat).end is End.WHOLE)
        await chat.ready()
        assert not chat.chat.query("UserMessage.-waiting")
        order = [type(widget).__name__ for widget in chat.chat.transcript.children]
        assert order == ["UserMessage", "ReplyView", "UserMessage", "ReplyView"]


async def test_message_sent_while_busy_waits_and_can_be_taken_back(ride: Any) -> None:
    async with ride(SLOW, hold=is_loaded, ready=False) as chat:
        await chat.type("soon")
        await chat.pilot.press("escape")
        assert chat.chat.prompt.text == "soon" and not chat.chat.query(UserMessage)
        await chat.pilot.press("enter")
        chat.release()
        await writing(chat)
        await chat.type("later")
        assert len(chat.chat.query("UserMessage.-waiting")) == 1
        await chat.pilot.press("escape")
        await chat.until(lambda: len(chat.session.chat.turns) == 2)
        await chat.pilot.press("escape")


async def test_what_the_model_writes_is_never_interpreted(ride: Any) -> None:
    evil = "[red]x[/red] [@click=app.quit]y[/] \x1b[31mz\x07 \u202eabc\x9b1m <b>h</b>\n\nnext $text [/\n"
    async with ride(answer(evil)) as chat:
        await chat.ask("[bold]me[/bold] \x1b[2J")
        shown = chat.screen()
        assert "[red]x[/red] [@click=app.quit]y[/] ␛[31mz␇ \ufffdabc\ufffd1m <b>h</b>" in shown
        assert "next $text [/" in shown and "[bold]me[/bold] ␛[2J" in shown
        assert last(chat).text == evil
        await chat.pilot.press("ctrl+y")
        assert chat.app.clipboard == evil


async def test_final_text_that_differs_replaces_what_was_shown(ride: Any) -> None:
    async with ride(answer("Keep this. STOP and more\n", "A")) as chat:
        original = Reply.finish

        def shorter(self: Reply, finish: Any, report: Any) -> bool:
            report.text = "Keep this. "
            return original(self, finish, report)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reply, "finish", shorter)
            await chat.ask("go")
        assert "Keep this." in chat.screen() and "STOP" not in chat.screen()
        assert last(chat).text == "Keep this. " and len(last(chat).answer.runs) == 11


async def test_follows_the_end_unless_scrolled_up(ride: Any) -> None:
    async with ride(SLOW, answer("\n\n".join(f"line {n}" for n in range(30)) + "\n")) as chat:
        await chat.type("skip")
        await writing(chat)
        await chat.pilot.press("escape")
        await chat.ready()
        await chat.ask("fill")
        transcript = chat.chat.transcript
        assert transcript.scroll_y == transcript.max_scroll_y > 0
        await chat.type("go")
        await writing(chat)
        await chat.pilot.press("pageup")
        await chat.pilot.pause()
        place = transcript.scroll_y
        assert place < transcript.max_scroll_y and chat.chat.focused is chat.chat.prompt
        size = len(last(chat).answer.runs)
        await chat.until(lambda: len(last(chat).answer.runs) > size + 150)
        assert transcript.scroll_y == place
        await chat.pilot.press("ctrl+end")
        await chat.until(lambda: transcript.scroll_y == transcript.max_scroll_y)
        size = len(last(chat).answer.runs)
        await chat.until(lambda: len(last(chat).answer.runs) > size + 150)
        assert transcript.scroll_y == transcript.max_scroll_y
        await chat.pilot.press("escape")
        await chat.ready()


async def test_far_replies_are_given_up_and_come_back(ride: Any) -> None:
    texts = [f"# Reply {n}\n\n" + "\n\n".join(f"paragraph {n}.{m}" for m in range(18)) + "\n" for n in range(5)]
    async with ride(*(answer(text, "PA") for text in texts)) as chat:
        for n in range(5):
            await chat.ask(f"question {n}")
        views = list(chat.chat.query(ReplyView))
        await chat.until(lambda: views[0].frozen)
        assert not views[0].query(Settled) and views[-1].query(Settled)
        heights = [view.outer_size.height for view in views]
        await chat.pilot.press("ctrl+home")
        await chat.until(lambda: not views[0].frozen and views[-1].frozen and "paragraph 0.0" in chat.screen())
        assert "question 0" in chat.screen() and chat.chat.transcript.scroll_y == 0
        assert [view.outer_size.height for view in views] == heights
        await chat.pilot.press("ctrl+end")
        await chat.until(lambda: not views[-1].frozen and "paragraph 4.17" in chat.screen())


async def test_prompt_progress_is_shown(ride: Any) -> None:
    frame = {"type": "Progress", "request": 0, "phase": "prompt", "done": 512, "total": 2048, "unit": "tokens"}
    lines = [{"on": "generate", "at": 0.0, "frame": frame}, *answer("Done.\n")]
    async with ride(lines, hold=lambda event: isinstance(event, protocol.Step)) as chat:
        await chat.type("long one")
        await chat.until(lambda: "thinking… · prompt 25%" in chat.status)
        chat.release()
        await chat.ready()
        assert "prompt" not in chat.status.split("auto")[0]


async def test_new_chat_in_mid_answer(ride: Any) -> None:
    async with ride(SLOW, answer("Fresh.\n")) as chat:
        await chat.type("old")
        await writing(chat)
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: chat.chat.query(Welcome))
        await chat.ask("new")
        assert [message.content for message in chat.session.chat.messages()] == ["new", "Fresh.\n"]
        assert "word1" not in chat.screen() and "Fresh." in chat.screen()


async def test_underlines_where_colours_are_missing(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with ride(answer("plain accepted\n", "PA")) as chat:
        await chat.ask("go")
        assert chat.app.palette.ground is None
        assert [underlined(text) for text in chat.chat.query("_Paragraph")] == [" accepted/"]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.delenv("COLORTERM")
    monkeypatch.setenv("TERM", "xterm")
    async with ride(answer("x\n")) as chat:
        assert chat.app.palette.ground is None


async def test_light_theme_has_its_own_tint(ride: Any) -> None:
    async with ride(answer("plain accepted\n", "PA")) as chat:
        await chat.ask("go")
        dark = chat.app.palette.ground
        await chat.type("/theme")
        await chat.until(lambda: chat.app.palette.ground != dark)
        (paragraph,) = chat.chat.query("_Paragraph")
        assert not chat.app.current_theme.dark and chat.app.palette.ground is not None
        await chat.until(lambda: tinted(paragraph, chat.app.palette.ground) == " accepted/")


async def test_narrow_screen_keeps_the_important_words(ride: Any) -> None:
    async with ride(SLOW, size=(48, 20)) as chat:
        await chat.type("go")
        await writing(chat)
        await chat.until(lambda: "tok/s" in chat.status)
        assert "writing" in chat.status and len(chat.status) <= 48
        await chat.pilot.press("escape")
        await chat.ready()
        assert all(isinstance(widget, Static) or widget.size.width <= 48 for widget in chat.chat.transcript.children)
