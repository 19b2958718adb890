"""How right the map from rendered Markdown to its source is, found out without it.

Every letter of a document that can be changed is replaced by one that occurs nowhere else, such that the document keeps
its shape. What is rendered of that then says by itself where each letter came from, and the map has to say the same. All
other signs have to stand where the map says, in order. At last the map of the document itself has to be that of its
twin: the same place for every character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from outrider.app.chat.blocks import Piece, Scanner, coalesce
from outrider.app.chat.clean import harmless
from outrider.app.chat.inline import PICTURE
from outrider.app.chat.mapping import parser
from outrider.app.chat.places import texts

_FIRST, _LAST = 0x4E00, 0x9FFF  # letters without case, of one cell class
_KEEP = re.compile(
    r"&#?\w+;|<[^>\n]*>|\]\([^)\n]*\)?|\]\[[^\]\n]*\]|^\s{0,3}\[[^\]\n]+\]:.*$|\[[^\]\n]*\](?!\()|^\s*(?:```|~~~).*$",
    re.MULTILINE,
)


@dataclass
class Score:
    """Characters that were rendered, those whose place was told, and those whose place was another."""

    shown: int = 0
    mapped: int = 0
    wrong: int = 0
    replaced: int = 0  # letters of which the place is known for sure
    lost: list[str] = field(default_factory=list)  # texts that were given up

    def __iadd__(self, other: Score) -> Score:
        self.shown += other.shown
        self.mapped += other.mapped
        self.wrong += other.wrong
        self.replaced += other.replaced
        self.lost += other.lost
        return self


def pieces_of(text: str) -> list[Piece]:
    """As the chat settles a reply that has come whole."""
    scanner = Scanner()
    return [piece for piece in coalesce(scanner.feed(text) + scanner.finish()) if piece.shown]


def score(text: str) -> Score:
    """Check the map of one document of less than 20,000 letters, or of its beginning."""
    text = harmless(text)[: _LAST - _FIRST]
    twin = twin_of(text)
    found = Score(replaced=sum(one != other for one, other in zip(text, twin, strict=True)))
    ours, theirs = ([shown for piece in pieces_of(one) for shown in texts(piece)] for one in (text, twin))
    assert len(ours) == len(theirs)
    for (shown, places), (other, others) in zip(ours, theirs, strict=True):
        found.shown += len(shown)
        if places is None:
            found.lost.append(shown)
            continue
        assert len(places) == len(shown) and len(other) == len(shown) and others is not None
        if shown and all(place < 0 for place in places):  # the header of a table, repeated over its next part
            found.shown -= len(shown)
            continue
        drawn = len(PICTURE) * shown.count(PICTURE)  # stands nowhere in the source
        found.shown -= drawn
        found.mapped += sum(place >= 0 for place in places)
        found.wrong += max(0, sum(place < 0 for place in places) - drawn)
        found.wrong += _wrong(text, twin, other, others) + sum(a != b for a, b in zip(places, others, strict=True))
    return found


def _wrong(text: str, twin: str, shown: str, places: list[int]) -> int:
    """Characters of the twin that stand elsewhere than told."""
    wrong, before = 0, -1
    own = {sign: place for place, (sign, old) in enumerate(zip(twin, text, strict=True)) if sign != old}
    for sign, place in zip(shown, places, strict=True):
        if place < 0:
            continue
        told = twin[place]
        alike = told == sign or told == "&" or (sign.isspace() and told.isspace())
        wrong += place < before or (own[sign] != place if sign in own else not alike)
        before = place
    return wrong


def twin_of(text: str) -> str:
    """The document with letters of its own at all places where that leaves its shape alone."""
    kept = [False] * len(text)
    for match in _KEEP.finditer(text):
        kept[match.start() : match.end()] = [True] * (match.end() - match.start())
    used = {sign for sign in text if _FIRST <= ord(sign) <= _LAST}
    fresh = (chr(code) for code in range(_FIRST, _LAST + 1) if chr(code) not in used)
    free = lambda sign: sign.isalpha() and sign.isascii()  # noqa: E731
    changed = [next(fresh) if free(sign) and not keep else sign for sign, keep in zip(text, kept, strict=True)]
    made = list(text)
    shape = _shape(text)
    for start, end in _words(text):  # one after the other only where all at once would not do
        whole = "".join(changed)
        if _shape(whole) == shape and _ok(whole, text):
            return whole
        part = made[:start] + changed[start:end] + made[end:]
        if _shape("".join(part)) == shape:
            made = part
        changed = made[:end] + changed[end:]
    return "".join(made)


def _ok(whole: str, text: str) -> bool:
    return [len(shown) for piece in pieces_of(whole) for shown, _ in texts(piece)] == [
        len(shown) for piece in pieces_of(text) for shown, _ in texts(piece)
    ]


def _words(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"[A-Za-z]+", text)] + [(len(text), len(text))]


def _shape(text: str) -> list[str]:
    """The tokens of a document, without their texts."""
    found: list[str] = []
    for piece in pieces_of(text):
        found.append(f"{piece.start} {piece.form}")
        for token in parser().parse(piece.source):
            found.append(f"{token.type} {token.map}")
            found += [f"  {child.type} {len(child.content)}" for child in token.children or ()]
    return found
