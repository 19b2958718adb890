"""What was searched for in a chat: every place of it in what is seen, told as a place of what was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.app.chat.blocks import Scanner, coalesce
from outrider.app.chat.clean import harmless
from outrider.app.chat.talk import Strand, Turn

Part = Literal["said", "thought", "answer"]
_MARKUP = re.compile(r"[*_~`\\\[\]]")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """One place: of which turn, in what the user said, the model thought or answered, and there from where to where."""

    turn: Turn
    part: Part
    start: int
    end: int


def pattern(words: str) -> re.Pattern[str] | None:
    """What finds `words` whatever their case, and wherever lines break between them; None for nothing."""
    parts = words.split()
    return re.compile(r"\s+".join(map(re.escape, parts)), re.IGNORECASE) if parts else None


def plain(text: str) -> str:
    """A text or words without markup, case and runs of spaces: what is not found in it need not be rendered."""
    return _SPACES.sub(" ", _MARKUP.sub("", text)).casefold()


class Finder:
    """Searches turns one by one. What was rendered for a search is kept for the next one."""

    def __init__(self) -> None:
        self._rendered: dict[Strand, tuple[int, list[tuple[str, list[int] | None]]]] = {}

    def hits(self, turn: Turn, words: str) -> Iterator[Hit]:
        """All places in one turn, from its beginning to its end."""
        wanted = pattern(words)
        if wanted is None or turn.failed:
            return
        for match in wanted.finditer(harmless(turn.text)):
            yield Hit(turn, "said", *match.span())
        if turn.reply is None:
            return
        strands: Sequence[tuple[Part, Strand]] = (("thought", turn.reply.thought), ("answer", turn.reply.answer))
        for part, strand in strands:
            for start, end in self._in_strand(strand, wanted, plain(words)):
                yield Hit(turn, part, start, end)

    def _in_strand(self, strand: Strand, wanted: re.Pattern[str], words: str) -> Iterator[tuple[int, int]]:
        text = harmless(strand.text)
        if "&" not in text and not all(word in plain(text) for word in words.split()):
            return
        for shown, offsets in self._texts(strand, text):
            if offsets is None:
                continue
            for match in wanted.finditer(shown):
                places = [place for place in offsets[match.start() : match.end()] if place >= 0]
                if places:
                    yield places[0], places[-1] + 1

    def _texts(self, strand: Strand, text: str) -> list[tuple[str, list[int] | None]]:
        kept = self._rendered.get(strand)
        if kept is None or kept[0] != len(text):
            from outrider.app.chat.places import texts  # Markdown is loaded after the first paint

            scanner = Scanner()
            pieces = coalesce(scanner.feed(text) + scanner.finish())
            kept = len(text), [found for piece in pieces if piece.shown for found in texts(piece)]
            self._rendered[strand] = kept
        return kept[1]


def nearest_from(hits: Sequence[Hit], turns: Sequence[Turn], seen: Turn | None) -> int:
    """Which hit to look at first: the first one in or below the turn that is seen, else the last one."""
    order = {turn: place for place, turn in enumerate(turns)}
    least = order.get(seen, 0) if seen is not None else 0
    found = (place for place, hit in enumerate(hits) if order.get(hit.turn, -1) >= least)
    return next(found, max(0, len(hits) - 1))
