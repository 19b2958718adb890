"""Two windows, one store: a chat that another window has open is never written into, and nothing is forked in silence."""

from __future__ import annotations

import os
from typing import Any

from chat_support import Ride, answer
from textual.widgets import OptionList

from outrider.app.chat.confirm import ConfirmScreen
from outrider.app.chat.transcript import UserMessage
from outrider.app.store.chats import Store
from outrider.app.store.records import Chat, Node


def live(store: Store) -> None:
    """A chat that a window is writing: one whole turn, and a reply that has only begun."""
    with store.changing():
        store.put_chat(Chat(id="LIVE", title="Rivers", created=1.0, updated=1.0))
        store.put_node("LIVE", Node(id="q1", role="user", text="which river?"))
        store.put_node("LIVE", Node(id="r1", role="assistant", text="The Nile.", parent="q1"))
        store.put_node("LIVE", Node(id="q2", role="user", text="and then?", parent="r1"))
        store.put_node("LIVE", Node(id="r2", role="assistant", text="The Ama", parent="q2", state="partial"))
        store.set_head("LIVE", "r2")
    store.hold("LIVE")


def said(chat: Ride) -> list[str]:
    return [message.content for message in chat.session.chat.messages()]


async def test_a_chat_that_is_open_elsewhere_is_opened_as_a_copy_that_says_so(ride: Any) -> None:
    async with ride(answer("Mine.\n"), answer("Here.\n")) as chat:
        with Store.open() as other:
            live(other)
            before = other.load("LIVE")
            await chat.ask("hello")
            mine = chat.session.chat.id
            await chat.pilot.press("f6")
            await chat.until(lambda: "Rivers  2  open in another window" in chat.screen())
            place = next(n for n, line in enumerate(chat.app.screen._found) if line.id == "LIVE")
            chat.app.screen.query_one(OptionList).highlighted = place
            await chat.pilot.press("delete")  # nothing happens to it, and that is said where one looks
            await chat.until(lambda: "Not deleted: it is open in another window" in chat.screen())
            await chat.pilot.press("enter")
            await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
            assert "“Rivers” is open in another window" in chat.screen()
            await chat.pilot.press("escape")
            await chat.until(lambda: chat.app.screen is chat.chat)
            assert chat.session.chat.id == mine
            await chat.type("/chats LIVE")
            await chat.until(lambda: isinstance(chat.app.screen, ConfirmScreen))
            await chat.pilot.press("enter")
            await chat.until(
                lambda: said(chat) == ["which river?", "The Nile."]
            )  # without the answer that is being written
            await chat.ready()
            await chat.until(lambda: any("This is a copy of it" in note for note in chat.notes))
            assert "interrupted" not in chat.screen()
            await chat.ask("go on")
            assert chat.session.chat.id not in ("LIVE", mine) and "· copy" in chat.session.chat.title
            assert other.load("LIVE") == before
            assert not other.in_use("LIVE") and other.in_use(chat.session.chat.id) and not other.in_use(mine)


async def test_the_chat_that_goes_on_was_taken_meanwhile(ride: Any) -> None:
    with Store.open() as other:
        live(other)
        async with ride(answer("Here.\n"), resume="LIVE") as chat:
            await chat.until(lambda: said(chat) == ["which river?", "The Nile."])
            await chat.until(lambda: any("This is a copy of it" in note for note in chat.notes))
            await chat.ask("go on")
            assert chat.session.chat.id != "LIVE" and len(other.load("LIVE").nodes) == 4


async def test_a_window_that_died_or_went_on_holds_nothing(ride: Any) -> None:
    other = Store.open()
    live(other)
    assert other._writers is not None
    os.close(other._writers._held)  # as the system does when a process dies
    async with ride(answer("Here.\n"), resume="LIVE") as chat:
        await chat.until(lambda: chat.chat.query(UserMessage))
        assert chat.session.chat.id == "LIVE" and chat.session.chat.turns[-1].reply.text == "The Ama"
        await chat.until(lambda: "interrupted" in chat.screen())
        assert not any("copy" in note for note in chat.notes)
        with Store.open() as looks:
            assert looks.in_use("LIVE") and [row.in_use for row in looks.chats()] == [True]
            await chat.pilot.press("ctrl+n")
            await chat.until(lambda: not chat.session.chat.turns)
            await chat.session.keeper.ask(lambda store: None)
            assert not looks.in_use("LIVE")
    other._opened.connection.close()


async def test_nothing_can_be_copied_of_a_first_answer_that_is_being_written(ride: Any) -> None:
    async with ride(answer("Mine.\n")) as chat:
        await chat.ask("hello")
        mine = chat.session.chat.id
        with Store.open() as other:
            live(other)
            with other.changing():
                other._db.execute("DELETE FROM node WHERE id IN ('q2', 'r2')")
                other._db.execute("UPDATE node SET state = 'partial' WHERE id = 'r1'")
                other.set_head("LIVE", "r1")
            assert not await chat.session.open_chat("LIVE")
            await chat.until(lambda: any("nothing in it is finished yet" in note for note in chat.notes))
            assert chat.session.chat.id == mine and other.in_use(mine)
