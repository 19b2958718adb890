"""The registry walked: every action is told, can be reached in every way of working, and takes no key that others need."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import TextArea

from outrider.app.chat.actions import ACTIONS
from outrider.app.chat.keymap import OWNED, PRESETS, build, is_function_key
from outrider.app.chat.keypage import page
from outrider.app.chat.prompt import Prompt
from outrider.app.chat.terminal import keepers, kept, prompt_words, tells_shift_enter

PAGE = Path(__file__).parents[3] / "packaging" / "docs" / "keys.md"
EDITING = {"pageup", "pagedown", "f6", "f7", "ctrl+d", "ctrl+c", "ctrl+y", "ctrl+f"}  # of the text area, given up


@pytest.mark.parametrize("preset", PRESETS)
def test_every_action_can_be_done_without_mouse_alt_or_function_keys(preset: str) -> None:
    for action in build(preset, {}).actions:
        plain = [key for key in action.keys if key.startswith("ctrl+") or key == "escape"]
        assert action.slash or action.leader or (plain and action.id in ("interrupt", "leader")), action.id


def test_leader_letters_are_single_and_unique() -> None:
    letters = [action.leader for action in ACTIONS if action.leader]
    assert len(letters) == len(set(letters)) and all(len(letter) == 1 and letter.isprintable() for letter in letters)


@pytest.mark.parametrize("preset", ["default", "vim", "no-fkeys"])
def test_the_chat_takes_no_key_that_editing_needs(preset: str) -> None:
    keys = {key for action in build(preset, {}).actions for key in action.keys}
    editing = {key for binding in TextArea.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    assert keys & editing <= EDITING
    assert OWNED.keys() <= keys
    assert not {"enter", "tab", "up", "down"} & keys and issubclass(Prompt, TextArea)


def test_every_action_is_told_in_words() -> None:
    for action in ACTIONS:
        assert len(action.help) > 10 and len(action.title) <= 28, action.id


def test_the_page_of_the_documentation_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: outrider keys --markdown > packaging/docs/keys.md"


def test_what_terminals_keep_for_themselves() -> None:
    inside = {"TERM": "tmux-256color", "TMUX": "/tmp/x", "TERM_PROGRAM": "vscode"}
    assert [keeper.name for keeper in keepers(inside)] == ["tmux", "VS Code"]
    assert kept(["f1", "f2", "ctrl+p", "shift+enter", "alt+up"], inside) == {
        "shift+enter": "tmux: it makes it enter",
        "f1": "VS Code: its commands",
        "ctrl+p": "VS Code: opening files",
    }
    assert set(kept(["alt+up", "f1"], {"TERM_PROGRAM": "Apple_Terminal"})) == {"alt+up"}
    assert not keepers({"TERM": "xterm-kitty"})


@pytest.mark.parametrize(
    ("environ", "tells"),
    [
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, True),
        ({"TERM": "xterm-kitty", "TMUX": "x"}, False),
        ({"TERM": "xterm-256color"}, False),
    ],
)
def test_how_to_make_a_new_line_is_said_where_it_must_be(environ: dict[str, str], tells: bool) -> None:
    assert tells_shift_enter(environ) is tells
    assert ("ctrl+j" in prompt_words(environ)) is not tells


def test_no_fkeys_has_none() -> None:
    assert not [key for action in build("no-fkeys", {}).actions for key in action.keys if is_function_key(key)]
