"""Chats as a whole, from within the chat: the list, opening, deleting, renaming, exporting."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from chat_support import Ride, answer, end, step
from textual.widgets import Input, OptionList

from outrider.app.chat.chats import ChatsScreen
from outrider.app.chat.input.drafts import Drafts
from outrider.app.chat.session import State
from outrider.app.chat.transcript import UserMessage, Welcome
from outrider.app.store.chats import Store
from outrider.app.store.opening import store_path

SLOW = [step(0, 0.0, [(f"word{n} ", "P") for n in range(10)]), end() | {"at": 600.0}]  # it waits to be stopped


async def listed(chat: Ride) -> list[str]:
    """Open the list of chats; what it shows."""
    await chat.pilot.press("f6")
    await chat.until(
        lambda: isinstance(chat.app.screen, ChatsScreen) and chat.app.screen.query_one(OptionList).option_count
    )
    return shown(chat)


def shown(chat: Ride) -> list[str]:
    options = chat.app.screen.query_one(OptionList).options
    return [str(option.prompt) for option in options]


async def closed(chat: Ride) -> None:
    await chat.until(lambda: chat.app.screen is chat.chat)


def messages(chat: Ride) -> list[str]:
    return [view.turn.text for view in chat.chat.query(UserMessage)]


async def test_another_chat_is_found_and_opened(ride: Any) -> None:
    async with ride(answer("The Nile is long.\n"), answer("The Alps are high.\n"), SLOW) as chat:
        await chat.ask("which river?")
        await chat.pilot.press("ctrl+n")
        await chat.ask("which hills?")
        await chat.type("/set temperature 0.25")
        await chat.type("go on")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.type("waits")
        lines = await listed(chat)
        assert len(lines) == 2 and "which hills?" in lines[0] and "which river?" in lines[1]
        await chat.pilot.press(*"nile")
        await chat.until(lambda: len(shown(chat)) == 1)
        assert "which river?" in shown(chat)[0] and "The Nile is long." in shown(chat)[0]
        await chat.pilot.press("enter")
        await closed(chat)
        await chat.until(lambda: messages(chat) == ["which river?"])
        await chat.ready()
        assert [turn.text for turn in chat.session.chat.turns] == ["which river?"] and not chat.session.queue
        assert chat.session.sampling.temperature is None and "The Nile is long." in chat.screen()
        await listed(chat)
        await chat.pilot.press("escape")
        await closed(chat)
        assert messages(chat) == ["which river?"] and chat.chat.focused is chat.chat.prompt
    with Store.open() as store:
        assert [row.messages for row in store.chats()] == [2, 1]


async def test_deleting_and_bringing_back(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        for text in ("first", "second", "third"):
            await chat.pilot.press("ctrl+n")
            await chat.ask(text)
        await listed(chat)
        await chat.pilot.press("down", "delete")  # another than the open one
        await chat.until(lambda: len(shown(chat)) == 2)
        assert "second" not in "".join(shown(chat))
        await chat.pilot.press("delete")
        await chat.until(lambda: len(shown(chat)) == 1)
        await chat.pilot.press("escape")
        await closed(chat)
        assert chat.chat.query(Welcome) and not chat.session.chat.turns
        await chat.type("/undo")
        await chat.until(lambda: messages(chat) == ["third"])
        await chat.type("/delete")
        await chat.until(lambda: "Deleted “third”" in chat.status)
        await chat.type("/delete")
        assert "Nothing was said" in chat.status
        await chat.type("/undo")
        await chat.until(lambda: messages(chat) == ["third"])
        await chat.type("/undo")
        await chat.until(lambda: "Brought back “second”" in chat.status)
        assert messages(chat) == ["third"]
        await chat.type("/undo")
        await chat.until(lambda: "nothing to bring back" in chat.status)


async def test_an_empty_list_says_so(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        assert await listed(chat) == ["There is no chat yet"]
        await chat.pilot.press("x", "enter")
        await closed(chat)
        for command in ("/rename New", "/export", "/delete"):
            await chat.type(command)
            assert "Nothing was said" in chat.status
        await chat.type("/rename")
        assert "needs the new title" in chat.notes[-1]


async def test_rename_and_export(ride: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with ride(answer("See <b>.\n", "PA")) as chat:
        await chat.ask("hello there")
        await chat.type("/rename Of rivers & hills")
        for command, name in {
            "/export": "of-rivers-hills.md",
            "/export svg": "of-rivers-hills.svg",
            "/export md": "of-rivers-hills-2.md",
            f"/export {tmp_path}/mine.html": "mine.html",
            "/export mine.json": "mine.json",
        }.items():
            await chat.type(command)
            await chat.until(lambda name=name: chat.notes and name in chat.notes[-1].replace("\n", ""))
            assert (tmp_path / name).read_text(), name
        assert 'See<span class="a"> &lt;b&gt;.</span>' in (tmp_path / "mine.html").read_text()
        await chat.type("/export chat.pdf")
        await chat.until(lambda: ".pdf is none of the formats" in chat.notes[-1])
        await chat.type("/export nowhere/chat.md")
        await chat.until(lambda: "No such file" in chat.notes[-1])


@pytest.mark.parametrize("size", [(60, 20), (20, 8)])
async def test_the_list_fits_small_windows(ride: Any, size: tuple[int, int]) -> None:
    async with ride(answer("x\n"), size=size) as chat:
        await chat.ask("a long question about many rivers and hills")
        await listed(chat)
        assert isinstance(chat.app.screen.focused, Input)
        await chat.pilot.press("enter")
        await closed(chat)


async def test_a_store_that_cannot_be_read_is_not_shown_as_empty(ride: Any) -> None:
    store_path().parent.mkdir(parents=True)
    store_path().write_bytes(b"not a database at all" * 500)
    async with ride(answer("Yes.\n")) as chat:
        (line,) = await listed(chat)
        assert "Nothing of it can be read" in line and "no chat yet" not in line
        await chat.pilot.press("escape")
        await closed(chat)
        assert len(chat.cards) == 1 and "Chats are not saved" in chat.cards[0]


async def test_a_store_that_was_repaired_says_so(ride: Any) -> None:
    async with ride(answer("Yes.\n")) as chat:
        await chat.ask("one")
    store_path().write_bytes(bytes(100) + store_path().read_bytes()[100:])
    async with ride(answer("Yes.\n")) as chat:
        await chat.until(lambda: chat.cards)
        assert "The chats were repaired" in chat.cards[0] and "chats.damaged-" in chat.cards[0].replace("\n", "")
        assert len(await listed(chat)) == 1


async def test_a_draft_that_the_disk_does_not_take_is_told_once(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with ride(answer("Yes.\n")) as chat:
        await chat.until(lambda: chat.chat.input.keeping._drafts)
        monkeypatch.setattr(Drafts, "save", full)
        for text in ("a thought", "another"):
            chat.chat.prompt.put(text)
            await chat.chat.input.keeping._write(chat.session.chat.id, chat.chat.input.keeping._now())
        assert [note for note in chat.notes if "the disk is full" in note] == [
            "What you type is not kept until it is sent: the disk is full."
        ]
