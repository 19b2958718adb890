"""Who is met by the first screen of the chat, and what is measured of its paints."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("words", "there", "variable", "met"),
    [
        ((), "", "", True),
        (("--temperature", "0"), "", "", True),
        (("--model", "starter"), "", "", False),
        (("--private",), "", "", False),
        ((), "config/config.toml", "", False),
        ((), "data/chats.db", "", False),
        ((), "", "mine.gguf", False),
    ],
)
def test_only_who_has_nothing_yet_is_greeted(outrider, home, monkeypatch, words, there, variable, met):
    from outrider.app import chat, render

    seen = []
    monkeypatch.setattr(render, "is_terminal", lambda _: True)
    monkeypatch.setattr(chat, "run_chat", lambda options: seen.append(options) or 0)
    if there:
        (home.path / there).parent.mkdir(parents=True)
        (home.path / there).touch()
    if variable:
        monkeypatch.setenv("OUTRIDER_ENGINE_MODEL", variable)
    assert outrider(*words, "--profile-ui", "cost.json").code == 0
    assert seen[0].welcome is met and seen[0].profile_ui == "cost.json"
