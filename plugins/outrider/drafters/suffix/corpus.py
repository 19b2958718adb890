"""A text of the user's own as datastore: a suffix array over its tokens, built once. Lookups cost a few binary searches.

Suffixes are sorted by their first `WINDOW` tokens only, which is all that a match and a draft can reach. Tokens are stored
as big-endian words, so that comparing bytes compares tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.core.base.bounded import TooLong, read_path
from outrider.core.base.errors import ModelError
from outrider.core.drafting import ModelInfo
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.text.tokenizer import Tokenizer

SHORTEST, LONGEST = 2, 16  # tokens of context that are looked for
WINDOW = 64  # tokens by which suffixes are sorted, a power of two; more than LONGEST and the deepest draft together
WORD = 4  # bytes of a token
BIGGEST = 32 << 20  # bytes of a corpus file

Cursor = tuple[int, int, int]  # first and last + 1 of the suffixes that begin so, and how many tokens they share


class Corpus:
    """Counts of what follows in fixed `tokens`."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.asarray(tokens, dtype=np.int64)
        self._data = self._tokens.astype(">u4").tobytes()
        self._order = _sorted(self._tokens)

    def matches(self, context: Sequence[int]) -> Iterator[tuple[int, Cursor]]:
        """Every suffix of `context` of SHORTEST to LONGEST tokens that occurs here, longest first."""
        matches: list[tuple[int, Cursor]] = []
        for length in range(SHORTEST, min(LONGEST, len(context)) + 1):
            first, last = self._range(context[-length:])
            if first == last:
                break
            matches.append((length, (first, last, length)))
        return reversed(matches)

    def follow(self, cursor: Cursor) -> list[tuple[int, int, Cursor]]:
        """What came behind a cursor: (token, how often, cursor after it)."""
        first, last, shared = cursor
        if shared >= WINDOW:
            return []
        places = self._order[first:last] + shared
        if places[0] == len(self._tokens):  # the text ends here; the end sorts before every token
            first, places = first + 1, places[1:]
        following = self._tokens[places]  # ascending
        bounds = np.flatnonzero(np.diff(following, prepend=-1, append=-1))
        tokens, edges = following[bounds[:-1]].tolist(), (first + bounds).tolist()
        return [
            (token, high - low, (low, high, shared + 1))
            for token, low, high in zip(tokens, edges, edges[1:], strict=False)
        ]

    def _range(self, pattern: Sequence[int]) -> tuple[int, int]:
        """Which of the sorted suffixes begin with `pattern`."""
        wanted, size = np.asarray(pattern, dtype=">u4").tobytes(), WORD * len(pattern)

        def start(place: int) -> bytes:
            return self._data[WORD * place : WORD * place + size]

        first = bisect_left(self._order, wanted, key=start)
        return first, bisect_right(self._order, wanted, lo=first, key=start)


def read_corpus(path: Path, model: ModelInfo) -> Corpus:
    """The text file at `path` in the tokens of `model`. Raises ModelError if it is no such file, empty, or too big."""
    hint = "Give a UTF-8 text file, for example notes or source code put together."
    try:
        text = read_path(path, BIGGEST).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except TooLong:
        raise ModelError(f"{path} is too long: a corpus may have {BIGGEST >> 20} MB.", "Give a part of it.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.", hint) from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{path} is no UTF-8 text.", hint) from error
    if not text.strip():
        raise ModelError(f"{path} is empty.", hint)
    checkpoint = open_checkpoint(Path(model.path))
    try:
        return Corpus(Tokenizer(checkpoint.text()).encode(text))
    finally:
        checkpoint.close()


def _sorted(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts of all suffixes, sorted by their first WINDOW tokens: ranks of 1, 2, 4, … tokens, each from the previous one."""
    count = len(tokens)
    _, rank = np.unique(tokens, return_inverse=True)
    rank = rank.astype(np.int64) + 1  # 0 is the end of the text
    reach = 1
    while True:
        behind = np.zeros(count, dtype=np.int64)
        behind[: max(0, count - reach)] = rank[reach:]
        both = rank * (count + 1) + behind
        order = np.argsort(both, kind="stable")
        reach *= 2
        if reach >= WINDOW:
            return order
        stepped = np.diff(both[order], prepend=-1) != 0
        rank = np.empty(count, dtype=np.int64)
        rank[order] = np.cumsum(stepped)
