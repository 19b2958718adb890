"""The settings in a running chat: mistakes are told, changes made elsewhere are taken over, choices remembered."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_support import Ride, answer

from outrider.app.chat import ChatOptions
from outrider.app.chat.app import ChatApp
from outrider.app.chat.marks import Marks
from outrider.app.chat.themes import theme_of
from outrider.app.config import FIELDS, Asked
from outrider.app.config.remember import remember

Write = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the file of settings, each time with another date."""
    path = tmp_path / "home" / "config" / "config.toml"
    path.parent.mkdir(parents=True)
    seconds = iter(range(1, 100))

    def call(text: str) -> None:
        path.write_text(text)
        os.utime(path, ns=(0, next(seconds) * 10**9))

    return call


async def changed(chat: Ride) -> str:
    """Look at the file; the note that it makes."""
    before = len(chat.notes)
    chat.chat._follower.check(chat.chat)
    await chat.pilot.pause(0)
    return "" if len(chat.notes) == before else chat.notes[-1]


async def test_the_file_shapes_the_start(ride: Any, write: Write) -> None:
    write('[look]\ntheme = "nord"\nmarks = "off"\nwidth = 40\n')
    async with ride(answer("x\n"), size=(100, 24)) as chat:
        assert chat.app.theme == "nord" and chat.app.palette.mode is Marks.OFF
        assert chat.chat.transcript.styles.padding.left == 30
        assert not chat.cards


async def test_mistakes_are_a_card_and_the_defaults_hold(ride: Any, write: Write) -> None:
    write('[look]\nthem = "nord"\n[keys.bind]\nnew = ["ctrl+m"]\n')
    async with ride(answer("x\n")) as chat:
        (card,) = chat.cards
        assert "config.toml, line 2: look.them is no setting. Did you mean theme?" in card
        assert "config.toml, line 4: keys.bind.new" in card
        write('[look]\nthem = "nord"\n[keys.bind]\nnew = ["ctrl+m"]\n[sampling]\ntop_k = 3\n')
        await changed(chat)
        assert len(chat.cards) == 1  # nothing new
        write('[look]\nthem = "nord"\n[keys.bind]\nnew = ["ctrl+m"]\n[sampling]\ntop_k = 3.5\n')
        await changed(chat)
        assert "line 6: sampling.top_k" in chat.cards[-1]
        write("[look\n")
        await changed(chat)
        assert "line 1" in chat.cards[-1]
        write("")
        await changed(chat)
        assert len(chat.cards) == 3
        await chat.ask("go")


async def test_changes_made_elsewhere_are_taken_over_and_told(ride: Any, write: Write) -> None:
    async with ride(answer("x\n"), asked=Asked({"sampling.top_k": 9})) as chat:
        assert await changed(chat) == ""
        write(
            '[look]\ntheme = "light"\nmarks = "off"\nwidth = 50\n[sampling]\ntemperature = 0.5\ntop_k = 3\n'
            '[chat]\nsystem = "Be brief."\nthink = false\n[drafting]\ndrafter = "suffix"\nrule = "rejection"\n'
            '[engine]\nmodel = "other"\n[keys.bind]\nnew = ["alt+n"]\n'
        )
        note = await changed(chat)
        assert note.startswith('config.toml has changed: look.theme is "light", look.marks is "off"')
        assert "top_k" not in note and note.endswith('From the next start on: engine.model "other".')
        assert chat.app.theme == theme_of("light") and chat.app.palette.mode is Marks.OFF
        assert chat.chat.transcript.styles.padding.left == 15
        session = chat.session
        assert session.sampling.temperature == 0.5 and session.sampling.top_k is None  # a flag's, as it was
        assert session.chat.system == "Be brief." and session.think is False
        assert session.drafter.name == "suffix" and session.options.rule == "rejection"
        await chat.ask("go")
        await chat.pilot.press("alt+n")
        assert not session.chat.turns
        write("# nothing\n")
        assert "sampling.temperature is left to the model's own" in await changed(chat)
        assert session.sampling.temperature is None and session.drafter.name == "auto"
        await chat.pilot.press("ctrl+n")
        write("# still nothing\n")
        assert "nothing to take over" in await changed(chat)


async def test_what_was_set_in_the_chat_stays_when_something_else_changes(ride: Any, write: Write) -> None:
    write("[sampling]\ntop_k = 3\n")
    async with ride(answer("x\n")) as chat:
        await chat.type("/set temperature 0.9")
        write("[sampling]\ntop_k = 4\n")
        await changed(chat)
        assert (chat.session.sampling.temperature, chat.session.sampling.top_k) == (0.9, 4)


async def test_theme_and_marks_are_remembered(ride: Any, write: Write) -> None:
    async with ride(answer("x\n")) as chat:
        await chat.type("/marks off")
        await chat.type("/theme gruvbox")
        assert chat.app.theme == "gruvbox"
        await chat.type("/theme gruvbix")
        await chat.until(lambda: chat.notes)
        assert "Did you mean gruvbox?" in chat.notes[-1]
        write("[sampling]\ntop_k = 4\n")
        assert "theme" not in await changed(chat)
        remember("look.theme", "monokai")  # by another chat, whose choice is its own
        write("[sampling]\ntop_k = 5\n")
        assert "theme" not in await changed(chat) and chat.app.theme == "gruvbox"
        for theme in ("monokai", "auto"):
            write(f'[look]\ntheme = "{theme}"\n')
            assert f'look.theme is "{theme}"' in await changed(chat) and chat.app.theme == theme_of(theme)
        write("")
        remember("look.theme", "gruvbox")
    async with ride(answer("x\n")) as chat:
        assert chat.app.theme == "gruvbox" and chat.app.palette.mode is Marks.OFF
        write('[look]\ntheme = "nord"\n')
        await changed(chat)
        await chat.type("/theme")
        assert "config.toml, line 2 decides at the next start" in chat.status
    async with ride(answer("x\n")) as chat:
        assert chat.app.theme == "nord"


async def test_a_choice_that_cannot_be_remembered_is_told(ride: Any, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "state").write_text("in the way")
    async with ride(answer("x\n"), private=True) as chat:
        await chat.type("/theme nord")
        assert "not remembered" in chat.status


async def test_personas_in_the_chat(ride: Any, write: Write) -> None:
    write('[personas.brief]\nsystem = "Be brief."\ntemperature = 0.2\nmodel = "m"\n[personas.wild]\ntemperature = 2\n')
    async with ride(answer("x\n"), asked=Asked(persona="wild"), size=(100, 30)) as chat:
        await chat.type("/persona")
        await chat.until(lambda: "Persona: wild. There are brief, wild." in chat.notes)
        await chat.type("/persona brief")
        await chat.until(lambda: chat.session.chat.system == "Be brief.")
        assert chat.session.sampling.temperature == 0.2 and 'From the next start on: engine.model "m"' in chat.notes[-1]
        await chat.type("/persona breif")
        await chat.until(lambda: "Did you mean brief?" in chat.notes[-1])
        write("[personas.wild]\ntemperature = 2\n")
        await changed(chat)
        assert any("no persona brief" in note for note in chat.notes) and chat.session.chat.system is None
        await chat.type("/persona none")
        await chat.until(lambda: chat.notes[-1].startswith("Persona none"))


async def test_another_model_brings_its_own_settings_but_not_over_what_the_chat_was_told(
    ride: Any, write: Write
) -> None:
    write("[models.other]\ntop_k = 4\ntemperature = 0.1\nthink = false\n[look]\nfps = 20\n")
    async with ride(answer("x\n")) as chat:
        follower, session = chat.chat._follower, chat.session
        assert chat.chat.stage.frames.tick == 0.05
        await chat.type("/set temperature 0.9")
        told = follower.loaded(chat.chat, "other")
        assert told.startswith("Model other: ") and "sampling.top_k is 4" in told and "temperature" not in told
        assert (session.sampling.top_k, session.sampling.temperature, session.think) == (4, 0.9, False)
        assert follower.own(session, "sampling.temperature") == 0.9
        assert follower.own(session, "sampling.top_k") is None
        row = chat.chat.board.row("engine.model")
        assert (row.value, row.own, row.locked) == ("starter", "other", "")
        follower.loaded(chat.chat, "starter")
        assert (session.sampling.top_k, session.sampling.temperature, session.think) == (None, 0.9, None)
        write("[look]\nfps = 10\nreduced_motion = true\n")
        assert "look.fps is 10, look.reduced_motion is true" in await changed(chat)
        assert chat.chat.stage.frames.tick == 0.1 and chat.app.animation_level == "none"


def test_every_theme_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    themes = ChatApp(ChatOptions()).available_themes
    assert {theme_of(setting) for setting in FIELDS["look.theme"].choices} <= set(themes)


async def test_mistakes_are_told_under_a_chat_that_goes_on(ride: Any, write: Write) -> None:
    async with ride(answer("One.\n")) as chat:
        await chat.ask("first")
        name = chat.session.chat.id
    write("[look\n")
    async with ride(answer("x\n"), resume=name) as chat:
        await chat.until(lambda: chat.cards and "first" in chat.screen())
        assert len(chat.cards) == 1 and "line 1" in chat.cards[0]
