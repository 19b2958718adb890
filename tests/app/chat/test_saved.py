"""Chats that are saved while they are held, and opened again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from chat_support import Ride, answer, end, fails, step, thoughtful, tinted

from outrider.app.chat.compat import Settled
from outrider.app.chat.reply import ReplyView
from outrider.app.chat.session import State
from outrider.app.chat.talk import End
from outrider.app.chat.transcript import Earlier, UserMessage
from outrider.app.store.chats import Store
from outrider.app.store.imports import read_chats
from outrider.app.store.opening import store_path
from outrider.app.store.records import Chat as Row
from outrider.app.store.records import Node

SLOW = [step(0, 0.0, [(f"word{n} ", "P") for n in range(10)]), end() | {"at": 600.0}]  # it waits to be stopped
TWO = "# Title\n\nSome **bold words** here.\n"


def newest() -> str:
    with Store.open() as store:
        return store.resolve("last")


def texts(chat: Ride) -> list[str]:
    return [message.content for message in chat.session.chat.messages()]


async def opened(chat: Ride) -> None:
    """Wait until a chat from the store is painted."""
    await chat.until(lambda: chat.chat.query(ReplyView))
    await chat.ready()


async def test_quitting_and_coming_back_shows_the_same(ride: Any) -> None:
    async with ride(answer(TWO, "PA"), answer("Second.\n")) as chat:
        await chat.ask("one")
        await chat.type("/system Be kind.")
        await chat.ask("two")
        said, figures = texts(chat), chat.session.chat.turns[0].reply.report
        told = ("System prompt", "guessed by a drafter")  # in a chat that is new
        shown = [line for line in chat.lines()[:-3] if line and not any(words in line for words in told)]
    async with ride(answer("Third.\n"), resume=newest(), system="Be kind.") as chat:
        await opened(chat)
        assert texts(chat) == said and chat.session.chat.turns[0].reply.report == figures
        assert [line for line in chat.lines()[:-3] if line] == shown
        first = next(iter(chat.chat.query(Settled)))
        assert chat.app.palette.ground is not None
        assert tinted(next(iter(first.query("_H1"))), chat.app.palette.ground) == "Title/"
        await chat.ask("three")
        assert texts(chat) == [*said, "three", "Third.\n"]
    with Store.open() as store:
        (row,) = store.chats()
        assert (row.title, row.messages) == ("one", 3) and len(store.load(row.id).path()) == 6


async def test_a_thought_is_folded_again(ride: Any) -> None:
    async with ride(thoughtful("Let me see.\n", "Yes.\n")) as chat:
        await chat.ask("one")
    async with ride(answer("x\n"), resume=newest()) as chat:
        await opened(chat)
        (view,) = chat.chat.query(ReplyView)
        assert view.thought is not None and view.thought.folded and "thought for" in chat.screen()
        assert "Let me see." not in chat.screen()


async def test_a_reply_that_was_cut_off_keeps_what_had_come(ride: Any) -> None:
    async with ride(SLOW) as chat:
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING and "word9" in chat.session.current.reply.text)
    async with ride(answer("x\n"), resume=newest()) as chat:
        await opened(chat)
        reply = chat.session.chat.turns[0].reply
        assert reply.end is End.INTERRUPTED and "word9" in reply.text and "interrupted" in chat.screen()


async def test_a_stopped_reply_is_marked_so(ride: Any) -> None:
    async with ride(SLOW) as chat:
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.pilot.press("escape")
        await chat.ready()
    async with ride(answer("x\n"), resume=newest()) as chat:
        await opened(chat)
        assert chat.session.chat.turns[0].reply.end is End.STOPPED


async def test_what_was_never_sent_is_in_the_prompt_again(ride: Any) -> None:
    async with ride(SLOW) as chat:
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.type("and then this")
    name = newest()
    async with ride(answer("x\n"), resume=name) as chat:
        await opened(chat)
        assert chat.chat.prompt.text == "and then this" and len(chat.session.chat.turns) == 1
    async with ride(answer("x\n"), resume=name) as chat:  # it was not sent this time either
        await opened(chat)
        await chat.until(lambda: chat.chat.prompt.text == "and then this")
        await chat.ask("and then that")
    async with ride(answer("x\n"), resume=name) as chat:
        await opened(chat)
        assert chat.chat.prompt.text == "" and texts(chat)[-2:] == ["and then that", "x\n"]


async def test_a_message_taken_back_or_refused_is_not_in_the_chat(ride: Any) -> None:
    async with ride(fails("No."), SLOW, answer("x\n")) as chat:
        await chat.type("refused")
        await chat.until(lambda: chat.cards)
        chat.chat.prompt.put("")
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.type("back")
        assert chat.session.recall() is not None
    async with ride(answer("x\n"), resume=newest()) as chat:
        await opened(chat)
        assert texts(chat)[0] == "go" and len(chat.session.chat.turns) == 1 and chat.chat.prompt.text == ""


async def test_long_chats_show_their_end_first(ride: Any) -> None:
    with Store.open() as store, store.changing():
        store.put_chat(Row(id="C", title="long", created=1.0, updated=1.0, head="47"))
        for number in range(48):
            role = "assistant" if number % 2 else "user"
            text = "Short.\n" if number % 2 else f"message {number // 2}"
            store.put_node(
                "C", Node(id=f"{number:02}", role=role, text=text, parent=f"{number - 1:02}" if number else None)
            )
    async with ride(answer("x\n"), resume="C") as chat:
        await opened(chat)
        shown = [view.turn.text for view in chat.chat.query(UserMessage)]
        assert shown == [f"message {number}" for number in range(4, 24)] and len(texts(chat)) == 48
        await chat.until(lambda: "message 23" in chat.screen())
        await chat.pilot.press("ctrl+home")
        await chat.until(lambda: len(chat.chat.query(UserMessage)) == 24)
        assert not chat.chat.query_one(Earlier).display
        await chat.ready()
        order = [view.turn.text for view in chat.chat.query(UserMessage)]
        assert order == [f"message {number}" for number in range(24)]


async def test_the_prompt_knows_earlier_chats(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.ask("from long ago")
    async with ride(answer("x\n")) as chat:
        await chat.until(lambda: chat.chat.prompt._history)
        await chat.pilot.press("up")
        assert chat.chat.prompt.text == "from long ago" and not chat.session.chat.turns


async def test_nothing_is_saved_of_a_private_chat_or_of_none(ride: Any) -> None:
    async with ride(answer("x\n"), private=True) as chat:
        await chat.ask("a secret")
    assert not store_path().exists()
    async with ride(answer("x\n")) as chat:
        await chat.type("/system Be kind.")
    with Store.open() as store:
        assert store.chats() == []


async def test_a_locked_store_is_said_and_the_chat_goes_on(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.ask("kept")
    store_path().chmod(0o444)
    async with ride(answer("Yes.\n")) as chat:
        await chat.until(lambda: chat.cards)
        assert "Chats are not saved" in chat.cards[0] and "read-only" in chat.cards[0] and "chmod" in chat.cards[0]
        assert "a file of its own when you quit" in chat.cards[0]
        await chat.ask("not lost")
        assert "Yes." in chat.screen()
    file = Path(chat.session.keeper.parting.removeprefix("What could not be saved lies in ").partition(": ")[0])
    ((whole,), _) = read_chats(file.read_bytes())
    assert [node.text for node in whole.path()] == ["not lost", "Yes.\n"]
    store_path().chmod(0o644)
    with closing(sqlite3.connect(store_path())) as db:
        assert db.execute("SELECT text FROM node WHERE role = 'user'").fetchall() == [("kept",)]


async def test_a_new_chat_is_another_one(ride: Any) -> None:
    async with ride(answer("x\n"), SLOW, answer("y\n")) as chat:
        await chat.ask("first")
        await chat.type("cut off")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.pilot.press("ctrl+n")
        await chat.until(lambda: chat.session.state is State.READY)
        await chat.ask("second")
    with Store.open() as store:
        newer, older = store.chats()
        assert (newer.title, newer.messages, older.title, older.messages) == ("second", 1, "first", 2)
        assert store.load(older.id).path()[-1].state == "stopped"
