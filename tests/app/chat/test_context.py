"""A context that fills: what is said before, and what can be done once it is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from chat_support import LOADED, Ride, answer, end, fails, loading, step

from outrider.app.chat import context
from outrider.app.chat.card import Card
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.transcript import UserMessage
from outrider.core.base.protocol import ModelChoice

MANY = "The prompt has {} tokens; with room for an answer 255 fit into the context."


def filled(prompt: int, tokens: int = 0, finish: str = "stop") -> list[dict[str, Any]]:
    """An answer after which the model holds so many tokens of its 256."""
    lines = [step(n, 0.0, [("word ", "P")]) for n in range(tokens)] or [step(0, 0.0, [("word ", "P")])]
    last = end()
    last["frame"]["finish"] = last["frame"]["report"]["finish"] = finish
    last["frame"]["report"]["prompt_tokens"] = prompt
    return [*lines, last]


def footers(chat: Ride) -> list[str]:
    return [str(view._footer.visual) for view in chat.chat.query(ReplyView)]


def shown(chat: Ride) -> list[str]:
    return [widget.turn.text for widget in chat.chat.query(UserMessage)]


def style(chat: Ride) -> str:
    return chat.chat.stats.header._told[3][1]


async def test_it_is_said_before_the_context_is_full(ride: Any) -> None:
    async with ride(filled(100), filled(195), filled(200), filled(235), size=(100, 40)) as chat:
        await chat.ask("one")
        assert not chat.notes and "muted" in style(chat)
        await chat.ask("two")
        await chat.until(lambda: len(chat.notes) == 1)
        assert "The context is filling: 196 of 256 tokens, 77%. /new begins a new chat, /carry-over" in chat.notes[0]
        assert "warning" in style(chat)
        await chat.ask("three")  # once each
        await chat.ask("four")
        await chat.until(lambda: len(chat.notes) == 2)
        assert "nearly full: 236 of 256 tokens, 92%" in chat.notes[1] and "error" in style(chat)
        name = chat.session.chat.id
    async with ride(answer("x\n"), resume=name) as chat:
        await chat.until(lambda: any("nearly full" in note for note in chat.notes))


async def test_a_full_context_is_a_card_with_ways_on(ride: Any) -> None:
    answers = filled(60, 5), filled(120, 10), filled(240, 16, "length"), answer("New.\n")
    async with ride(*answers, size=(110, 40)) as chat:
        for text in ("one", "two", "three"):
            await chat.ask(text)
        await chat.until(lambda: chat.cards)
        assert chat.cards[0].startswith("This chat is full\nAll 256 tokens of the context are used; the last")
        await chat.until(lambda: footers(chat)[-1].startswith("cut off: context is full"))
        assert "continue" not in footers(chat)[-1]
        await chat.type("/continue")
        assert "the context is full; /new begins" in chat.status
        assert "n new chat · b new chat with the newest turns · e edit your last message" in chat.screen()
        await chat.pilot.press("alt+up")
        assert isinstance(chat.chat.focused, Card)
        await chat.until(lambda: "b new chat with the newest turns" in chat.status)
        chat.chat.prompt.put("what is next")
        old = chat.session.chat.id
        await chat.letter("b")
        await chat.until(lambda: chat.session.chat.id not in ("", old) and shown(chat) == ["three"])
        assert chat.chat.prompt.text == "what is next"
        await chat.until(lambda: any("begins with the last turn of 3" in note for note in chat.notes))
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.session.chat.turns) == 2)
        await chat.ready()
        assert [message.content.strip() for message in chat.session.chat.messages()][::2] == ["three", "what is next"]


async def test_a_message_that_does_not_fit_is_in_one_place(ride: Any) -> None:
    refusals = fails(MANY.format(300), "Shorten it."), fails(MANY.format(700)), fails(MANY.format(700))
    async with ride(filled(200), *refusals, size=(110, 40), model=ModelChoice(context=256)) as chat:
        await chat.ask("one")
        await chat.type("two")
        await chat.until(lambda: len(chat.cards) == 1)
        assert chat.cards[0].startswith(
            "This chat is full\nWith this message the prompt has 300 tokens, 45 more than fit"
        )
        assert "refused" not in chat.cards[0] and "e shorten the message · l larger context" in chat.cards[0]
        assert chat.chat.prompt.text == "two"
        await chat.until(lambda: shown(chat) == ["one"])
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.cards and "255 tokens fit" in chat.cards[0])  # in the place of the one before
        assert chat.cards[0].startswith("The message is too long by about 244 tokens") and len(chat.cards) == 1
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: not chat.session.chat.turns)
        assert chat.chat.prompt.text == "two"
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.cards) == 1)
        assert chat.cards[0].startswith("The message is too long by 445 tokens")
        await chat.until(lambda: shown(chat) == [])


async def test_a_larger_context_is_loaded_where_a_smaller_one_was_asked_for(ride: Any) -> None:
    larger = {"on": "load", "at": 0.0, "frame": {"type": "Result", "request": 0, "data": LOADED | {"context": 1024}}}
    async with ride(filled(240, 16, "length"), load=[*loading(), larger], model=ModelChoice(context=256)) as chat:
        await chat.ask("one")
        await chat.until(lambda: chat.cards)
        await chat.pilot.press("alt+up")
        await chat.letter("l")
        await chat.until(lambda: any("has 1,024 tokens now; it had 256" in note for note in chat.notes))
        assert chat.session.options.model.context is None
        await chat.until(lambda: footers(chat)[-1].startswith("cut off at 16 tokens · k continue"))
        await chat.type("/larger-context")
        assert "as large as model and memory allow" in chat.status


@pytest.mark.parametrize(
    ("prompt", "tokens", "finish", "size", "expected"),
    [
        (100, 28, "length", 128, "context"),
        (100, 27, "length", 128, "tokens"),
        (100, 28, "length", 0, "tokens"),
        (100, 28, "stop", 128, None),
        (100, 28, "cancelled", 128, None),
    ],
)
def test_what_cut_an_answer(prompt: int, tokens: int, finish: str, size: int, expected: str | None) -> None:
    report: Any = SimpleNamespace(prompt_tokens=prompt, token_ids=[0] * tokens, finish=finish, limit=None)
    assert context.limit(report, size) == expected and context.limit(None, size) is None
    report.limit = "tokens"
    assert context.limit(report, size) == (expected and "tokens")


@pytest.mark.parametrize(("used", "size", "expected"), [(74, 100, 0), (75, 100, 0.75), (90, 100, 0.9), (9, 0, 0)])
def test_levels(used: int, size: int, expected: float) -> None:
    assert context.level(used, size) == expected
