"""What heads read of a conversation: the newest state alone, or one that knows the states before it (`prefix`).

Letters: `d` width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from outrider.core.drafting import Step


class Memory(Protocol):
    """Follows one conversation by its states."""

    def clear(self) -> None:
        """Forget the conversation."""
        ...

    def hear(self, step: Step) -> None:
        """Take up the states of `step`, as far as they are known."""
        ...

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are still true."""
        ...

    def fork(self) -> Memory:
        """A copy that goes its own way."""
        ...

    def state(self, length: int) -> Tensor | None:
        """What the heads read behind `length` tokens, [1, d]; None where the state before the last token is not known."""
        ...


class Newest:
    """The state before the newest token; `read` is what becomes of it on the way to the heads."""

    def __init__(self, read: Callable[[Tensor], Tensor]) -> None:
        self._read = read
        self.clear()

    def clear(self) -> None:
        """As `Memory`."""
        self._state: Tensor | None = None  # [1, d]

    def hear(self, step: Step) -> None:
        """As `Memory`."""
        known = step.hidden is not None and step.hidden.shape[0] > 0
        self._state = step.hidden[-1] if known and step.hidden is not None else None

    def rewind(self, length: int) -> None:
        """The state belonged to what was cut."""
        self.clear()

    def fork(self) -> Newest:
        """As `Memory`."""
        copy = Newest(self._read)
        copy._state = self._state
        return copy

    def state(self, length: int) -> Tensor | None:
        """As `Memory`."""
        return None if self._state is None else self._read(self._state)
