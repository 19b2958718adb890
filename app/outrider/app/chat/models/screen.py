"""All models over the chat: local ones and the catalogue in one list, with downloads and what one needs to choose."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.content import Content
from textual.widgets import Input, OptionList, Static

from outrider.app.chat.browser import Browser, Part, columns
from outrider.app.chat.chats import at_end
from outrider.app.chat.confirm import ConfirmScreen
from outrider.app.chat.models.details import details
from outrider.app.chat.models.pairs import Pair, promised
from outrider.app.chat.models.pulls import Way
from outrider.app.chat.models.rows import HEAD, RIGHT, SPARE, cells, listed, next_order
from outrider.app.render import printable, size
from outrider.core.base.protocol import ModelRow

if TYPE_CHECKING:
    from outrider.app.chat.models.room import Models

_REDRAW = 0.25  # seconds between two looks at the downloads
_STILL = 0.3  # seconds that a line is highlighted before its drafters are looked for
_QUEUE = 4  # downloads that are shown


class ModelsScreen(Browser):
    """Works on the room `models` of the chat screen."""

    BINDINGS: ClassVar = [
        Binding("tab", "order(1)", "Sort", show=False, priority=True),
        Binding("shift+tab", "order(-1)", "Sort back", show=False, priority=True),
        Binding("ctrl+g", "pull", "Pull", show=False, priority=True),
        Binding("ctrl+x", "stop", "Stop the download", show=False, priority=True),
        Binding("ctrl+r", "look", "Look again", show=False, priority=True),
        Binding("delete", "delete(True)", "Delete", show=False, priority=True),
        Binding("ctrl+d", "delete", "Delete", show=False, priority=True),
    ]
    WORDS = "A name, a family, a drafter, here, fits …"
    KEYS = (
        "enter chats with it · ctrl+g pulls it, again: its drafter · ctrl+x stops a download · delete deletes · tab sorts · "
        "ctrl+r looks again · esc closes"
    )

    def __init__(self, room: Models) -> None:
        super().__init__()
        self._room = room
        self._rows: list[ModelRow] = []
        self._shown: list[ModelRow] = []
        self._order = "here first"
        self._pairs: dict[str, list[Pair]] = {}
        self._ended = 0  # downloads at the last look

    def on_mount(self) -> None:
        """What the engine knows takes a moment."""
        self.set_interval(_REDRAW, self._follow)
        self._take(self._room.known())
        if not self._rows:
            self.query_one(".head", Static).update("Looking for models …")
            self.tell([("Looking …", "$text-muted")])
        self.action_look()

    def action_look(self) -> None:
        """Ask the engine again."""
        self._pairs.clear()
        self.run_worker(self._look(), exclusive=True, group="look")

    async def _look(self) -> None:
        if not self._rows:  # at least what is here, while the rest is looked for
            self._take(await self._room.look(here=True))
            self.query_one(".head", Static).update("Looking for models that are not here …")
        self._take(await self._room.look())

    def _take(self, rows: list[ModelRow]) -> None:
        self._rows = rows
        now = self._chosen() or next(filter(self._room.uses, rows), None)
        self._fill(now.name if now else "")

    # ------------------------------------------------------------------------------------------------ the list

    def _fill(self, name: str = "") -> None:
        self._shown = listed(self._rows, self.words, self._order, self._room.memory)
        place = next((n for n, row in enumerate(self._shown) if row.name == name), 0)
        head, lines = self._lines()
        if lines or self._rows:
            self.show(head, lines, place if lines else None)
        if not lines and self._rows:
            self.tell([("No model has all of these words.", "$text-muted")])

    def _lines(self) -> tuple[str, list[Content]]:
        pulls, memory = self._room.pulls, self._room.memory
        width = max(40, self.query_one(OptionList).size.width - 2)
        rows = [cells(row, memory, pulls.of(row.name), used=self._used(row)) for row in self._shown]
        head, lines = columns(HEAD, rows, width, right=RIGHT, spare=SPARE)
        made = []
        for row, line in zip(self._shown, lines, strict=True):
            style = "bold" if self._used(row) else "" if row.path else "$text-muted"
            made.append(Content.styled(line, style))
        return f"{head}   sorted by {self._order}", made

    def _used(self, row: ModelRow) -> bool:
        """Whether the chat uses it now."""
        return bool(self._room.loaded) and self._room.uses(row)

    def typed(self, words: str) -> None:
        """Other models."""
        now = self._chosen()
        self._fill(now.name if now else "")

    def action_order(self, by: int) -> None:
        """Sort by something else."""
        self._order = next_order(self._order, by)
        now = self._chosen()
        self._fill(now.name if now else "")

    def on_resize(self) -> None:
        """Other columns may fit."""
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        now = self._chosen()
        self._fill(now.name if now else "")

    def _follow(self) -> None:
        """Show how far the downloads are; what has come is listed anew."""
        pulls = self._room.pulls
        open_, over = pulls.open, sum(pull.way is Way.HERE for pull in pulls.all)
        if over != self._ended:
            self._ended = over
            self.action_look()
        parts: list[Part] = []
        for pull in [*open_[:_QUEUE], *(one for one in pulls.all[-2:] if one not in open_)]:
            parts.append((f"{printable(pull.name)}  {printable(pull.words)}\n", "" if pull in open_ else "$text-muted"))
        if len(open_) > _QUEUE:
            parts.append((f"and {len(open_) - _QUEUE} more\n", "$text-muted"))
        self.run([*parts[:-1], (parts[-1][0].rstrip("\n"), parts[-1][1])] if parts else [])
        row = self._chosen()
        if open_ and row is not None:
            self.redraw(self._lines()[1])
            if pulls.of(row.name) in open_:
                self._details(row)

    # ------------------------------------------------------------------------------------------------ one of them

    def _chosen(self) -> ModelRow | None:
        place = self.place if self.is_mounted else None
        return self._shown[place] if place is not None and place < len(self._shown) else None

    def highlighted(self, place: int) -> None:
        """Its drafters are looked for once one stays there."""
        row = self._shown[place]
        if row.path is None or row.problem:
            self._pairs[row.name] = promised(row, self._room.memory)
        self._details(row)
        if row.name not in self._pairs:
            self.run_worker(partial(self._find, row), exclusive=True, group="pairs")

    async def _find(self, row: ModelRow) -> None:
        await asyncio.sleep(_STILL)
        self._pairs[row.name] = await self._room.pairs(row)
        if self._chosen() is row:
            self._details(row)

    def _details(self, row: ModelRow) -> None:
        self.tell(details(row, self._pairs.get(row.name), self._room.memory, self._room.pulls.of(row.name)))

    def chosen(self, place: int) -> None:
        """Chat with it, once it is here."""
        row = self._shown[place]
        reason = self._room.refuses(row)
        if reason:
            self.say(reason)
            return
        self.dismiss()
        self._room.use(row)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the middle of the words the delete key is theirs."""
        if action == "delete" and parameters == (True,):
            return at_end(self.query_one(Input))
        return super().check_action(action, parameters)

    def action_pull(self) -> None:
        """Bring it, and stay here; if it is here or on its way, bring the first drafter made for it."""
        row, pulls = self._chosen(), self._room.pulls
        if row is None:
            return
        coming = [pull.name for pull in pulls.open]
        if row.unsupported:
            self.say(f"{row.name}: {row.unsupported}.")
        elif row.name not in coming and (row.path is None or row.problem):
            pulls.add(row.name, row.nbytes)
        else:
            wanted = (pair for pair in self._pairs.get(row.name, ()) if pair.pull and pair.pull not in coming)
            pair = next(wanted, None)
            if pair is not None:
                pulls.add(pair.pull, pair.nbytes)
            else:
                self.say(f"{row.name} is {'on its way' if row.name in coming else 'here'}, with nothing else to pull.")
        self._follow()

    def action_stop(self) -> None:
        """Stop its download, else the one that runs."""
        row, pulls = self._chosen(), self._room.pulls
        names = [row.name, *(pair.pull for pair in self._pairs.get(row.name, ()))] if row is not None else []
        names += [pull.name for pull in pulls.open if pull.way is Way.RUNNING]
        if not any(pulls.stop(name) for name in names):
            self.say("No download runs.")
        self._follow()

    def action_delete(self, edits: bool = False) -> None:
        """Ask, then delete."""
        row = self._chosen()
        if row is None:
            return
        reason = self._room.keeps(row)
        if reason:
            self.say(reason)
            return
        what = f"{size(row.partial)} of a stopped download" if row.partial else f"{size(row.nbytes)} at {row.path}"
        ask = ConfirmScreen(f"Delete {row.name}? That is {what}.", "deletes it", "keeps it")

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._delete(row))

        self.app.push_screen(ask, answered)

    async def _delete(self, row: ModelRow) -> None:
        told = await self._room.remove(row)
        await self._look()
        self.say(told)
