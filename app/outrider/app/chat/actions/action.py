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
    word in the status line. `on_message` letters work while a message has the focus, `leader` after the leader key,
    `empty_prompt` keys only on an empty prompt. A keymap replaces `keys` and `on_message`. `unavailable` says in a few words
    why it can do nothing now, empty if it can. `candidates` are what its argument may be, for completion.
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
    empty_prompt: tuple[str, ...] = ()
    leader: str = ""
    unavailable: Callable[[ChatScreen], str] = _always
    candidates: Callable[[ChatScreen], Offered] = _nothing

    @property
    def needs_argument(self) -> bool:
        """Whether it does nothing without one."""
        return self.argument.isupper()
