"""Completion while one types: commands, their arguments, paths after an @ sign. Knows the prompt, but no popup."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app.chat.input.candidate import Candidate, Entry, rank
from outrider.app.chat.input.paths import Tree
from outrider.app.chat.input.typing import Typing, typing

if TYPE_CHECKING:
    from outrider.app.chat.actions import Action
    from outrider.app.chat.screen import ChatScreen

PATHS = "attach"  # the action whose argument is a path


class Completing:
    """Finds what fits. What takes time is looked up beside the typing; `news` tells when it has come."""

    def __init__(self, screen: ChatScreen, news: Callable[[], None]) -> None:
        self._screen = screen
        self._news = news
        self._tree = Tree(Path.cwd())
        self._now: Typing | None = None
        self._paths: tuple[str | None, list[Entry]] = None, []  # a query and what was found for it
        self._looking = False
        self._offered: tuple[str, Sequence[Candidate]] = "", ()  # a command and its arguments

    def typed(self) -> Typing | None:
        """What is being typed."""
        prompt = self._screen.prompt
        row, column = prompt.cursor_location
        lines = prompt.document
        self._now = typing(lines.get_line(row), column, alone=lines.line_count == 1)
        if self._now is None or self._now.command != self._offered[0]:
            self._offered = "", ()
        if self._now is None:
            self._paths = None, []
        return self._now

    def entries(self) -> list[Entry] | None:
        """What fits it, best first; None while that is looked up."""
        now = self._now
        if now is None:
            return []
        if now.kind == "command":
            return rank(now.query, self._commands())
        if now.kind == "path":
            return self._found(now.query)
        action = self._action(now.command)
        if action is None:
            return []
        if action.id == PATHS:
            return self._found(now.query)
        return rank(now.query, self._arguments(now.command))

    def _commands(self) -> list[Candidate]:
        found = []
        for action in self._screen.keymap.actions:
            if action.slash:
                why_not = action.unavailable(self._screen)
                told = {"title": action.title, "hint": action.argument, "why_not": why_not, "also": action.title}
                found.append(Candidate(action.slash, more=bool(action.argument), **told))
        return sorted(found, key=lambda one: one.text)

    def _action(self, command: str) -> Action | None:
        return next((one for one in self._screen.keymap.actions if one.slash == command), None)

    def _arguments(self, command: str) -> Sequence[Candidate]:
        if self._offered[0] != command:
            action = self._action(command)
            assert action is not None
            found = action.candidates(self._screen)
            if inspect.isawaitable(found):
                self._screen.run_worker(self._ask(command, found))
                found = ()
            self._offered = command, found
        return self._offered[1]

    async def _ask(self, command: str, question: Awaitable[Sequence[Candidate]]) -> None:
        found = await question
        if self._offered[0] == command:
            self._offered = command, found
            self._news()

    def _found(self, query: str) -> list[Entry] | None:
        if self._paths[0] == query:
            return self._paths[1]
        if not self._looking:
            self._looking = True
            self._screen.run_worker(self._look())
        return None

    async def _look(self) -> None:
        """Look up what is typed until it is what was looked up."""
        wanted = None
        while (now := self._now) is not None and now.query != wanted:
            wanted = now.query
            self._paths = wanted, await asyncio.to_thread(self._tree.candidates, wanted)
        self._looking = False
        self._news()

    # ------------------------------------------------------------------------------------------------ taking one

    def complete(self, entry: Entry) -> str:
        """Put it into the prompt. Returns the path of a file that was named, empty for anything else."""
        now, prompt = self._now, self._screen.prompt
        assert now is not None
        row = prompt.cursor_location[0]
        text = entry.candidate.text
        if now.kind == "command":
            text = f"/{text}" + (" " if entry.candidate.more else "")
        elif now.kind == "path":
            if not entry.candidate.more:
                self._name(now, row, text)
                return text
            text = f'@"{text}' if " " in text else f"@{text}"
        elif entry.candidate.more and not text.endswith("/"):
            text += " "
        prompt.replace(text, (row, now.start), (row, now.end), maintain_selection_offset=False)
        prompt.move_cursor((row, now.start + len(text)))
        return ""

    def _name(self, now: Typing, row: int, text: str) -> None:
        """A file becomes an attachment; within a sentence its name stays."""
        prompt = self._screen.prompt
        before = prompt.document.get_line(row)[: now.start]
        text = f"{text} " if before.strip() else ""
        prompt.replace(text, (row, now.start), (row, now.end), maintain_selection_offset=False)
        prompt.move_cursor((row, now.start + len(text)))
