"""One thing a user can do, as data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outrider.app.chat.input.candidate import Candidate

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


def _always(screen: ChatScreen) -> str:
    return ""


Offered = Sequence[Candidate] | Awaitable[Sequence[Candidate]]


def _nothing(screen: ChatScreen) -> Offered:
    return ()


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a user can do.

    `slash` is its command without the slash, `argument` what may follow it; an argument in capitals must. `footer` is its
    word in the status line, `letter_word` the one while a message has the focus. `on_message` letters work there, `leader`
    after the leader key, `empty_prompt` keys only on an empty prompt. `twice`: its letter acts at the second press.
    `changes`: something is another afterwards, so its letter waits longer for what could make it a word. A keymap replaces
    `keys` and `on_message`. `unavailable` says in a few words why it can do nothing now, empty if it can. `candidates` are
    what its argument may be, for completion.
    """

    id: str
    title: str
    help: str
    run: Callable[[ChatScreen, str], None]
    keys: tuple[str, ...] = ()
    slash: str = ""
    argument: str = ""
    footer: str = ""
    group: str = "Chat"
    on_message: tuple[str, ...] = ()
    letter_word: str = ""
    twice: bool = False
    changes: bool = False
    empty_prompt: tuple[str, ...] = ()
    leader: str = ""
    unavailable: Callable[[ChatScreen], str] = _always
    candidates: Callable[[ChatScreen], Offered] = _nothing

    @property
    def letters(self) -> tuple[str, ...]:
        """What is typed on a focused message, as it is told."""
        return tuple(letter * (1 + self.twice) for letter in self.on_message)

    @property
    def needs_argument(self) -> bool:
        """Whether it does nothing without one."""
        return self.argument.isupper()
