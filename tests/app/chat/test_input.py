"""The prompt as a user meets it: completion, attachments, search, queue, editor, drafts."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_support import Ride, answer, end, step
from textual.events import Paste

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.input.attach import estimate
from outrider.app.chat.input.candidate import Candidate
from outrider.app.chat.session import State
from outrider.app.chat.transcript import UserMessage
from outrider.app.store.records import Attachment

SLOW = [step(0, 0.0, [(f"word{n} ", "P") for n in range(10)]), end() | {"at": 600.0}]  # it waits to be stopped


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a few files."""
    folder = tmp_path / "work"
    (folder / "src").mkdir(parents=True)
    (folder / "notes.md").write_text("# Notes\n```\ncode\n```\n")
    (folder / "src" / "main.py").write_text("print()\n")
    (folder / "blob.bin").write_bytes(b"\0\1\2")
    monkeypatch.chdir(folder)
    return folder


def offered(chat: Ride) -> list[str]:
    """What the popup offers."""
    return [entry.candidate.text for entry in chat.chat.input.menu.entries]


async def test_commands_are_completed_with_their_arguments(ride: Any) -> None:
    async with ride(answer("x\n"), size=(100, 30)) as chat:
        prompt, popup = chat.chat.prompt, chat.chat.input.popup
        await chat.pilot.press("slash", *"dra")
        await chat.until(lambda: popup.display)
        assert offered(chat)[0] == "drafter" and "Switch" not in chat.screen() and "Choose a drafter" in chat.screen()
        await chat.pilot.press("escape")
        assert not popup.display and prompt.text == "/dra" and chat.chat.focused is prompt
        await chat.pilot.press("tab")
        assert popup.display
        await chat.pilot.press("tab")
        assert prompt.text == "/drafter " and offered(chat)[:2] == ["auto", "none"]
        await chat.pilot.press(*"suf", "enter")
        await chat.pilot.pause()
        assert chat.session.drafter.name == "suffix" and prompt.text == ""
        await chat.pilot.press("slash", *"undo", "enter")  # a whole name is sent as it is
        await chat.until(lambda: "nothing to bring back" in chat.status)
        await chat.pilot.press("slash", *"waiting")
        await chat.until(lambda: "no message waits" in chat.screen())
        await chat.pilot.press("ctrl+c", "slash", *"themes", "enter")
        await chat.until(lambda: chat.notes)
        assert "There is no command /themes. Did you mean /theme?" in chat.notes[-1]
        assert prompt.text == "/themes" and not popup.display
        for action in ACTIONS:
            found = action.candidates(chat.chat)
            found = await found if inspect.isawaitable(found) else found
            assert all(isinstance(one, Candidate) for one in found) and (action.argument or not found), action.id
        prompt.put("half a thought")
        chat.chat.pick("system")
        assert prompt.text == "/system "
        await chat.pilot.press(*"Hm", "enter")
        await chat.until(lambda: chat.session.chat.system == "Hm" and prompt.text == "half a thought")


async def test_files_go_with_a_message(ride: Any, here: Path) -> None:
    async with ride(answer("Read.\n"), answer("Again.\n"), size=(100, 30)) as chat:
        prompt, chips = chat.chat.prompt, chat.chat.input.chips
        await chat.pilot.press(*"Sum up @not")
        await chat.until(lambda: offered(chat) == ["notes.md"])
        await chat.pilot.press("enter")
        await chat.until(lambda: chips.display)
        assert prompt.text == "Sum up notes.md " and "+ notes.md · 21 B · ~" in chat.screen()
        await chat.pilot.press("at", *"sr")
        await chat.until(lambda: offered(chat)[:1] == ["src/"])
        await chat.pilot.press("tab")
        await chat.until(lambda: offered(chat) == ["src/main.py"])
        assert prompt.text.endswith("@src/")
        await chat.pilot.press("tab")
        await chat.until(lambda: len(prompt.attachments) == 2)
        await chat.type("/file blob.bin")
        await chat.until(lambda: chat.notes)
        assert "blob.bin is not a text file" in chat.notes[0] and len(prompt.attachments) == 2
        prompt.put("Sum up")
        await chat.pilot.press("home", "backspace")
        assert [one.name for one in prompt.attachments] == ["notes.md"] and prompt.text == "Sum up"
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.session.chat.turns and chat.session.chat.turns[0].reply)
        await chat.ready()
        assert "+ notes.md · 21 B" in chat.screen() and not chips.display and not prompt.attachments
        first = chat.session.chat.messages()[0].content
        assert first == "File: notes.md\n````\n# Notes\n```\ncode\n```\n````\n\nSum up"
        await chat.ask("and?")
        assert chat.session.chat.messages()[0].content == first
        reply = chat.session.chat.last_reply()
        assert reply is not None and reply.report is not None
        chat.session.chat.turns[0].text = "word " * 200
        reply.report.prompt_tokens = 2 * estimate("\n".join(one.content for one in chat.session.chat.messages()[:-1]))
        prompt.put("", [Attachment(name="more.md", text="word " * 10, path="/more.md")])
        assert "+ more.md · 50 B · ~20 tokens, 8% of the context" in str(chips.render())


async def test_long_pastes_are_folded_and_unfolded(ride: Any) -> None:
    long = "\n".join(f"line {n}" for n in range(340)) + "\n"
    async with ride(answer("Read.\n"), size=(100, 30)) as chat:
        prompt = chat.chat.prompt
        chat.app.post_message(Paste("short"))
        await chat.until(lambda: prompt.text == "short")
        chat.app.post_message(Paste(long))
        await chat.until(lambda: prompt.attachments)
        assert prompt.text == "short" and "pasted 340 lines · 3.0 kB" in chat.screen()
        await chat.type("/paste")
        await chat.until(lambda: "Paste now" in chat.status)
        chat.app.post_message(Paste("a b"))
        await chat.until(lambda: len(prompt.attachments) == 2)
        await chat.type("/attachments")
        await chat.until(lambda: chat.chat.focused is chat.chat.input.chips)
        await chat.pilot.press("right", "enter")
        await chat.until(lambda: prompt.text.endswith("a b"))
        assert len(prompt.attachments) == 1 and chat.chat.focused is prompt
        await chat.pilot.press("shift+tab")
        assert chat.chat.focused is chat.chat.input.chips
        await chat.pilot.press("delete")
        assert not prompt.attachments and chat.chat.focused is prompt
        chat.app.copy_to_clipboard(long)
        await chat.pilot.press("ctrl+v", "enter")
        await chat.until(lambda: chat.session.chat.turns and chat.session.chat.turns[0].reply)
        await chat.ready()
        assert chat.session.chat.messages()[0].content.startswith("Pasted text\n```\nline 0\n")


async def test_earlier_prompts_are_searched(ride: Any) -> None:
    async with ride(answer("x\n"), size=(100, 30)) as chat:
        prompt = chat.chat.prompt
        for text in ("red apples", "green\nfields", "green apples"):
            await chat.ask(text)
        await chat.pilot.press(*"draft", "ctrl+r")
        await chat.until(lambda: "search what you sent" in chat.screen())
        await chat.pilot.press("ctrl+u", *"gre")
        await chat.until(lambda: offered(chat) == ["green apples", "green\nfields"])
        await chat.pilot.press("ctrl+r", "enter")
        assert prompt.text == "green\nfields"
        prompt.put("draft")
        await chat.pilot.press("ctrl+r", "x", "ctrl+c")
        assert prompt.text == "draft" and not chat.chat.input.listing
        await chat.pilot.press("ctrl+r", "x", "escape")
        assert prompt.text == "draft" and "search what" not in chat.screen()
        await chat.pilot.press("ctrl+r", "y", "y")
        name = chat.session.chat.id
    async with ride(answer("x\n"), resume=name) as chat:
        await chat.until(lambda: chat.chat.prompt.text == "draft")


async def test_waiting_messages_are_edited_in_their_place(ride: Any) -> None:
    async with ride(SLOW, answer("x\n"), answer("y\n"), size=(100, 30)) as chat:
        prompt = chat.chat.prompt
        await chat.type("go")
        await chat.until(lambda: chat.session.state is State.WRITING)
        for text in ("one", "two", "three"):
            await chat.type(text)
        await chat.until(lambda: "1. in line" in chat.screen() and "3. in line" in chat.screen())
        await chat.pilot.press("up")
        assert prompt.text == "three"
        await chat.pilot.press("!", "enter")
        await chat.pilot.pause()
        await chat.type("/waiting")
        await chat.until(lambda: offered(chat) == ["1. one", "2. two", "3. three!"])
        assert "waiting · enter edits · delete removes · esc back  1/3" in chat.screen()
        await chat.pilot.resize_terminal(20, 5)
        await chat.pilot.press("down", "up")
        await chat.pilot.resize_terminal(100, 30)
        await chat.pilot.press("delete")
        assert offered(chat) == ["1. two", "2. three!"] and "Not sent" in chat.status
        await chat.pilot.press("enter")
        assert prompt.text == "two"
        await chat.pilot.press("2", "enter")
        await chat.pilot.pause()
        assert [turn.text for turn in chat.session.queue] == ["two2", "three!"]
        shown = [message.turn.text for message in chat.chat.query(UserMessage)]
        assert shown == ["go", "two2", "three!"]
        chat.chat.input.edit_waiting(chat.session.queue[0])
        prompt.put("", ())  # given up: what is said instead goes to the end
        await chat.pilot.press(*"last", "enter")
        await chat.pilot.pause()
        assert [turn.text for turn in chat.session.queue] == ["three!", "last"]
        await chat.pilot.press("escape")
        await chat.until(lambda: len(chat.session.chat.turns) == 3)
        await chat.ready()
        assert [turn.text for turn in chat.session.chat.turns] == ["go", "three!", "last"]


async def test_the_prompt_is_edited_elsewhere_and_kept(
    ride: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    script = tmp_path / "edit.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\nfile = Path(sys.argv[1])\n"
        "file.write_text(file.read_text().upper() + 'more\\n')\n"
    )
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setattr("outrider.app.editor._USUAL", ())  # nor is there one that is usual
    async with ride(answer("x\n")) as chat:
        prompt = chat.chat.prompt
        await chat.pilot.press(*"hey", "ctrl+g")
        await chat.until(lambda: chat.notes)
        assert "export EDITOR=nano" in chat.notes[0]
        monkeypatch.setattr(type(chat.app), "suspend", lambda app: nullcontext())
        monkeypatch.setenv("EDITOR", f"{sys.executable} {script}")
        await chat.pilot.press("ctrl+g")
        assert prompt.text == "HEY\nmore"
        await chat.pilot.press("!", "ctrl+underscore")
        assert prompt.text == "HEY\nmore"
        await chat.pilot.press("alt+z")
        assert prompt.text == "HEY\nmore!"
    async with ride(answer("x\n")) as chat:
        await chat.until(lambda: chat.chat.prompt.text == "HEY\nmore!")
        assert not os.environ.get("VISUAL")
        await chat.pilot.press("enter")
        await chat.until(lambda: chat.session.chat.turns)
        await chat.ready()
        first = chat.session.chat.id
        await chat.pilot.press(*"for the first")
        chat.chat.new_chat()
        chat.chat.prompt.put("")
        await chat.ask("second chat")
        await chat.pilot.press(*"for the second")
        await chat.session.open_chat(first)
        assert chat.chat.prompt.text == ""
        await chat.pilot.press(*"again")
        second = next(row.id for row in await chat.session.keeper.ask(lambda store: store.chats()) if row.id != first)
        await chat.session.open_chat(second)
        assert chat.chat.prompt.text == "for the second"
        chat.chat.prompt.put("")
        await chat.pilot.press("slash", *"chats ")
        await chat.until(lambda: len(offered(chat)) == 2)
        await chat.pilot.press(*"hey", "tab", "enter")  # found by its title
        await chat.until(lambda: chat.session.chat.id == first)
        await chat.until(lambda: chat.chat.prompt.text == "again")
    async with ride(answer("x\n"), private=True) as chat:
        await chat.pilot.press("z")
        assert chat.chat.prompt.text == "z"
