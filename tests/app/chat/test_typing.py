"""Whoever types a sentence loses neither text nor anything else, wherever the focus happens to be."""

from __future__ import annotations

from typing import Any

import pytest
from chat_support import Ride, answer
from textual.events import Key, Paste
from textual.widgets import Input

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.chats import ChatsScreen
from outrider.app.chat.confirm import ConfirmScreen
from outrider.app.chat.leader import LeaderScreen
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.settings_screen import SettingsScreen
from outrider.app.chat.status import mode_line
from outrider.app.config.read import config_file

LETTERS = [letter for action in ACTIONS for letter in action.on_message]


def burst(chat: Ride, text: str) -> None:
    """Keys as they arrive from somebody who types fast."""
    for letter in text:
        chat.app.post_message(Key({" ": "space", "?": "question_mark"}.get(letter, letter), letter))


async def test_escape_goes_nowhere_and_a_sentence_after_it_is_text(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.ask("hello")
        for text in ("do you like tea?", "rewrite it as a list", "because", "explain it"):
            await chat.pilot.press("escape", "escape")
            assert chat.chat.focused is chat.chat.prompt
            for letter in text:  # one by one, as slowly as one likes
                await chat.pilot.press({" ": "space", "?": "question_mark"}.get(letter, letter))
            assert chat.chat.prompt.text == text
            chat.chat.prompt.put("")
        assert len(chat.session.chat.tree) == 2 and "One." in chat.screen()


async def test_on_a_message_a_burst_of_letters_is_text(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.ask("hello")
        name, clipboard = chat.session.chat.id, chat.app.clipboard
        assert {"c", "x", "i", "t", "e", "r", "k", "b", "d", "n", "N", "v"} <= set(LETTERS)
        for letter in LETTERS:
            for text in (f"{letter}o you like tea?", f"{letter}{letter} top"):
                await chat.pilot.press("alt+up")
                assert isinstance(chat.chat.focused, ReplyView)
                burst(chat, text)
                await chat.until(lambda text=text: chat.chat.prompt.text == text)
                assert chat.chat.focused is chat.chat.prompt
                chat.chat.prompt.put("")
        await chat.pilot.pause(0.4)  # nor does anything act late
        assert chat.app.screen is chat.chat and chat.session.chat.id == name and len(chat.session.chat.tree) == 2
        assert chat.app.clipboard == clipboard and not chat.cards and chat.chat.inspection.view is None


async def test_delete_wants_its_letter_twice(ride: Any) -> None:
    async with ride(answer("One.\n"), answer("Two.\n"), size=(120, 30)) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.pilot.press("alt+up")
        await chat.until(lambda: "message 4 of 4 · c copy · e edit" in chat.status and "dd delete" in chat.status)
        assert "k continue" not in chat.status and chat.status.strip().endswith("esc back")
        await chat.pilot.press("alt+up", "alt+up")
        await chat.until(lambda: "message 2 of 4" in chat.status)
        await chat.letter("d")
        await chat.until(lambda: "press d again: deletes this message and 2 below it · esc keeps it" in chat.status)
        await chat.pilot.press("escape")
        await chat.until(lambda: "message 2 of 4" in chat.status)
        await chat.letter("d", "o")  # slowly: it was text after all
        assert chat.chat.prompt.text == "do" and len(chat.session.chat.tree) == 4
        chat.chat.prompt.put("")
        await chat.pilot.press("alt+up")
        await chat.letter("d")
        await chat.pilot.press("alt+up", "alt+up")  # another message: pressed once for that one means nothing here
        await chat.letter("d")
        assert len(chat.session.chat.tree) == 4
        await chat.letter("d")
        await chat.until(lambda: len(chat.session.chat.tree) == 1)
        assert chat.chat.focused is chat.chat.prompt


async def test_what_is_pasted_or_entered_on_a_message_is_text(ride: Any) -> None:
    async with ride(answer("One.\n"), answer("Two.\n")) as chat:
        await chat.ask("hello")
        await chat.pilot.press("alt+up")
        chat.app.post_message(Key("d", "d"))
        chat.app.post_message(Paste("o it"))
        await chat.until(lambda: chat.chat.prompt.text == "do it")
        chat.chat.prompt.put("")
        await chat.pilot.press("alt+up")
        burst(chat, "k")
        chat.app.post_message(Key("enter", None))
        await chat.until(lambda: len(chat.session.chat.turns) == 2)
        assert chat.session.chat.turns[1].text == "k"
        await chat.ready()
        await chat.pilot.press("tab", "tab", "x")  # never to a message by itself
        assert chat.chat.prompt.text == "x"
        view = chat.chat.query(ReplyView).last()
        view.focus()
        await chat.pilot.pause()
        await view.remove()  # nor when the focused one goes
        assert chat.chat.focused is chat.chat.prompt


async def test_text_after_the_leader_key_is_text(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.ask("hello")
        for text in ("quick question", "now then", "Xenon"):
            await chat.pilot.press("ctrl+o")
            await chat.until(lambda: isinstance(chat.app.screen, LeaderScreen))
            burst(chat, text)
            await chat.until(lambda text=text: chat.chat.prompt.text == text)
            chat.chat.prompt.put("")
        assert not chat.app._exit and len(chat.session.chat.tree) == 2


async def test_text_on_its_way_answers_no_question(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        said: list[bool | None] = []
        chat.app.push_screen(ConfirmScreen("Delete it?", "deletes it", "keeps it"), said.append)
        await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
        burst(chat, "yes of course")
        chat.app.post_message(Key("enter", None))
        await chat.pilot.pause(0.4)
        assert not said
        await chat.pilot.press("y")
        await chat.until(lambda: said == [True])


async def test_text_in_the_settings_changes_none(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.type("/settings look.width 77")
        before = config_file().read_text()
        await chat.type("/settings look.width")
        await chat.until(lambda: isinstance(chat.app.screen, SettingsScreen))
        burst(chat, "render me")
        await chat.until(lambda: chat.app.screen.query_one("#settings-words", Input).value == "render me")
        await chat.pilot.pause(0.2)
        assert config_file().read_text() == before


async def test_the_delete_key_in_the_middle_of_words_is_theirs(ride: Any) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.ask("hello")
        await chat.pilot.press("f6", *"hellox")
        await chat.until(lambda: isinstance(chat.app.screen, ChatsScreen))
        await chat.pilot.press("left", "delete")
        assert chat.app.screen.query_one(Input).value == "hello"
        await chat.pilot.pause()
        assert chat.session.chat.turns


@pytest.mark.parametrize("width", [10, 30, 60, 200])
def test_the_way_back_is_always_told(width: int) -> None:
    keys = [("c", "copy"), ("e", "edit"), ("dd", "delete"), ("esc", "back")]
    line = mode_line(("message 3 of 4", keys), width).plain
    assert len(line) <= width and (line.endswith("esc back") or width < 25)
    if width == 200:
        assert line == "message 3 of 4 · c copy · e edit · dd delete · esc back"


@pytest.mark.parametrize("command", ["/history", "/log", "/drafters", "/tree", "/train"])
async def test_text_over_a_screen_without_a_field_is_the_prompts(ride: Any, command: str) -> None:
    async with ride(answer("One.\n"), size=(120, 40)) as chat:
        await chat.ask("hello")
        before = chat.app.clipboard
        await chat.type(command)
        await chat.until(lambda: chat.app.screen is not chat.chat)
        shown = chat.app.screen
        burst(chat, "test clocks, quickly")
        await chat.until(lambda: chat.chat.prompt.text == "test clocks, quickly")
        assert chat.app.screen is shown and chat.app.clipboard == before
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
