"""Which tokens of a conversation a drafter got with their hidden states. Loads no torch."""

from __future__ import annotations

from .contract import Committed


class KnownStates:
    """The tokens of a conversation whose states it got, as runs in ascending order."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int]] = []  # first token, and the one after the last

    def add(self, step: Committed) -> None:
        """Count the states of a step, which belong to the last of its tokens."""
        stop = step.start + step.tokens.shape[0]
        first = stop - (0 if step.hidden is None else step.hidden.shape[0])
        if first == stop:
            return
        if self._runs and self._runs[-1][1] == first:
            first = self._runs.pop()[0]
        self._runs.append((first, stop))

    def cut(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        self._runs = [(first, min(stop, length)) for first, stop in self._runs if first < length]

    def lacking(self, first: int, stop: int) -> int:
        """Tokens in a range whose state it did not get."""
        return stop - first - sum(max(0, min(b, stop) - max(a, first)) for a, b in self._runs)
