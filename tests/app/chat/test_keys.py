"""Keys, commands, palette and help: one registry behind all of them, and nothing bound that a terminal keeps."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest
from chat_support import Ride, answer
from textual.binding import Binding
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widget import Widget

import outrider.app.chat
from outrider.app.chat.actions import ACTIONS, BY_ID, BY_SLASH, parse_slash
from outrider.app.chat.card import Card
from outrider.app.chat.help import HelpScreen, place_of
from outrider.app.chat.helptext import Place, having, laid_out, sections
from outrider.app.chat.inspect.view import Inspector
from outrider.app.chat.keymap import PRESETS, build
from outrider.app.chat.problem import Problem
from outrider.app.chat.prompt import NEW_LINE, Prompt
from outrider.app.chat.screen import ChatScreen, bindings
from outrider.app.chat.session import State
from outrider.app.chat.status import hints
from outrider.app.chat.talk import Turn
from outrider.app.chat.transcript import UserMessage

FORBIDDEN = {
    *("ctrl+m", "ctrl+i", "ctrl+h", "ctrl+[", "ctrl+left_square_bracket"),  # the same bytes as enter, tab, …
    *("ctrl+s", "ctrl+z", "ctrl+backslash"),  # flow control, suspend, quit signal
    *("ctrl+a", "ctrl+b"),  # start of line; prefixes of multiplexers
    *("ctrl+tab", "ctrl+t", "ctrl+w", "f10", "f11", "space"),
    *(f"alt+{digit}" for digit in range(10)),
}


def test_every_action_is_complete() -> None:
    assert len(BY_ID) == len(ACTIONS)
    for action in ACTIONS:
        assert action.title and action.help and not action.help.endswith(".") and action.title[0].isupper()
        assert action.keys or action.slash or action.leader
    slashes = [action.slash for action in ACTIONS if action.slash]
    assert len(slashes) == len(set(slashes)) == len(BY_SLASH)
    for name in ("new", "drafter", "marks", "stop", "system", "set", "copy", "help", "quit"):
        assert name in BY_SLASH


def test_no_key_is_bound_twice_or_taken_by_terminals() -> None:
    keys = [key for action in ACTIONS for key in (*action.keys, *action.empty_prompt)]
    assert len(keys) == len(set(keys))
    mine = {binding.key for binding in bindings()} | set(NEW_LINE)
    assert not mine & FORBIDDEN
    assert not any(key.startswith("ctrl+shift+") for key in mine)
    for action in ACTIONS:
        assert not any(len(key) == 1 for key in action.keys)  # typing belongs to the prompt
    assert set(keys) == {binding.key for binding in ChatScreen.BINDINGS}  # type: ignore[union-attr]


def all_below(kind: type) -> Iterator[type]:
    """Every class that is derived from it."""
    for one in kind.__subclasses__():
        yield one
        yield from all_below(one)


def test_no_other_widget_binds_what_the_chat_or_a_terminal_takes() -> None:
    for module in pkgutil.walk_packages(outrider.app.chat.__path__, "outrider.app.chat."):
        importlib.import_module(module.name)
    taken = {key for preset in PRESETS for action in build(preset, {}).actions for key in action.keys}
    seen = 0
    for kind in {one for one in all_below(Widget) if one.__module__.startswith("outrider.")}:
        bound = [one for one in kind.__dict__.get("BINDINGS", ()) if isinstance(one, Binding)]
        keys = {key.strip() for one in bound for key in one.key.split(",")}
        seen += bool(keys)
        assert not keys & (FORBIDDEN - {"space"}), kind
        if not issubclass(kind, Screen):  # what the chat has comes first there
            assert keys & taken <= {"ctrl+p", "ctrl+n"}, kind
    assert seen > 10


def test_help_and_footer_come_from_the_registry() -> None:
    lines = [line for section in sections() for line in section.lines]
    for action in ACTIONS:
        assert any(line.words == action.help for line in lines)
    assert [key for key, _ in hints(build("default", {}))] == ["F1", "F2", "F3", "F4", "F5", "^o"]
    assert [key for key, _ in hints(build("default", {}), narrow=True)] == ["F1", "F2", "F4", "^o"]


def test_help_knows_every_place_that_can_have_the_focus() -> None:
    inspector = place_of(Inspector.__new__(Inspector))
    assert inspector.name == "inspector" and ("left", "Token before") in inspector.keys
    card = place_of(Card(Problem("It broke", "for a reason")))
    assert card.name == "error card" and card.keys[0][0] == "c"
    assert place_of(UserMessage(Turn("hi"))) == Place("message") and place_of(None) == place_of(Prompt("x")) == Place()


def test_help_begins_where_one_is_and_says_what_cannot_be_done() -> None:
    told = sections(place=Place("message"), reasons={"copy": "no reply yet"})
    assert told[0].title == "On this message, where you are"
    assert [line.reason for line in told[0].lines if line.keys.startswith("c")] == ["no reply yet"]
    assert (
        sum(line.reason == "no reply yet" for section in told for line in section.lines) == 2
    )  # and among all actions
    assert sections()[0].title == "In the prompt, where you are"
    assert sections(place=Place("error card", [("q", "Goes away")]))[0].lines[0].words == "Goes away"
    assert not having(told, "model copy nonsense")
    assert [line.command for one in having(told, "COPY markdown") for line in one.lines if line.command]
    assert having(told, "figures")[-1] == told[-1] and len(having(told, "figures")[-1].lines) > 30
    for width in (30, 60, 100):
        text = "".join(part for part, _ in laid_out(told, width))
        assert max(map(len, text.splitlines())) <= max(width, 45)
        assert "not now: no reply yet" in " ".join(text.split()) and "tokens/pass" in text
    styles = {style for part, style in laid_out(told, 100) if "no reply yet" in part}
    assert styles == {"$text-muted"}


async def test_palette_lists_every_action(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        offered = {command.title for command in chat.app.get_system_commands(chat.chat)}
        assert offered == {action.title for action in ACTIONS}
        await chat.pilot.press("ctrl+p")
        await chat.until(lambda: isinstance(chat.app.screen, CommandPalette))
        await chat.pilot.press(*"system", "enter")
        await chat.until(lambda: chat.app.screen is chat.chat)
        await chat.until(lambda: chat.chat.prompt.text == "/system ")


async def test_help_opens_looks_for_words_and_closes(ride: Any) -> None:
    async with ride(answer("x\n"), size=(60, 20)) as chat:
        await chat.pilot.press("f1")
        await chat.until(lambda: isinstance(chat.app.screen, HelpScreen) and "where you are" in chat.screen())
        await chat.pilot.press("pagedown", *"thought")
        await chat.until(lambda: "/thought" in chat.screen() and "/persona" not in chat.screen())
        await chat.pilot.press("escape")
        await chat.until(lambda: "where you are" in chat.screen())
        await chat.pilot.press("down", "f1")
        await chat.until(lambda: chat.app.screen is chat.chat and chat.chat.focused is chat.chat.prompt)
        await chat.ask("go")
        await chat.pilot.press("alt+up", "ctrl+o", "question_mark")
        await chat.until(lambda: "On this message, where you are" in chat.screen())
        await chat.pilot.press("escape")
        await chat.type("/help persona")
        await chat.until(lambda: "/persona" in chat.screen() and "/thought" not in chat.screen())


async def test_new_lines_and_growing_prompt(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        prompt = chat.chat.prompt
        await chat.pilot.press("a", "ctrl+j", "b", "shift+enter", "c", "alt+enter", "d", "backslash", "enter", "e")
        assert prompt.text == "a\nb\nc\nd\ne"
        await chat.until(lambda: prompt.size.height == 5)
        await chat.pilot.press("enter")
        await chat.ready()
        assert chat.session.chat.turns[0].text == "a\nb\nc\nd\ne" and prompt.text == ""
        assert prompt.size.height == 1


async def test_blank_messages_are_not_sent(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.pilot.press("enter", "space", "ctrl+j", "enter")
        assert not chat.session.chat.turns and not chat.session.queue


async def test_history_keeps_the_draft(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        prompt = chat.chat.prompt
        for text in ("first", "second\nline"):
            await chat.ask(text)
        await chat.pilot.press(*"dra", "up")
        assert prompt.text == "second\nline"
        await chat.pilot.press("up", "up")
        assert prompt.text == "first"
        await chat.pilot.press("up")
        assert prompt.text == "first"
        await chat.pilot.press("down")
        assert prompt.text == "second\nline"
        await chat.pilot.press("down", "down")
        assert prompt.text == "dra"


async def test_copy_by_key_command_and_on_a_focused_reply(ride: Any) -> None:
    first, second = "# One\n\n- *a*\n", "Two.\n"
    async with ride(answer(first), answer(second)) as chat:
        await chat.pilot.press("ctrl+y")
        assert "no reply" in chat.status
        await chat.ask("one")
        await chat.ask("two")
        await chat.pilot.press("ctrl+y")
        assert chat.app.clipboard == second and "Copied" in chat.status
        await chat.pilot.press("alt+up")
        replies = list(chat.chat.query(".reply"))
        assert chat.chat.focused is replies[1]
        replies[0].focus()
        await chat.letter("c")
        assert chat.app.clipboard == first
        await chat.pilot.press("escape")
        assert chat.chat.focused is chat.chat.prompt
        await chat.type("/copy")
        assert chat.app.clipboard == second
        replies[0].focus()
        await chat.pilot.press("h", "i", "c")
        assert chat.chat.focused is chat.chat.prompt and chat.chat.prompt.text == "hic"


async def test_ctrl_c_stops_then_clears_then_quits(ride: Any) -> None:
    async with ride(answer("word " * 300, pause=0.03)) as chat:
        now = [100.0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("outrider.app.chat.screen.monotonic", lambda: now[0])
            await chat.type("go")
            await chat.until(lambda: chat.session.state is State.WRITING)
            await chat.pilot.press("ctrl+c")
            await chat.ready()
            assert chat.session.chat.turns[0].reply.begun
            now[0] += 5
            await chat.pilot.press("x", "ctrl+c")
            assert chat.chat.prompt.text == ""
            now[0] += 5
            await chat.pilot.press("ctrl+c")
            assert "again quits" in chat.status and chat.app.is_running
            now[0] += 1
            await chat.pilot.press("ctrl+c")
        assert chat.app._exit


async def test_ctrl_c_copies_a_selection(ride: Any) -> None:
    async with ride(answer("Alpha beta.\n")) as chat:
        await chat.ask("go")
        (paragraph,) = chat.chat.query("_Paragraph")
        paragraph.text_select_all()
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard.strip() == "Alpha beta." and "Copied" in chat.status
        chat.chat.prompt.put("typed")
        chat.chat.prompt.select_all()
        await chat.pilot.press("ctrl+c")
        assert chat.app.clipboard == "typed"


@pytest.mark.parametrize("keys", [("ctrl+q",), ("ctrl+d",), (*"/quit", "enter")])
async def test_ways_to_quit(ride: Any, keys: tuple[str, ...]) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.pilot.press("slash" if keys[0] == "/" else keys[0], *keys[1:])
        await chat.pilot.pause()
        assert chat.app._exit


async def test_ctrl_d_deletes_while_there_is_text(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.pilot.press(*"ab", "home", "ctrl+d")
        assert chat.chat.prompt.text == "b" and not chat.app._exit


@pytest.mark.parametrize(
    ("text", "expected"),
    [("hi", None), ("//x y", None), ("/set a 1", ("set", "a 1")), ("/help", ("help", "")), ("/ x", ("", "x"))],
)
def test_slash_is_parsed(text: str, expected: object) -> None:
    assert parse_slash(text) == expected


async def say(chat: Ride, command: str) -> str:
    """Send a slash command; the note that it makes."""
    before = len(chat.notes)
    await chat.type(command)
    await chat.until(lambda: len(chat.notes) > before)
    return chat.notes[-1]


async def test_slash_commands(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        assert "no command /frobnicate" in await say(chat, "/frobnicate now")
        assert chat.chat.prompt.text == "/frobnicate now"
        assert "takes nothing" in await say(chat, "/copy-chat please")
        assert "temperature 0.7 (model)" in await say(chat, "/set")
        assert "temperature 0.2" in await say(chat, "/set temperature 0.2")
        assert chat.session.sampling.temperature == 0.2
        assert "max-tokens 9" in await say(chat, "/set max_tokens=9")
        assert "must be from 0" in await say(chat, "/set temperature -1")
        assert "takes a number" in await say(chat, "/set top-p lots")
        assert "needs a value" in await say(chat, "/set top-p")
        assert "no option" in await say(chat, "/set color red")
        await say(chat, "/set temperature default")
        assert chat.session.sampling.temperature is None
        assert "no system prompt" in await say(chat, "/system")
        assert "Be brief" in await say(chat, "/system Be brief.")
        assert chat.session.chat.messages()[0].content == "Be brief."
        assert "auto, none, prompt_lookup, suffix" in await say(chat, "/drafter")
        assert "no drafter magic" in await say(chat, "/drafter magic")
        await chat.type("/drafter suffix")
        assert chat.session.drafter.name == "suffix"
        await chat.type("/drafter off")
        assert chat.session.drafter.name == "none"
        await chat.type("//not a command")
        await chat.ready()
        assert chat.session.chat.turns[-1].text == "/not a command"


async def test_drafter_that_cannot_be_used_is_told(ride: Any) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.type("/drafter draft_model")
        await chat.until(lambda: chat.cards)
        assert "draft_model cannot draft here" in chat.cards[0] and "Usable now" in chat.cards[0]
        assert chat.session.drafter.name == "auto"
