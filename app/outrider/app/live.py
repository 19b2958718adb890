"""An answer in a terminal while it comes: what has settled is rendered and stays, the rest is drawn anew with every pass."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic
from typing import TextIO

from outrider.app.chat.blocks import Piece, Scanner
from outrider.app.chat.clean import harmless
from outrider.app.markdown import Line, Lines, plain_lines, shown
from outrider.core.base import protocol

_PAUSE = 0.03  # seconds between two drawings of the tail


class LiveWriter:
    """Takes what `render.AnswerWriter` takes. `mark` is the SGR code of accepted drafts, empty for none.

    Moves the cursor within the lines of the tail alone, so that everything above stays in the scrollback.
    """

    def __init__(self, stream: TextIO, *, mark: str, colour: bool) -> None:
        self._stream, self._mark = stream, mark
        self._scanner, self._lines = Scanner(), Lines(colour=colour)
        self._kinds = ""
        self._drawn = 0  # lines of the tail on the screen
        self._drawn_at = -_PAUSE
        self._pieces: list[Piece] = []  # settled, not written yet

    def tokens(self, tokens: Sequence[protocol.Token]) -> None:
        """The tokens of one pass."""
        self._take([(token.text, token.kind) for token in tokens])
        if self._pieces or monotonic() - self._drawn_at >= _PAUSE:
            self._draw()

    def rest(self, whole: str) -> None:
        """What the engine held back to the end."""
        self._take([(whole[len(self._kinds) :], "P")])

    def end(self, *, blank: bool = False) -> None:
        """Everything has come."""
        self._pieces += self._scanner.finish()
        self._draw()
        if blank and self._kinds:
            self._stream.write("\n")
            self._stream.flush()

    def _take(self, texts: Sequence[tuple[str, str]]) -> None:
        for text, kind in texts:
            self._kinds += kind * len(text)
        self._pieces += self._scanner.feed(harmless("".join(text for text, _ in texts)))

    def _code(self, place: int) -> str:
        return self._mark if self._kinds[place : place + 1] == "A" else ""

    def _draw(self) -> None:
        width, height = self._size()
        settled = [line for piece in self._pieces for line in self._lines.of(piece, width, self._code)]
        self._pieces = []
        tail = self._tail(width)[-max(1, height - 1) :]
        parts = [self._erased(), *(f"{shown(line)}\n" for line in settled), "\n".join(map(shown, tail))]
        self._stream.write("".join(parts))
        self._stream.flush()
        self._drawn, self._drawn_at = len(tail), monotonic()

    def _erased(self) -> str:
        if not self._drawn:
            return ""
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        return f"\r{up}\x1b[J"

    def _tail(self, width: int) -> list[Line]:
        tail = self._scanner.tail
        lead = len(tail) - len(tail.lstrip("\n"))
        if not tail.strip():
            return []
        space: list[Line] = [[]] if lead and self._scanner.settled else []
        return [*space, *plain_lines(tail[lead:].rstrip("\n"), self._scanner.settled + lead, width, self._code)]

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 79, 24
        return max(1, (size.columns or 80) - 1), size.lines or 24
