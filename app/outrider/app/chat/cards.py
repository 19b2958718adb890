"""What is done with error cards: copy what is known of an error, start the engine again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.app.chat.card import Card
from outrider.app.chat.problem import Problem
from outrider.app.chat.session import BUSY, State

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

_LINES = 40  # of the engine's log that go into a report


class Cards:
    """Works on the focused card, else on the newest one."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    def none(self) -> str:
        """Why there is nothing to copy."""
        return "" if self._card() is not None else "there is no error"

    def _card(self) -> Card | None:
        focused = self._screen.focused
        cards = self._screen.query(Card)
        return focused if isinstance(focused, Card) else cards.last() if cards else None

    def copy(self) -> None:
        """Put everything about the error into the clipboard."""
        card = self._card()
        if card is not None:
            session = self._screen.session
            about = [f"model {session.options.model.model}, drafter {session.drafter.name}"]
            text = report(card.problem, about, session.client.last_words())
            self._screen.copying.copy(text, "the details of the error")

    def fresh(self) -> str:
        """Why the engine cannot be started again now."""
        state = self._screen.session.state
        if state in BUSY:
            return "a reply is running; stop it first"
        return "it is just starting" if state in (State.STARTING, State.LOADING) else ""

    def restart(self) -> None:
        """Start the engine again."""
        self._screen.stage.flash("Starting the engine again …")
        self._screen.stage.spawn(self._screen.session.restart())
        self._screen.prompt.focus()


def report(problem: Problem, about: Sequence[str], log: Sequence[str]) -> str:
    """An error as text for somebody who is to mend it."""
    import platform
    from importlib.metadata import version

    parts = [
        "\n".join(
            filter(None, (problem.title, problem.text, *(f"- {reason}" for reason in problem.reasons), problem.hint))
        ),
        "\n".join(
            (
                f"Outrider {version('outrider')}, Python {platform.python_version()}, {platform.platform()}",
                *about,
            )
        ),
        problem.details.strip(),
        "\n".join(("Engine log:", *log[-_LINES:])) if log else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"
