"""Branches on the screen: edit, answer again, keep going, choose, delete, undo, a new chat, the tree."""

from __future__ import annotations

from typing import Any

from chat_support import Ride, answer, end, fails, step
from textual.events import Key

from outrider.app.chat.reply import ReplyView
from outrider.app.chat.session import State
from outrider.app.chat.talk import End
from outrider.app.chat.transcript import UserMessage
from outrider.app.chat.treeview import TreeScreen
from outrider.app.store.chats import Store
from outrider.app.store.records import Chat as Row
from outrider.app.store.records import Node

SLOW = [step(0, 0.0, [("Half", "P"), (" of", "A")]), step(1, 600.0, [(" it.\n", "P")]), end() | {"at": 600.0}]


def said(chat: Ride) -> list[str]:
    return [message.content for message in chat.session.chat.messages()]


def footers(chat: Ride) -> list[str]:
    return [str(view._footer.visual) for view in chat.chat.query(ReplyView)]


async def settled(chat: Ride, *texts: str) -> None:
    """Wait until this is what is said, and all of it is on the screen."""
    await chat.until(lambda: said(chat) == list(texts))
    await chat.ready()
    await chat.until(lambda: shown(chat) == list(texts))


def shown(chat: Ride) -> list[str]:
    """What the messages on the screen say."""
    return [
        widget.turn.text if isinstance(widget, UserMessage) else widget.reply.text
        for widget in chat.chat.transcript.children
        if isinstance(widget, UserMessage | ReplyView)
    ]


async def test_edit_choose_and_delete(ride: Any) -> None:
    async with ride(*(answer(f"{name}.\n") for name in ("One", "Two", "Else", "Again"))) as chat:
        await chat.ask("first")
        await chat.ask("second")
        chat.chat.prompt.put("a draft")
        await chat.pilot.press("alt+up", "alt+up")
        assert isinstance(chat.chat.focused, UserMessage)
        await chat.letter("e")
        await chat.until(lambda: "Editing “second”" in chat.screen())
        assert chat.chat.prompt.text == "second"
        await chat.pilot.press("escape")
        await chat.until(lambda: "Editing" not in chat.screen())
        assert chat.chat.prompt.text == "a draft"
        await chat.pilot.press("alt+up", "alt+up")
        await chat.letter("e")
        await chat.pilot.press("!", "enter")  # a sibling of the second message
        await settled(chat, "first", "One.\n", "second!", "Else.\n")
        assert chat.chat.prompt.text == "a draft" and "‹ 2/2 ›" in chat.screen()
        await chat.pilot.press("alt+up", "alt+up", "left")
        await settled(chat, "first", "One.\n", "second", "Two.\n")
        for letter in "/tree":  # in a burst, as they are pasted: no letter of it is one for the message
            chat.app.post_message(Key({"/": "slash"}.get(letter, letter), letter))
        await chat.until(lambda: chat.chat.prompt.text == "a draft/tree")
        chat.chat.prompt.put("a draft")
        await chat.pilot.press("alt+up", "alt+up")
        await chat.letter("e", "e")
        await chat.until(lambda: chat.chat.prompt.text == "seconde")  # the second letter belongs to the text
        await chat.pilot.press("escape", "alt+up", "alt+up")
        assert "‹ 1/2 ›" in chat.screen() and chat.chat.focused.turn.text == "second"
        await chat.pilot.press("left")
        assert "oldest branch" in chat.status
        await chat.letter("r")  # answered again
        await settled(chat, "first", "One.\n", "second", "Again.\n")
        assert "‹ 2/2 ›" in footers(chat)[-1]
        chat.chat.prompt.put("")
        await chat.type("/older")
        await settled(chat, "first", "One.\n", "second", "Two.\n")
        await chat.type("/newer")
        await settled(chat, "first", "One.\n", "second", "Again.\n")
        await chat.type("/delete message")
        await settled(chat, "first", "One.\n", "second", "Two.\n")
        await chat.type("/undo")
        await settled(chat, "first", "One.\n", "second", "Again.\n")
        await chat.pilot.press("alt+up", "alt+up")
        await chat.letter("d", "d")  # the message goes with both of its answers
        await settled(chat, "first", "One.\n", "second!", "Else.\n")
        assert "3 messages" in chat.status
        await chat.pilot.press("ctrl+o", "z")
        await settled(chat, "first", "One.\n", "second", "Again.\n")
        name = chat.session.chat.id
    async with ride(answer("x\n"), resume=name) as chat:
        await chat.until(lambda: said(chat) == ["first", "One.\n", "second", "Again.\n"])
        await chat.until(lambda: footers(chat) and "‹ 2/2 ›" in footers(chat)[-1])
        await chat.pilot.press("ctrl+o", "T")
        await chat.until(lambda: isinstance(chat.app.screen, TreeScreen))
        assert all(words in chat.screen() for words in ("You  first", "second!", "Else.", "● Model  Again."))
        await chat.pilot.press("down", "down", "enter")  # the answer to the edited message
        await settled(chat, "first", "One.\n", "second!", "Else.\n")
        assert isinstance(chat.chat.focused, ReplyView)


async def test_a_cut_reply_keeps_going(ride: Any) -> None:
    async with ride(SLOW) as chat:
        await chat.type("/continue")
        assert "no reply yet" in chat.status
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING and "Half of" in chat.screen())
        await chat.pilot.press("ctrl+o", ">")
        await chat.until(lambda: "being written" in chat.status)
        await chat.pilot.press("escape")
        await chat.ready()
        assert footers(chat)[0].startswith("stopped · k continue")
        await chat.pilot.press("alt+up")
        await chat.letter("k")
        await settled(chat, "go", "Half of it.\n")
        assert "in 2 parts" in footers(chat)[0] and "k continue" not in footers(chat)[0]
        assert isinstance(chat.chat.focused, ReplyView)
        await chat.letter("k")
        assert "this reply is complete" in chat.status
        whole = chat.session.chat.turns[0].reply.report
        await chat.type("and")
        await chat.until(lambda: "Half of" in chat.session.chat.turns[-1].reply.text)
        name = chat.session.chat.id
    async with ride(answer(" a new engine.\n"), resume=name) as chat:  # it was killed in mid-reply
        await chat.until(lambda: len(footers(chat)) == 2 and "k continue" in footers(chat)[1])
        assert footers(chat)[1].startswith("interrupted · k continue")
        assert chat.session.chat.turns[0].reply.report == whole
        await chat.pilot.press("ctrl+o", ".")
        await settled(chat, "go", "Half of it.\n", "and", "Half of a new engine.\n")
        with Store.open() as store:
            (hit,) = store.search("engine")
            assert hit.chat == name
    async with ride(answer(", says the model.\n"), resume=name) as chat:
        await settled(chat, "go", "Half of it.\n", "and", "Half of a new engine.\n")
        assert chat.session.chat.turns[-1].reply.end is End.WHOLE and "in 2 parts" in footers(chat)[1]
        await chat.type("/edit reply")
        await chat.until(lambda: "Editing the reply" in chat.screen())
        assert chat.chat.prompt.text == "Half of a new engine.\n"
        chat.chat.prompt.put("/All of it")
        await chat.pilot.press("home", "slash", "enter")  # two slashes are no command
        await settled(chat, "go", "Half of it.\n", "and", "/All of it, says the model.\n")
        assert "‹ 2/2 ›" in footers(chat)[1] and footers(chat)[1].endswith("begun by you")
    with Store.open() as store:
        assert store.load(name).path()[-1].text == "/All of it, says the model.\n"


async def test_another_answer_while_one_is_under_way_and_one_that_is_refused(ride: Any) -> None:
    async with ride(SLOW, answer("Second.\n"), fails("No room."), fails("No room.")) as chat:
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING)
        await chat.type("later")
        await chat.pilot.press("alt+up")
        await chat.letter("d", "d")  # what waits is just not sent
        await chat.until(lambda: "Not sent" in chat.status and not chat.session.queue)
        await chat.type("/regen")  # what runs is stopped and kept
        await settled(chat, "go", "Second.\n")
        assert "‹ 2/2 ›" in footers(chat)[0]
        await chat.type("/regen")
        await chat.until(lambda: chat.cards)
        await settled(chat, "go", "Second.\n")
        assert chat.chat.prompt.text == "" and len(chat.session.chat.tree) == 3
        await chat.type("/edit")
        chat.chat.prompt.put("gone")
        await chat.pilot.press("enter")
        await chat.until(lambda: len(chat.cards) == 2)
        await settled(chat, "go", "Second.\n")
        assert chat.chat.prompt.text == "gone"
        name = chat.session.chat.id
    with Store.open() as store:
        whole = store.load(name)
        assert [node.text for node in whole.path()] == ["go", "Second.\n"] and len(whole.nodes) == 3


async def test_a_new_chat_begins_like_the_old_one(ride: Any) -> None:
    async with ride(answer("One.\n"), answer("Two.\n"), answer("Three.\n")) as chat:
        await chat.ask("first")
        await chat.ask("second")
        old = chat.session.chat.id
        await chat.pilot.press("alt+up", "alt+up", "alt+up")
        await chat.letter("b")  # on the first answer
        await settled(chat, "first", "One.\n")
        assert chat.session.chat.id != old
        await chat.ask("third")
        await chat.pilot.press("alt+up", "alt+up")
        await chat.letter("b")  # on what was just asked
        await settled(chat, "first", "One.\n")
        assert chat.chat.prompt.text == "third"
    with Store.open() as store:
        assert sorted(row.messages for row in store.chats()) == [1, 2, 2]
        assert [node.text for node in store.load(old).path()] == ["first", "One.\n", "second", "Two.\n"]


async def test_private_chats_have_branches_too(ride: Any) -> None:
    async with ride(answer("One.\n"), answer("Two.\n"), private=True) as chat:
        await chat.ask("first")
        await chat.type("/branch")
        assert "the only one" in chat.status
        await chat.type("/regen")
        await settled(chat, "first", "Two.\n")
        await chat.type("/delete-message")
        await settled(chat, "first", "One.\n")
        await chat.type("/undo")
        await settled(chat, "first", "Two.\n")


async def test_what_is_seen_stays_where_it_is(ride: Any) -> None:
    """Another branch takes the place of the one before on the screen."""
    long = "word " * 200 + "\n"
    async with ride(answer(long), answer("Short.\n"), answer(long), answer(long), size=(60, 20)) as chat:
        for text in ("first", "second", "third"):
            await chat.ask(text)
        await chat.pilot.press("alt+up", "alt+up", "alt+up", "alt+up")
        assert chat.chat.focused.turn.text == "second"
        await chat.letter("e")
        await chat.pilot.press("!", "enter")
        await chat.until(lambda: len(chat.session.chat.turns) == 2)
        await chat.ready()
        await chat.pilot.press("alt+up", "alt+up")
        await chat.pilot.pause()
        row = chat.chat.focused.region.y
        for key, text in (("left", "second"), ("right", "second!"), ("left", "second")):
            await chat.pilot.press(key)
            await chat.until(
                lambda text=text: getattr(chat.chat.focused, "turn", None) and chat.chat.focused.turn.text == text
            )
            await chat.ready()
            await chat.until(lambda: chat.chat.focused.region.y == row)
            assert 0 < chat.chat.transcript.scroll_y < chat.chat.transcript.max_scroll_y


async def test_the_tree_leads_to_what_is_not_on_the_screen_yet(ride: Any) -> None:
    """A long chat shows its end alone; its first answer has a sibling."""
    with Store.open() as store:
        store.put_chat(Row(id="C", title="Long", created=1.0, updated=1.0))
        above = None
        for turn in range(26):
            store.put_node("C", Node(id=f"q{turn:02}", role="user", text=f"ask {turn}", parent=above))
            store.put_node("C", Node(id=f"r{turn:02}", role="assistant", text=f"say {turn}", parent=f"q{turn:02}"))
            above = f"r{turn:02}"
        store.put_node("C", Node(id="other", role="assistant", text="another way", parent="q00"))
        store.set_head("C", above)
    async with ride(answer("x\n"), resume="C", size=(60, 20)) as chat:
        await chat.until(lambda: "say 25" in chat.screen() and "ask 0" not in chat.screen())
        await chat.pilot.press("ctrl+o", "T")
        await chat.until(lambda: isinstance(chat.app.screen, TreeScreen))
        await chat.pilot.press("home", "down", "down", "enter")
        await chat.until(lambda: getattr(chat.chat.focused, "turn", None) and chat.chat.focused.turn.text == "ask 1")
        await chat.until(lambda: chat.chat.transcript.region.contains_region(chat.chat.focused.region))
        await chat.type("/tree")
        await chat.until(lambda: isinstance(chat.app.screen, TreeScreen))
        await chat.pilot.press("end", "enter")
        await settled(chat, "ask 0", "another way")
        await chat.pilot.press("left")
        await chat.until(lambda: len(chat.session.chat.turns) == 26)
        await chat.until(lambda: "say 0" in chat.screen() and "‹ 1/2 ›" in chat.screen())
