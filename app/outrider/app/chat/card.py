"""A card in the transcript: what happened, why, what to do next; with the focus, letters do something about it."""

from __future__ import annotations

from collections.abc import Mapping

from textual.content import Content
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.problem import Offer, Problem

_COPY, _LOG = Offer("c", "card_details", "copy the details"), Offer("l", "log", "log")
_RESTART = Offer("r", "restart", "start the engine again")
_HERE = "alt+up goes here: "


class Card(Static, can_focus=True):
    """Letters run actions of the registry."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(self._words(), markup=False, classes="card -offers" if problem.offers else "card")

    @property
    def offers(self) -> tuple[Offer, ...]:
        """What can be done here."""
        return self.problem.offers or (_COPY, _LOG, *((_RESTART,) if self.problem.restart else ()))

    @property
    def letters(self) -> Mapping[str, tuple[str, str]]:
        """What single letters do here: an action and its words."""
        return {offer.letter: (offer.action, offer.words) for offer in self.offers}

    @property
    def HELP_KEYS(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What it is called, and its keys, each with what it does."""
        name = "card" if self.problem.offers else "error card"
        return name, tuple((offer.letter, offer.words.capitalize()) for offer in self.offers)

    def _words(self) -> Content:
        problem = self.problem
        style = "bold $text-warning" if problem.offers else "bold $text-error"
        parts: list[str | tuple[str, str]] = [(harmless(problem.title), style)]
        if problem.text:
            parts += ["\n", harmless(problem.text)]
        for reason in problem.reasons:
            parts += ["\n· ", harmless(reason)]
        if problem.hint:
            parts += ["\n", (harmless(problem.hint), "$text-muted")]
        parts.append("\n")
        if problem.offers:
            parts.append((_HERE, "$text-muted"))
        for number, offer in enumerate(self.offers):
            parts += [
                (" · " if number else "", "$text-muted"),
                (offer.letter, "bold"),
                (f" {offer.words}", "$text-muted"),
            ]
        return Content.assemble(*parts)
