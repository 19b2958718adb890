"""Keymaps: presets and the user's own keys over the registry; what cannot be is told with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.keys import _character_to_key
from textual.widgets import Static

from outrider.app.chat.actions import ACTIONS, BY_ID, Action
from outrider.app.chat.keymap import (
    KEPT,
    OWNED,
    PRESETS,
    REFUSED,
    SIGNS,
    Keymap,
    build,
    is_function_key,
    own_keys,
    risky,
    shown,
    spelt,
)
from outrider.app.chat.leader import laid_out
from outrider.app.chat.probe import Probe
from outrider.app.config.read import File


def held(keymap: Keymap, action: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys and letters of an action."""
    (one,) = [one for one in keymap.actions if one.id == action]
    return one.keys, one.on_message


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_sound(preset: str) -> None:
    keymap = build(preset, {})
    assert [action.id for action in keymap.actions] == [action.id for action in ACTIONS]
    assert set(PRESETS[preset]) <= set(BY_ID)
    for names in (
        [name for action in keymap.actions for name in (*action.keys, *action.empty_prompt)],
        [letter for action in keymap.actions for letter in action.on_message],
    ):
        assert len(names) == len(set(names))
    for action in keymap.actions:
        for name in (*action.keys, *action.on_message):
            assert spelt(name) == name and name not in REFUSED and not risky(name)
            assert OWNED.get(name, action.id) == action.id
    if preset == "no-fkeys":
        assert not [name for action in keymap.actions for name in action.keys if is_function_key(name)]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_action_has_a_way_in_without_function_keys(preset: str) -> None:
    def way(action: Action) -> bool:
        plain = [name for name in (*action.keys, *action.on_message) if not is_function_key(name)]
        return bool(plain or action.slash or action.leader)

    keymap = build(preset, {})
    assert not [action.id for action in keymap.actions if not way(action)]
    leaders = [action.leader for action in keymap.actions if action.leader]
    assert len(leaders) == len(set(leaders))
    assert keymap.keys_of("leader") and keymap.keys_of("palette")


def test_own_keys_replace_those_of_the_action_and_win_over_others() -> None:
    keymap = build("default", {"new": ["f4", "N", "alt+n"], "thought": []})
    assert not keymap.faults
    assert held(keymap, "new") == (("f4", "alt+n"), ("N",))
    assert held(keymap, "marks") == ((), ())
    assert held(keymap, "thought") == ((), ())
    assert held(keymap, "copy") == (("ctrl+y",), ("c",))
    assert keymap.letters()["N"].id == "new" and "t" not in keymap.letters()
    assert keymap.first("new") == "F4" and keymap.first("thought") == "/thought" and keymap.first("previous_drafter")
    assert held(build("vim", {"copy": ["j"]}), "next_message") == (("alt+down",), ())


def test_writing_out_what_holds_changes_nothing() -> None:
    for preset in PRESETS:
        keymap = build(preset, {})
        assert build("default", {one.id: own_keys(one) for one in keymap.actions}).actions == keymap.actions


def faults(*lines: str) -> list[str]:
    text = "\n".join(("[keys.bind]", *lines))
    file = File(Path("config.toml"), text)
    import tomllib

    return [str(fault) for fault in build("default", tomllib.loads(text)["keys"]["bind"], file).faults]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ("new = ['alt+n']", "copy = ['alt+c', 'alt+n']"),
            ("line 3: keys.bind.copy", "alt+n is given to new too, in line 2."),
        ),
        (("", "nwe = ['alt+n']"), ("line 3: keys.bind.nwe is no action. Did you mean new?",)),
        (("new = ['ctrl+m']",), ("line 2: keys.bind.new", "ctrl+m is the same byte as enter")),
        (("new = ['enter']",), ("enter is needed for typing",)),
        (("new = ['ctrl+q']",), ("ctrl+q always belongs to quit",)),
        (("new = ['ctrl-n']",), ("'ctrl-n' is no key. Write it as ctrl+n.",)),
        (("new = ['C-n']",), ("Write it as ctrl+n.",)),
        (("new = ['contrl+n']",), ("Did you mean ctrl?",)),
        (("new = ['ctrl+pageuo']",), ("Did you mean pageup?",)),
        (("new = ['']",), ("'' is no key.",)),
        (("quit = []",), ("keys.bind.quit cannot be left without a key",)),
        (("stop = ['x']",), ("keys.bind.stop cannot be left without a key",)),
    ],
)
def test_mistakes_are_told_with_their_line(lines: tuple[str, ...], words: tuple[str, ...]) -> None:
    (fault,) = faults(*lines)
    assert fault.startswith("config.toml, line ")
    for part in words:
        assert part in fault


def test_a_wrong_key_leaves_the_others_of_its_line_and_of_the_action() -> None:
    assert held(build("default", {"new": ["ctrl+m", "alt+n"]}), "new") == (("alt+n",), ())
    assert held(build("default", {"new": ["ctrl+m"]}), "new") == (("ctrl+n",), ())
    keymap = build("default", {name: [] for name in BY_ID})
    assert {action.id for action in keymap.actions if action.keys} == set(KEPT)


@pytest.mark.parametrize(
    ("text", "name", "show"),
    [
        ("Ctrl+N", "ctrl+n", "ctrl+n"),
        ("shift+ctrl+left", "ctrl+shift+left", "ctrl+shift+left"),
        ("alt+<", "alt+less_than_sign", "alt+<"),
        ("alt++", "alt+plus", "alt++"),
        ("F12", "f12", "F12"),
        ("ctrl+/", "ctrl+slash", "ctrl+/"),
        ("?", "?", "?"),
        ("G", "G", "G"),
        ("pgdn", "pagedown", "pagedown"),
    ],
)
def test_keys_are_spelt_as_the_terminal_library_does(text: str, name: str, show: str) -> None:
    assert (spelt(text), shown(name)) == (name, show)


def test_names_of_signs() -> None:
    assert {letter: _character_to_key(letter) for letter in SIGNS} == SIGNS


async def test_keys_of_the_settings_work_in_the_chat(ride: Any, tmp_path: Path) -> None:
    from chat_support import answer

    folder = tmp_path / "home" / "config"
    folder.mkdir(parents=True)
    file = folder / "config.toml"
    file.write_text(
        '[keys]\npreset = "no-fkeys"\n[keys.bind]\nnew = ["alt+n"]\ntheme = ["f4", "z"]\npalette = ["alt+p"]\n'
    )
    async with ride(answer("One.\n"), size=(120, 40)) as chat:
        assert "alt+h help" in chat.status and "alt+m marks" in chat.status
        assert "alt+d next drafter" in chat.screen() and "alt+h help" in chat.screen()
        await chat.ask("one")
        dark = chat.app.current_theme.dark
        await chat.pilot.press("f4")
        assert chat.app.current_theme.dark is not dark
        await chat.pilot.press("alt+up")
        await chat.letter("z")
        assert chat.app.current_theme.dark is dark and not chat.chat.prompt.text
        await chat.pilot.press("escape", "ctrl+n", "f2")
        assert chat.session.chat.turns and chat.session.drafter.name == "auto"
        await chat.pilot.press("ctrl+p")
        assert chat.app.screen is chat.chat
        await chat.pilot.press("alt+d")
        assert chat.session.drafter.name == "none"
        await chat.pilot.press("alt+n")
        assert not chat.session.chat.turns
        await chat.pilot.press("alt+h")
        await chat.until(lambda: chat.app.screen is not chat.chat)
        await chat.pilot.press(*"theme")
        await chat.until(lambda: "F4, ctrl+o t" in chat.screen() and "/persona" not in chat.screen())
        await chat.pilot.press("alt+h")
        await chat.until(lambda: chat.app.screen is chat.chat)


async def test_leader_letters(ride: Any) -> None:
    from chat_support import answer

    async with ride(answer("One.\n"), answer("Two.\n"), size=(60, 20)) as chat:
        await chat.pilot.press("ctrl+o")
        await chat.until(lambda: "New chat" in chat.screen() and "Persona" in chat.screen())
        await chat.pilot.press("o")
        await chat.until(lambda: chat.session.drafter.name == "none")
        await chat.pilot.press("ctrl+o", "e")
        await chat.until(lambda: chat.chat.prompt.text == "/set ")
        for key in ("escape", "ctrl+o", "%"):
            await chat.pilot.press("ctrl+o", key)
            await chat.until(lambda: chat.app.screen is chat.chat)
        chat.chat.prompt.put("")
        await chat.ask("one")
        await chat.ask("two")
        replies = list(chat.chat.query(".reply"))
        await chat.pilot.press("alt+up", "alt+up", "alt+up")
        assert chat.chat.focused is replies[0]
        await chat.pilot.press("alt+up", "alt+down")
        assert chat.chat.focused is replies[0]
        await chat.pilot.press("alt+down", "alt+down", "alt+down")
        assert chat.chat.focused is chat.chat.prompt


@pytest.mark.parametrize(("size", "rows"), [((116, 40), 20), ((56, 18), 18), ((16, 3), 99)])
def test_letters_are_laid_out_in_columns(size: tuple[int, int], rows: int) -> None:
    actions = [action for action in ACTIONS if action.leader]
    lines = "".join(part for part, _ in laid_out(actions, size, {"new"})).splitlines()
    assert len(lines) <= rows and max(map(len, lines)) <= max(17, size[0])
    assert all(any(f"{action.leader} {action.title[:8]}" in line for line in lines) for action in actions)
    assert ("n ", "$text-muted") in laid_out(actions, size, {"new"})


async def test_emacs_keys_move_in_the_prompt(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from chat_support import answer

    monkeypatch.setenv("OUTRIDER_KEYS_PRESET", "emacs")
    async with ride(answer("One.\n")) as chat:
        await chat.pilot.press("a", "ctrl+j", "b", "ctrl+p", "1", "ctrl+n", "2")
        assert chat.chat.prompt.text == "a1\nb2"
        await chat.pilot.press("alt+x")
        await chat.until(lambda: chat.app.screen is not chat.chat)


async def test_the_probe_names_keys() -> None:
    app = Probe(build("vim", {}))
    async with app.run_test(size=(80, 20)) as pilot:
        await pilot.press("ctrl+n", "j", "w", "ctrl+m", "ctrl+t", "ctrl+x", "less_than_sign", "escape", "a", "escape")
        lines = str(app.query_one("#keys", Static).visual).splitlines()
        assert [line.split(None, 1) for line in lines] == [
            ["ctrl+n", "New chat"],
            ["j", "typing; on a focused reply: Message after"],
            ["w", "typing"],
            ["ctrl+m", REFUSED["ctrl+m"]],
            ["ctrl+t", "free; some terminals do not send it"],
            ["ctrl+x", "free"],
            ["<", "typing"],
            ["escape", "Stop the reply"],
            ["a", "typing"],
            ["escape", "Stop the reply"],
        ]
        unseen = str(app.query_one("#unseen", Static).visual)
        assert "F1" in unseen and "ctrl+p" in unseen and "ctrl+n" not in unseen and "escape" not in unseen
        assert not app._exit
        await pilot.press("escape")
        assert app._exit
