"""From committed tokens to emitted ones: EOS, stop strings and limits, checked per token in order, inside a block too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from .protocol import Finish, Kind, Token


class Pieces(Protocol):
    """The streaming detokeniser."""

    def push(self, token: int) -> str:
        """Text that this token completes."""
        ...

    def flush(self) -> str:
        """What is left."""
        ...


class Emitter:
    """Collects one answer. Once `finish` is set, nothing more is taken.

    Text that may turn out to be the beginning of a stop string is held until the token that decides it.
    """

    def __init__(
        self, pieces: Pieces, eos: Collection[int], stop: Sequence[str] = (), limit: int | None = None
    ) -> None:
        self._pieces = pieces
        self._eos = eos
        self._stop = tuple(stop)
        self._limit = limit
        self._text = ""  # all that was decoded
        self._released = 0  # characters of it that were given out
        self._starts: list[int] = []  # for each token, where its text begins
        self.ids: list[int] = []
        self.kinds: list[Kind] = []
        self.finish: Finish | None = None

    @property
    def text(self) -> str:
        """The answer so far as it may be shown."""
        return self._text[: self._released]

    def left(self, most: int) -> int:
        """How many more tokens may be emitted, at most `most`."""
        return most if self._limit is None else min(most, self._limit - len(self.ids))

    def push(self, token: int, kind: Kind) -> Token | None:
        """Take one committed token; returns it as emitted, or None when it ends the answer (EOS) or comes too late."""
        if self.finish is not None:
            return None
        if token in self._eos:
            self.close("stop")
            return None
        self._starts.append(len(self._text))
        self.ids.append(token)
        self.kinds.append(kind)
        self._text += self._pieces.push(token)
        cut = self._find_stop()
        if cut is not None:
            return self._cut(token, kind, cut)
        if self._limit is not None and len(self.ids) >= self._limit:
            self._text += self._pieces.flush()
            self.finish = "length"
            return Token(token, self._release(len(self._text)), kind)
        return Token(token, self._release(len(self._text) - self._held()), kind)

    def close(self, finish: Finish) -> str:
        """End the answer for another reason; returns the text that was still held."""
        if self.finish is None:
            self.finish = finish
            self._text += self._pieces.flush()
            cut = self._find_stop()
            return self._release(len(self._text) if cut is None else cut)
        return ""

    def _cut(self, token: int, kind: Kind, cut: int) -> Token | None:
        self.finish = "stop"
        self._text = self._text[:cut]
        keep = len(self._starts)
        while keep and self._starts[keep - 1] >= cut:
            keep -= 1
        whole = keep < len(self.ids)
        del self.ids[keep:], self.kinds[keep:], self._starts[keep:]
        text = self._release(cut)
        return None if whole and not text else Token(token, text, kind)

    def _release(self, end: int) -> str:
        text = self._text[self._released : end]
        self._released = max(self._released, end)
        return text

    def _find_stop(self) -> int | None:
        """Where the first stop string begins, looking only at text that was not given out."""
        found = [at for stop in self._stop if (at := self._text.find(stop, self._released)) >= 0]
        return min(found) if found else None

    def _held(self) -> int:
        """Characters at the end that begin a stop string."""
        tail = self._text[self._released :]
        most = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(most, len(tail)), 0, -1):
            if any(stop.startswith(tail[-size:]) for stop in self._stop):
                return size
        return 0
