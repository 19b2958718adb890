"""An error in the transcript: what happened, why, what to do next; with the focus, letters do something about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.content import Content
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.problem import Problem

_COPY, _LOG, _RESTART = "card_details", "log", "restart"


class Card(Static, can_focus=True):
    """Letters run actions of the registry."""

    HELP_KEYS: ClassVar = (
        "error card",
        (("c", "Copy the details"), ("l", "Open the log"), ("r", "Start the engine again, where that helps")),
    )

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(self._words(), markup=False, classes="card")

    @property
    def letters(self) -> Mapping[str, tuple[str, str]]:
        """What single letters do here: an action and its words."""
        found = {"c": (_COPY, "copy the details"), "l": (_LOG, "log")}
        return found | ({"r": (_RESTART, "start the engine again")} if self.problem.restart else {})

    def _words(self) -> Content:
        problem = self.problem
        parts: list[str | tuple[str, str]] = [(harmless(problem.title), "bold $text-error")]
        if problem.text:
            parts += ["\n", harmless(problem.text)]
        for reason in problem.reasons:
            parts += ["\n· ", harmless(reason)]
        if problem.hint:
            parts += ["\n", (harmless(problem.hint), "$text-muted")]
        parts.append("\n")
        for number, (letter, (_, words)) in enumerate(self.letters.items()):
            parts += [(" · " if number else "", "$text-muted"), (letter, "bold"), (f" {words}", "$text-muted")]
        return Content.assemble(*parts)
