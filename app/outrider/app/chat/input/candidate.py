"""What a completion offers, and which of it fits what was typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_STARTS = re.compile(r"(?<![^\W_])\w|(?<=[a-z])[A-Z]|(?<=_)\w")
_EXACT, _PREFIX, _WORD, _INSIDE, _LOOSE = 1000, 800, 600, 400, 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to go on. `text` takes the place of what was typed; `title` and `hint` stand beside it.

    `why_not` says why it can do nothing now. `more`: something follows, so it is not sent yet. `also` is searched too.
    """

    text: str
    title: str = ""
    hint: str = ""
    why_not: str = ""
    more: bool = False
    also: str = ""


@dataclass(frozen=True, slots=True)
class Entry:
    """A candidate that fits, with the places of the letters that were typed. `sure`: enter may take it unasked."""

    candidate: Candidate
    places: tuple[int, ...] = ()
    sure: bool = True


def match(query: str, text: str) -> tuple[int, tuple[int, ...]] | None:
    """How well `text` fits and where its letters are; None if it has not all of them in order."""
    wanted, have = query.casefold(), text.casefold()
    if len(have) != len(text):  # a letter that is two in small
        have = text.lower() if len(text.lower()) == len(text) else text
    if not wanted:
        return 0, ()
    short = -min(len(text), 99)
    at = have.find(wanted)
    if at >= 0:
        starts = {found.start() for found in _STARTS.finditer(text)}
        word = next((place for place in _all_places(have, wanted) if place in starts), None)
        place = at if word is None else word
        level = _EXACT if have == wanted else _PREFIX if place == 0 else _INSIDE if word is None else _WORD
        return level + short, tuple(range(place, place + len(wanted)))
    places = _loose(wanted, have, text)
    if places is None:
        return None
    return _LOOSE - (places[-1] - places[0] - len(wanted)) + short, places


def _all_places(have: str, wanted: str) -> Iterable[int]:
    at = have.find(wanted)
    while at >= 0:
        yield at
        at = have.find(wanted, at + 1)


def _loose(wanted: str, have: str, text: str) -> tuple[int, ...] | None:
    """Letters in order, each at the start of a word where one is left."""
    starts = [found.start() for found in _STARTS.finditer(text)]
    initials = iter(starts)
    at_starts = [next((place for place in initials if have[place] == letter), -1) for letter in wanted]
    if -1 not in at_starts:
        return tuple(at_starts)
    places, at = [], -1
    for letter in wanted:
        at = have.find(letter, at + 1)
        if at < 0:
            return None
        places.append(at)
    return tuple(places)


def rank(query: str, candidates: Iterable[Candidate], limit: int = 200) -> list[Entry]:
    """Those that fit, best first; what cannot be done now comes last. Without a query all, as they come."""
    scored = []
    for order, candidate in enumerate(candidates):
        found = match(query, candidate.text)
        other = match(query, candidate.also) if candidate.also and query else None
        if found is None and (other is None or other[0] < _INSIDE - 99):
            continue
        score, places = found if found is not None else (_INSIDE - 50, ())
        sure = found is not None and score >= _WORD - 99
        scored.append((bool(candidate.why_not), -score, order, Entry(candidate, places, sure)))
    scored.sort(key=lambda one: one[:3])
    best = max((-one[1] for one in scored), default=0)
    return [entry for _, score, _, entry in scored if -score >= least(best)][:limit]


def least(best: int) -> int:
    """The score below which nothing is offered beside the best one: single letters here and there fit almost anything."""
    return _INSIDE - 99 if best >= _WORD - 99 else -_EXACT


class Menu:
    """Entries of which one is chosen."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)
        self.at = 0
        self.moved = False  # by the user

    @property
    def chosen(self) -> Entry | None:
        """The one that is marked."""
        return self.entries[self.at] if self.at < len(self.entries) else None

    def show(self, entries: Sequence[Entry]) -> None:
        """Other entries; one that the user chose stays chosen while it is there."""
        before = self.chosen.candidate if self.moved and self.chosen else None
        self.entries = list(entries)
        places = [place for place, one in enumerate(entries) if one.candidate == before]
        self.at, self.moved = (places[0], True) if places else (0, False)

    def move(self, by: int) -> None:
        """Mark another; behind the last comes the first."""
        if self.entries:
            self.at, self.moved = (self.at + by) % len(self.entries), True

    def window(self, height: int) -> range:
        """Which entries are seen in so many lines."""
        first = max(0, min(self.at - height // 2, len(self.entries) - height))
        return range(first, min(len(self.entries), first + height))
