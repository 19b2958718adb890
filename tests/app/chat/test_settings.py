"""The settings screen: every setting with its value, changed in place, written into the user's file, and live at once."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from chat_support import answer
from textual.app import App
from textual.widgets import Input, OptionList

from outrider.app.chat import ChatOptions
from outrider.app.chat.session import Session
from outrider.app.chat.settings import Board, Refused, kind_of, worded
from outrider.app.chat.settings_screen import SettingsScreen
from outrider.app.config import FIELDS, Asked
from outrider.app.config.remember import remember
from outrider.app.linear.desk import Desk


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of settings, not there yet."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    path = tmp_path / "home" / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    return path


def test_every_setting_is_changed_in_a_way_that_fits_it() -> None:
    kinds = {path: kind_of(field) for path, field in FIELDS.items()}
    assert kinds["look.mouse"] == kinds["chat.think"] == "switch" and kinds["look.theme"] == "choice"
    assert kinds["sampling.temperature"] == kinds["chat.system"] == kinds["look.fps"] == "text"
    assert kinds["keys.bind"] == "file"
    for field in FIELDS.values():
        assert worded(field, field.default) and field.help


def board(*, flags: dict[str, Any] | None = None) -> tuple[Board, Session]:
    """The settings of a chat that was not begun."""
    desk = Desk(ChatOptions(asked=Asked(flags or {})), io.StringIO())
    return desk.board, desk.session


def test_changes_are_written_and_hold_at_once(file: Path) -> None:
    file.write_text("# mine\n[sampling]\ntemperature = 0.9  # warm\n")
    settings, session = board()
    assert settings.put("sampling.temperature", "0.5") == "sampling.temperature is 0.5."
    assert file.read_text() == "# mine\n[sampling]\ntemperature = 0.5  # warm\n"
    assert session.sampling.temperature == 0.5
    assert settings.put("look.mouse", False) == "look.mouse is off from the next start on."
    assert settings.put("chat.system", "Be brief.") == "chat.system is Be brief." and session.chat.system == "Be brief."
    assert settings.put("sampling.stop", "END") and session.sampling.stop == ["END"]
    assert settings.put("sampling.seed", "") == "sampling.seed is a fresh one."
    assert settings.put("chat.think", True, for_model=True) == "chat.think is on." and session.think is True
    assert settings.put("chat.think", False).startswith("Written, but model starter, line ")
    assert session.think is True
    assert settings.reset("sampling.temperature") == "sampling.temperature is the model's own."
    assert session.sampling.temperature is None
    session.sampling.top_k = 7
    assert settings.row("sampling.top_k").own == 7 and settings.row("sampling.top_p").own is None
    assert ("this chat", "7, told to the chat itself") in settings.row("sampling.top_k").about("starter")


def test_a_new_file_has_everything_in_it_and_what_is_remembered_goes_with_the_default(file: Path) -> None:
    remember("look.theme", "nord")
    settings, _ = board()
    assert settings.row("look.theme").place == "remembered"
    assert settings.reset("look.theme") == "look.theme is auto." and settings.row("look.theme").value == "auto"
    assert settings.step("look.theme", 1) == "look.theme is dark." and settings.step("look.theme", -2).endswith(
        "light."
    )
    assert "#width = 100" in file.read_text() and tomllib.loads(file.read_text())["look"] == {"theme": "ansi-light"}
    assert settings.step("chat.think", 1) == "chat.think is off." and settings.step("chat.think", 1).endswith("on.")


def test_what_cannot_be_changed_says_why(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SAMPLING_TOP_K", "9")
    settings, _ = board(flags={"sampling.seed": 3})
    for path, value, words in [
        ("sampling.top_k", "3", "a variable of the environment decides it: environment OUTRIDER_SAMPLING_TOP_K"),
        ("sampling.seed", "3", "the command line decides it: flag --seed"),
        ("keys.bind", "{}", "a table of its own"),
        ("look.width", "wide", "width must be a whole number from 0 to 1000"),
        ("look.theme", "darkk", "Did you mean dark?"),
        ("sampling.top_p", "7", "top_p must be"),
    ]:
        with pytest.raises(Refused, match=re.escape(words)):
            settings.put(path, value)
    for change in (lambda: settings.reset("sampling.seed"), lambda: settings.step("look.width", 1)):
        with pytest.raises(Refused):
            change()
    with pytest.raises(Refused, match="cannot be set for a model"):
        settings.put("look.width", "70", for_model=True)
    assert settings.problem("look.width", "x") and not settings.problem("look.width", "70") and not file.exists()
    for text in ("[look\n", "look = { theme = 'dark' }\n"):
        file.write_text(text)
        with pytest.raises(Refused, match="o opens the file"):
            settings.put("look.width", "70")
        assert file.read_text() == text


def test_settings_are_found_by_words() -> None:
    settings, _ = board()
    assert [row.path for row in settings.rows()] == list(FIELDS)
    assert [row.path for row in settings.rows("reduced motion")] == ["look.reduced_motion"]
    assert "look.theme" in [row.path for row in settings.rows("GRUVBOX")] and not settings.rows("xyzzy")
    row = settings.row("look.theme")
    assert dict(row.about("m"))["may be"].startswith("one of ") and dict(row.about("m", brief=True)).keys() == {
        "what",
        "now",
    }
    assert row.typed == "auto" and settings.row("sampling.stop").typed == "[]"


async def test_settings_are_changed_in_place(ride: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_SAMPLING_TOP_K", "9")
    async with ride(answer("x\n"), size=(96, 24)) as chat:
        press = chat.pilot.press

        def rows() -> OptionList:
            return chat.app.screen.query_one("#rows", OptionList)

        def at() -> str | None:
            return rows().get_option_at_index(rows().highlighted or 0).id

        await press("ctrl+o", "S")
        await chat.until(lambda: isinstance(chat.app.screen, SettingsScreen) and "theme" in chat.screen())
        assert at() == "look.theme"
        await press("right")  # a choice by arrow, and by list
        assert chat.app.theme == "outrider-dark"
        await press("enter", "down", "enter")
        assert chat.app.theme == "outrider-light" and at() == "look.theme"
        rows().highlighted = rows().get_option_index("look.width")
        await press("enter", "x")
        await chat.until(lambda: "width must be a whole number" in chat.screen())
        chat.app.screen.query_one("#editor-input", Input).value = "50"
        await press("enter")
        assert chat.chat.transcript.styles.padding.left > 20
        await chat.until(lambda: "look.width is 50." in chat.screen() and "config.toml, line" in chat.screen())
        await press("r")
        await chat.until(lambda: "look.width is 100." in chat.screen())
        rows().highlighted = rows().get_option_index("sampling.top_k")
        await press("enter")
        await chat.until(lambda: "a variable of the environment decides it" in chat.screen())
        await press("slash", *"mouse", "enter", "enter")  # a switch that was looked for
        assert at() == "look.mouse" and tomllib.loads(file.read_text())["look"]["mouse"] is False
        await press("m", "escape", "tab")
        assert at() == "keys.preset"
        await press("shift+tab", "escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
        assert not chat.notes  # all of it was said where it was done
        await chat.type("/settings chat.think")
        await chat.until(lambda: isinstance(chat.app.screen, SettingsScreen) and "chat.think" in chat.screen())
        assert at() == "chat.think"
        await press("f9")
        await chat.until(lambda: chat.app.screen is chat.chat)
        await chat.type("/settings look.marks off")
        await chat.until(lambda: chat.notes == ["look.marks is off."])


async def test_the_file_is_opened_in_the_editor(ride: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "VISUAL", f'{sys.executable} -c \'import sys; open(sys.argv[1], "w").write("[sampling]\\ntop_k = 3")\''
    )
    monkeypatch.setattr(App, "suspend", lambda _: contextlib.nullcontext())
    async with ride(answer("x\n")) as chat:
        chat.chat.board.show("look.width")
        await chat.until(lambda: isinstance(chat.app.screen, SettingsScreen))
        await chat.pilot.press("o")
        await chat.until(lambda: chat.session.sampling.top_k == 3)
        monkeypatch.setenv("VISUAL", "/nowhere/editor")
        await chat.pilot.press("o")
        await chat.until(lambda: "could not be started" in chat.screen())
