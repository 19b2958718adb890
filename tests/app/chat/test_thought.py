"""Thoughts in the chat: dim above the answer, open while they come, one line after that, and never copied or said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from chat_support import Ride, answer, end, fails, step, thoughtful, tinted, underlined
from textual.widget import Widget

from outrider.app.chat.compat import MarkedText, Settled
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.session import State
from outrider.app.chat.talk import Chat, End, Reply, Thought, Turn
from outrider.app.chat.thought import FoldLine, ThoughtView, figures
from outrider.app.client import EngineClient
from outrider.core.base import protocol

THOUGHT = "The user asks.\n\n- one item\n- another item\n\nSo I say it."
LONG = "\n\n".join(f"idea{n} and more" for n in range(600))
SLOW = thoughtful(LONG, "Done.\n", "PA", pause=0.02)


def view(chat: Ride) -> ThoughtView:
    """The newest thought."""
    return list(chat.chat.query(ThoughtView))[-1]


def line(chat: Ride) -> str:
    """The line over the newest thought."""
    return str(view(chat).query_one(FoldLine).visual)


def rendered(thought: Widget) -> str:
    """What of a thought is rendered."""
    return "".join(piece.piece.text for piece in thought.query(Settled))


async def thinking(chat: Ride, characters: int = 40) -> None:
    """Wait until a thought is under way and seen."""
    turns = chat.session.chat.turns
    await chat.until(lambda: turns and turns[-1].reply is not None and len(turns[-1].reply.thought.runs) > characters)
    await chat.until(lambda: chat.chat.query(ThoughtView))


def answers(event: protocol.Event) -> bool:
    """Whether a pass brought more than thought."""
    return isinstance(event, protocol.Step) and not all(token.thinking for token in event.tokens)


@pytest.mark.parametrize("size", [(60, 20), pytest.param((120, 40), marks=pytest.mark.thorough)])
async def test_a_thought_is_open_while_it_comes_and_folds_for_the_answer(ride: Any, size: tuple[int, int]) -> None:
    async with ride(thoughtful(THOUGHT, "It is **so**.\n"), size=size, hold=answers) as chat:
        await chat.type("go")
        await chat.until(lambda: "▾ thinking… 0 s" in chat.screen() and "The user asks." in chat.screen())
        assert chat.session.state is State.THINKING
        chat.release()
        await chat.ready()
        assert line(chat).startswith("▸ thought for ") and line(chat).endswith(" s, 15 tokens")
        shown = chat.screen()
        assert "The user asks." not in shown and shown.index("▸ thought") < shown.index("It is so.")
        assert not view(chat).query(Settled) and not view(chat).query_one(MarkedText).display
        assert chat.session.chat.turns[-1].reply.thought.text == THOUGHT


async def test_ways_to_unfold_it(ride: Any) -> None:
    async with ride(thoughtful(THOUGHT, "First.\n"), thoughtful("Short.", "Second.\n"), size=(80, 40)) as chat:
        await chat.pilot.press("ctrl+l")
        assert "No reply began with a thought" in chat.status
        await chat.ask("one")
        assert "ctrl+l shows" in chat.status
        await chat.ask("two")
        first, second = chat.chat.query(ThoughtView)
        await chat.pilot.press("ctrl+l")
        await chat.until(lambda: not second.folded)
        assert "Short." in chat.screen() and first.folded
        await chat.pilot.press("alt+up", "t")
        await chat.until(lambda: second.folded)
        chat.chat.query(ReplyView).first().focus()
        await chat.pilot.press("t")
        await chat.until(lambda: not first.folded and "another item" in chat.screen())
        assert rendered(first) == THOUGHT
        await chat.pilot.click(first.query_one(FoldLine))
        await chat.until(lambda: first.folded and "another item" not in chat.screen())
        chat.chat.prompt.focus()
        await chat.type("/thought")
        await chat.until(lambda: not second.folded)


async def test_what_the_user_chose_while_it_comes_holds(ride: Any) -> None:
    async with ride(SLOW, SLOW) as chat:
        await chat.type("go")
        await thinking(chat)
        await chat.pilot.press("ctrl+l")
        await chat.until(lambda: view(chat).folded)
        size = len(chat.session.chat.turns[-1].reply.thought.runs)
        await thinking(chat, size + 200)
        await chat.pilot.pause()
        assert not view(chat).query(Settled) and "▸ thinking…" in line(chat) and "idea" not in chat.screen()
        await chat.pilot.press("ctrl+l")
        await chat.until(lambda: "idea" in chat.screen())
        await chat.pilot.press("escape")
        await chat.ready()
        kept = chat.session.chat.turns[-1].reply.thought.text
        assert not view(chat).folded and rendered(view(chat)) == kept and "▾ thought for" in line(chat)


async def test_marks_in_a_thought(ride: Any) -> None:
    lines = [step(0, 0.0, [("plain", "P"), (" *acc", "A"), ("ep[ted", "A"), (" not", "C")], thinking=True)]
    late = step(1, 60.0, [("Yes.", "P")])
    async with ride([*lines, late, end() | {"at": 60.0}], thoughtful("plain **accepted**", "x\n", "PA")) as chat:
        await chat.type("go")
        await chat.until(lambda: chat.chat.query(ThoughtView))
        tail = view(chat).query_one(MarkedText)
        ground = chat.app.palette.ground
        assert ground is not None
        await chat.until(lambda: tinted(tail, ground) == " *accep[ted/")
        await chat.pilot.press("escape")
        await chat.ready()
        await chat.ask("more")
        await chat.pilot.press("ctrl+l")
        await chat.until(lambda: view(chat).query("_Paragraph"))
        chat.app.palette.adapt(None)
        chat.chat.sight.repaint()
        (words,) = view(chat).query("_Paragraph")
        assert underlined(words) == " accepted/"
        await chat.type("/marks off")
        await chat.until(lambda: underlined(words) == "/")


async def test_a_thought_is_not_copied_but_goes_back_to_the_engine(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    stream = EngineClient.stream

    def listen(self: EngineClient, request: protocol.Request) -> AsyncIterator[protocol.Event]:
        asked.append(request)
        return stream(self, request)

    monkeypatch.setattr(EngineClient, "stream", listen)
    async with ride(thoughtful(THOUGHT, "It is so.\n"), answer("Fine.\n")) as chat:
        await chat.ask("one")
        await chat.pilot.press("ctrl+y")
        assert chat.app.clipboard == "It is so.\n" and "without its thought" in chat.status
        await chat.type("/think off")
        await chat.until(lambda: chat.notes == ["Thinking: off."])
        await chat.ask("two")
        await chat.type("/think")
        await chat.type("/think maybe")
        await chat.type("/think auto")
        await chat.until(lambda: len(chat.notes) == 4)
        assert chat.notes[1:] == [
            "Thinking: off.",
            "/think takes on, off or auto, not maybe.",
            "Thinking: auto, the model's own way.",
        ]
    requests = [request for request in asked if isinstance(request, protocol.Generate)]
    assert [request.think for request in requests] == [None, False]
    said = [(message.role, message.content, message.thinking) for message in requests[1].messages or []]
    assert said == [("user", "one", ""), ("assistant", "It is so.\n", THOUGHT), ("user", "two", "")]


async def test_esc_in_mid_thought_keeps_it_and_says_nothing(ride: Any) -> None:
    async with ride(SLOW, answer("Fine.\n")) as chat:
        await chat.type("go")
        await thinking(chat)
        await chat.pilot.press("escape")
        await chat.ready()
        reply = chat.session.chat.turns[-1].reply
        assert reply.end is End.STOPPED and reply.text == "" and LONG.startswith(reply.thought.text)
        assert not view(chat).folded and rendered(view(chat)) == reply.thought.text
        assert "▾ thought for" in line(chat) and "stopped · " in chat.screen()
        await chat.pilot.press("ctrl+y")
        assert "no reply to copy" in chat.status
        await chat.ask("next")
        assert [message.content for message in chat.session.chat.messages()] == ["go\n\nnext", "Fine.\n"]


async def test_a_thought_without_an_answer_stays_open(ride: Any) -> None:
    async with ride(thoughtful(THOUGHT, "")) as chat:
        await chat.ask("go")
        assert not view(chat).folded and "So I say it." in chat.screen() and "no answer · " in chat.screen()


async def test_failure_in_mid_thought_keeps_it(ride: Any) -> None:
    lines = [step(0, 0.0, [("Half of", "P")], thinking=True), *fails("Out of memory.")]
    lines[-1]["at"] = 0.1
    async with ride(lines) as chat:
        await chat.ask("go")
        turn = chat.session.chat.turns[-1]
        assert not turn.failed and "Half of" in chat.screen() and chat.chat.prompt.text == ""


@pytest.mark.parametrize("text", ["", "Yes.\n"])
async def test_final_thought_that_differs_replaces_what_was_shown(ride: Any, text: str) -> None:
    async with ride(thoughtful("Keep this", text, pause=0.05)) as chat:
        finish = Reply.finish

        def longer(self: Reply, how: Any, report: Any) -> bool:
            report.thinking += " <held"
            return finish(self, how, report)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reply, "finish", longer)
            await chat.ask("go")
        if text:
            await chat.pilot.press("ctrl+l")
        await chat.until(lambda: "Keep this <held" in chat.screen())
        assert rendered(view(chat)) == "Keep this <held"


@pytest.mark.parametrize("folded", [True, False])
async def test_a_far_thought_is_given_up_and_comes_back_as_it_was(ride: Any, folded: bool) -> None:
    paragraphs = "\n\n".join(f"point {n}" for n in range(15))
    async with ride(thoughtful(f"Hm.\n\n{paragraphs}", "Yes.\n"), *[answer(paragraphs + "\n")] * 3) as chat:
        await chat.ask("question")
        if not folded:
            await chat.pilot.press("ctrl+l")
            await chat.until(lambda: not view(chat).folded)
            await chat.pilot.press("ctrl+end")
        first, thought = chat.chat.query(ReplyView).first(), view(chat)
        height = first.outer_size.height
        for n in range(3):
            await chat.ask(f"question {n}")
        await chat.until(lambda: first.frozen)
        assert not first.query(Settled) and first.outer_size.height == height
        await first.fold_thought()
        assert not first.frozen and thought.folded != folded
        await first.fold_thought()
        await chat.pilot.press("ctrl+home")
        await chat.until(lambda: not first.frozen)
        await chat.until(lambda: "Yes." in rendered(first))
        assert thought.folded == folded and bool(thought.query(Settled)) != folded
        assert first.outer_size.height == height


# ---------------------------------------------------------------------------------------------------- data


def passed(seq: int, at: float, *tokens: tuple[str, bool], proposed: int = 0, accepted: int = 0) -> protocol.Step:
    made = [protocol.Token(7, text, "A", thinking=thought) for text, thought in tokens]
    return protocol.Step(1, seq, at, "suffix", proposed, accepted, made, 0.1, 1.0, 0.1)


def test_thought_and_answer_grow_apart() -> None:
    reply = Reply()
    reply.take(passed(0, 1.0, ("", True)))
    assert not reply.begun
    reply.take(passed(1, 1.5, ("Hm", True), (".", True), proposed=3, accepted=1))
    assert reply.begun and not reply.answer.begun
    reply.take(passed(2, 13.0, ("", True), ("Yes", False), proposed=1, accepted=1))
    reply.take(passed(3, 14.0, (".", False), proposed=5, accepted=0))
    assert (reply.thought.text, reply.text) == ("Hm.", "Yes.")
    assert (reply.thought.fresh(), reply.answer.fresh()) == ("Hm.", "Yes.")
    assert figures(reply.thought) == "12 s, 4 tokens, 50% accepted"
    assert reply.thought.runs.encode() == "A3" and reply.answer.runs.encode() == "A4"


def test_figures_of_a_short_thought() -> None:
    thought = Thought()
    thought.take(passed(0, 2.0, ("x", True)), 1)
    assert figures(thought) == "0.0 s, 1 token"
    thought.take(passed(0, 2.44, ("x", True)), 1233)
    assert figures(thought) == "0.4 s, 1,234 tokens"


def test_a_thought_alone_was_never_said() -> None:
    silent, spoken = Reply(), Reply()
    silent.take(passed(0, 0.1, ("Hm.", True)))
    spoken.take(passed(0, 0.1, ("Ah.", True), ("Yes.", False)))
    chat = Chat(None, [Turn("one", silent), Turn("two", spoken)])
    said = [(message.role, message.content, message.thinking) for message in chat.messages()]
    assert said == [("user", "one\n\ntwo", ""), ("assistant", "Yes.", "Ah.")]
