"""What the arguments of commands may be, for completion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from outrider.app import names
from outrider.app.chat.input.candidate import Candidate
from outrider.app.chat.marks import Marks
from outrider.app.chat.sampling import NAMES
from outrider.app.config import FIELDS
from outrider.app.store.problems import StoreError
from outrider.app.store.records import short
from outrider.app.store.writing import FORMATS

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

_CHATS = 200
_FILES = {"md": "Markdown with figures", "json": "all of it", "html": "a page with marks", "svg": "a picture"}


def _now(words: Iterable[str], now: str) -> list[Candidate]:
    return [Candidate(name, "now" if name == now else "") for name in words]


def drafters(screen: ChatScreen) -> Sequence[Candidate]:
    """All drafters, those that cannot ride dimmed with the reason."""
    session = screen.session
    rows = {row.name: row for row in session.loaded.drafters} if session.loaded else {}
    told = {"auto": "whichever is fastest here", "none": "one token a pass"}
    found = [
        Candidate(name, told.get(name) or (rows[name].reason if name in rows else "")) for name in session.drafters()
    ]
    known = {one.text for one in found}
    return [
        *found,
        *(Candidate(name, why_not=row.reason or "not usable") for name, row in rows.items() if name not in known),
    ]


def themes(screen: ChatScreen) -> Sequence[Candidate]:
    """All themes."""
    return _now(FIELDS["look.theme"].choices, screen.settings.get("look.theme"))


def marks(screen: ChatScreen) -> Sequence[Candidate]:
    """All modes of marks."""
    return [Candidate(mode.value) for mode in Marks]


def personas(screen: ChatScreen) -> Sequence[Candidate]:
    """Those of the settings."""
    return _now((*screen.settings.file.personas, "none"), screen.settings.persona or "none")


def thinking(screen: ChatScreen) -> Sequence[Candidate]:
    """On, off, or as the model likes."""
    words = {True: "on", False: "off", None: "auto"}
    return _now(words.values(), words[screen.session.think])


def sampling(screen: ChatScreen) -> Sequence[Candidate]:
    """Every option with what holds now."""
    found = []
    for name, field in NAMES.items():
        value = getattr(screen.session.sampling, field)
        told = FIELDS[f"sampling.{field}"].told
        found.append(Candidate(name, told, "" if value is None else f"{value:g}", more=True))
    return found


def formats(screen: ChatScreen) -> Sequence[Candidate]:
    """What a chat can be written as."""
    return [Candidate(name, _FILES.get(name, "")) for name in FORMATS]


def settings(screen: ChatScreen) -> Sequence[Candidate]:
    """The names of all settings."""
    return [Candidate(path, field.told) for path, field in FIELDS.items()]


def words(*known: str) -> Sequence[Candidate]:
    """Fixed words."""
    return [Candidate(name) for name in known]


async def chats(screen: ChatScreen) -> Sequence[Candidate]:
    """The chats so far, by title."""
    try:
        rows = await screen.session.keeper.ask(lambda store: store.chats(_CHATS))
    except StoreError:
        return []
    return [Candidate(short(row.id), row.title, also=row.title) for row in rows]


async def models(screen: ChatScreen) -> Sequence[Candidate]:
    """The catalogue, and what else lies in the library."""
    now = screen.session.options.model.model
    return _now(await asyncio.to_thread(names.models), now)
