"""From committed tokens to emitted ones: EOS, stop strings and limits, checked per token in order, inside a block too.

Where the model thinks, its thoughts go beside the answer; stop strings end the answer alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from outrider.core.base.protocol import Finish, Kind, Limit, Token
from outrider.core.text.thinking import Splitter


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
        self,
        pieces: Pieces,
        eos: Collection[int],
        stop: Sequence[str] = (),
        limit: int | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        self._pieces = pieces
        self._splitter = splitter
        self._eos = eos
        self._stop = tuple(stop)
        self._limit = limit
        self._thoughts: list[str] = []
        self._text = ""  # all of the answer that was decoded
        self._released = 0  # characters of it that were given out
        self._recalled = 0  # characters of it, and of the thought, from before this answer went on
        self._recalled_thought = 0
        self._starts: list[int] = []  # for each token, where its text begins; -1 for those of a thought
        self.ids: list[int] = []
        self.kinds: list[Kind] = []
        self.finish: Finish | None = None
        self.limit: Limit | None = None  # which one, where the finish is `length`

    @property
    def text(self) -> str:
        """The answer so far as it may be shown, from where it went on."""
        return self._text[self._recalled : self._released]

    @property
    def thinking(self) -> str:
        """What the model thought so far, from where it went on."""
        return "".join(self._thoughts)[self._recalled_thought :]

    @property
    def recalled(self) -> tuple[int, int]:
        """Characters of answer and thought that were recalled."""
        return self._recalled, self._recalled_thought

    def recall(self, ids: Sequence[int]) -> None:
        """Tokens that the answer had before it goes on; what detokeniser and splitter hold of them comes with the next text."""
        for token in ids:
            self._take(token)
        self._recalled = self._released = len(self._text)
        self._recalled_thought = len("".join(self._thoughts))

    def texts(self) -> tuple[str, str]:
        """All of answer and thought with what was held; nothing may come after it."""
        self._flush()
        return self._text, "".join(self._thoughts)

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
        start = len(self._text)
        self.ids.append(token)
        self.kinds.append(kind)
        thought, inside = self._take(token)
        self._starts.append(-1 if inside else start)
        cut = self._find_stop() if self._stop else None
        if cut is not None:
            return self._cut(token, kind, cut)
        if self._limit is not None and len(self.ids) >= self._limit:
            thought += self._flush()
            self.finish, self.limit = "length", "tokens"
        elif thought:  # a token shows text of one side; the other's comes with the next one
            return Token(token, thought, kind, thinking=True)
        end = len(self._text) - (self._held() if self._stop and self.finish is None else 0)
        text, self._released = self._text[self._released : end], end
        return Token(token, thought or text, kind, thinking=inside)

    def close(self, finish: Finish) -> str:
        """End the answer for another reason, `length` being a full context; returns the text that was still held."""
        if self.finish is None:
            self.finish, self.limit = finish, "context" if finish == "length" else None
            self._flush()
            cut = self._find_stop()
            return self._release(len(self._text) if cut is None else cut)
        return ""

    def _take(self, token: int) -> tuple[str, bool]:
        """Add a token's text to its side; returns what of it is thought, and whether the token belongs to a thought."""
        text = self._pieces.push(token)
        if self._splitter is None:
            self._text += text
            return "", False
        thought, answer = self._splitter.push(token, text)
        self._add(thought, answer)
        return thought, bool(thought) or self._splitter.inside

    def _flush(self) -> str:
        """Add what detokeniser and splitter still hold; returns what of it is thought."""
        text = self._pieces.flush()
        if self._splitter is None:
            self._text += text
            return ""
        thought, answer = self._splitter.end(text)
        self._add(thought, answer)
        return thought

    def _add(self, thought: str, answer: str) -> None:
        if thought:
            self._thoughts.append(thought)
        self._text += answer

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
        places = [at for stop in self._stop if (at := self._text.find(stop, self._released)) >= 0]
        return min(places) if places else None

    def _held(self) -> int:
        """Characters at the end that begin a stop string."""
        tail = self._text[self._released :]
        most = max((len(stop) for stop in self._stop), default=1) - 1
        for size in range(min(most, len(tail)), 0, -1):
            if any(stop.startswith(tail[-size:]) for stop in self._stop):
                return size
        return 0
