"""Whole screens in three sizes and three themes. After a change that is meant:

OUTRIDER_SNAPSHOTS=write python -m pytest tests/app/chat/test_snapshots.py
"""

from __future__ import annotations

from typing import Any

import pytest
from chat_support import Ride, answer
from race_support import drafted, lane, plain, race
from snapshots import same
from textual.command import CommandPalette

from outrider.app.chat.compare import keeping
from outrider.app.chat.compare.arena import RaceScreen
from outrider.app.chat.help import HelpScreen
from outrider.app.chat.settings_screen import SettingsScreen


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cursor blinks, and the curve of the last minute, which hangs on time, is flat."""
    monkeypatch.setattr("outrider.app.chat.stats.lines._SPARKS", "▁" * 8)
    monkeypatch.setattr("textual.widgets.Input._toggle_cursor", lambda field: None)


TEXT = """## Two ways

A **cache** keeps *keys* and `values`, so attention over what was read
need not be computed again:

1. the prompt, once
2. each new token

- [ ] nested
  - deeper, with a [link](https://example.org)

> It costs memory.

| layer | size | notes |
|-------|-----:|-------|
| one | 12 MB | the same for **all** |
| two | 9 MB | half of it is `fp16` |

```python
def grow(cache, key):
    return [*cache, key]  # one more
```
"""


async def still(chat: Ride) -> None:
    """Nothing flashes, everything is painted."""
    await chat.ready()
    chat.chat.status.unflash()
    await chat.pilot.pause(0)


async def shown(chat: Ride, kind: type) -> None:
    """A screen of this kind is open and painted."""
    await chat.until(lambda: isinstance(chat.app.screen, kind))
    await chat.pilot.pause(0.1)


async def test_dark(ride: Any) -> None:
    async with ride(answer(TEXT, "PAABAC"), private=True, size=(80, 24), speed=0) as chat:
        await still(chat)
        same("welcome-80x24-dark", chat)
        await chat.ask("How does a cache grow?")
        await still(chat)
        same("chat-80x24-dark", chat)
        await chat.pilot.press("ctrl+p")
        await shown(chat, CommandPalette)
        await chat.pilot.press(*"thi")
        await chat.until(lambda: "Th" in chat.screen())
        await chat.pilot.pause(0.3)
        same("palette-80x24-dark", chat)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
        await chat.pilot.press("f1")
        await shown(chat, HelpScreen)
        same("help-80x24-dark", chat)


async def test_light(ride: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_BUILDS", "/somewhere/that/does/not/matter")  # a path that the settings show
    async with ride(answer(TEXT, "PAABAC"), private=True, size=(120, 40), speed=0) as chat:
        await chat.type("/theme light")
        await chat.ask("How does a cache grow?")
        await chat.pilot.press("f5", "f5")
        await still(chat)
        same("stats-120x40-light", chat)
        await chat.pilot.press("f9")
        await shown(chat, SettingsScreen)
        same("settings-120x40-light", chat)
        await chat.pilot.press("escape")
        await chat.until(lambda: chat.app.screen is chat.chat)
        words = "one two three four five six seven eight nine ten eleven twelve"
        path = keeping.save(race(lane("none", plain(words)), lane("prompt_lookup", drafted(words), pause=0.12)))
        await chat.type(f"/compare {path.stem}")
        await shown(chat, RaceScreen)
        await chat.pilot.press("end")
        await chat.pilot.pause(0.2)
        same("verdict-120x40-light", chat)


async def test_ansi_colours_in_a_small_window(ride: Any) -> None:
    async with ride(answer(TEXT, "PAABAC"), private=True, size=(60, 20), speed=0) as chat:
        chat.app.theme = "ansi-dark"
        await chat.ask("How does a cache grow?")
        await still(chat)
        same("chat-60x20-ansi", chat)
        await chat.pilot.press("f9")
        await shown(chat, SettingsScreen)
        same("settings-60x20-ansi", chat)
