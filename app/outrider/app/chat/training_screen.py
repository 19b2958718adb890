"""Training a drafter, over the chat: a method, a budget, what that takes, and how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.content import Content
from textual.widgets import OptionList

from outrider.app import render
from outrider.app.chat.browser import Browser, Part, columns
from outrider.app.chat.letters import TypeThrough
from outrider.app.chat.training import BUDGETS, Way, words
from outrider.app.commands._runs import Run
from outrider.core.base.protocol import DrafterRow

if TYPE_CHECKING:
    from outrider.app.chat.training import Training

_REDRAW = 0.5  # seconds between two looks at what runs
_HEAD = ("METHOD", "FOR THIS MODEL", "TOK/PASS")
_NOW = {
    Way.RUNNING: "ctrl+x stops it, and it can go on later. The chat goes on meanwhile, a little slower.",
    Way.STOPPED: "It stands in the list, and can go on.",
}


class TrainingScreen(TypeThrough[None], Browser):
    """Works on the room `training` of the chat screen."""

    BINDINGS: ClassVar = [
        Binding("left,minus", "budget(-1)", "Less time", show=False, priority=True),
        Binding("right,plus", "budget(1)", "More time", show=False, priority=True),
        Binding("c", "chats", "My chats", show=False),
        Binding("ctrl+x", "stop", "Stop", show=False, priority=True),
        Binding("j", "step('down')", "Next", show=False),
        Binding("k", "step('up')", "Previous", show=False),
        Binding("q", "leave", "Close", show=False),
    ]
    KEYS = "enter trains · ← → time · c learns from your chats too · ctrl+x stops · esc closes, and it goes on"
    FILTERED = False
    REPEATED = "jk"

    def __init__(self, room: Training) -> None:
        super().__init__()
        self._room = room
        self._things: list[DrafterRow | Run] = []
        self._budget = 1
        self._chats = False
        self._way = room.way

    def on_mount(self) -> None:
        """What can be trained, and what was stopped."""
        self.set_interval(_REDRAW, self._follow)
        self._fill()

    def _fill(self) -> None:
        self._things = [*self._room.stopped(), *self._room.rows]
        width = max(40, self.query_one(OptionList).size.width - 2)
        head, lines = columns(_HEAD, [_cells(one) for one in self._things], width, right=(2,))
        styles = ("$text-warning" if isinstance(one, Run) else "" for one in self._things)
        self.show(
            head, [Content.styled(line, style) for line, style in zip(lines, styles, strict=True)], self.place or 0
        )
        if not self._things:
            self.tell([("No method that can be trained goes with this model.", "$text-muted")])
        self._follow()

    def on_resize(self) -> None:
        """Other columns may fit."""
        self.call_after_refresh(self._fill)

    def highlighted(self, place: int) -> None:
        """What it would take."""
        thing = self._things[place]
        self.tell(_about_run(thing) if isinstance(thing, Run) else self._about(thing))

    def _about(self, row: DrafterRow) -> list[Part]:
        room, budget = self._room, BUDGETS[self._budget]
        memory = f"{render.size(room.memory)} of memory for the model once more, and some for the drafter"
        source = "your own chats and bundled prompts" if self._chats else "bundled prompts"
        return [
            (f"{row.name}\n", "bold"),
            (render.printable(f"{row.reason}\n\n" if row.usable else "\n"), "$text-muted"),
            ("Time     ", "bold"),
            (f"about {words(budget)}   ← →\n", ""),
            ("Learns   ", "bold"),
            (f"from this model's own answers to {source}   c\n", ""),
            ("Takes    ", "bold"),
            (f"{memory}; the exact figures are checked before it begins\n", ""),
            ("Gives    ", "bold"),
            ("a drafter that auto takes for this model if it beats the one there is. All stays on this machine.", ""),
        ]

    def action_budget(self, by: int) -> None:
        """More or less time."""
        self._budget = max(0, min(len(BUDGETS) - 1, self._budget + by))
        self._again()

    def action_chats(self) -> None:
        """With the user's own questions, or without."""
        self._chats = not self._chats
        self._again()

    def _again(self) -> None:
        if self.place is not None and self._things:
            self.highlighted(self.place)

    def chosen(self, place: int) -> None:
        """Begin, or go on."""
        reason = self._room.refuses()
        if reason:
            self.say(reason)
            return
        thing = self._things[place]
        if isinstance(thing, Run):
            self._room.go_on(thing)
        else:
            try:
                self._room.begin(thing.name, BUDGETS[self._budget], chats=self._chats)
            except render.Failure as error:
                self.say(f"{error.message} {error.hint}")
                return
        self._follow()

    def action_stop(self) -> None:
        """Stop what runs."""
        if self._room.running:
            self._room.stop()
        else:
            self.say("Nothing runs.")

    def _follow(self) -> None:
        """Show how it goes."""
        room = self._room
        if room.way is not self._way:
            self._way = room.way
            self._fill()
        self.run(self._now())

    def _now(self) -> list[Part]:
        room = self._room
        if room.way is Way.NONE:
            return []
        width = max(40, self.query_one(OptionList).size.width)
        parts: list[Part] = [(f"{room.method}: ", "bold")]
        if room.running:
            parts.append((render.printable(room.figures.stage() or "begins"), ""))
        elif room.way is Way.STOPPED:
            parts.append(("stopped", ""))
        elif room.error is not None:
            parts.append((render.printable(f"{room.error.message} {room.error.hint}"), "$text-error"))
        elif room.result.get("measured"):
            parts.append((f"{room.result['measured']['tokens_per_pass']:.2f} tokens a pass on texts new to it", ""))
        parts += [(f"\n{line}", "") for line in room.figures.lines(width)]
        notes = [*room.notes[-1:], *([_NOW[room.way]] if room.way in _NOW else [])]
        return [*parts, *((render.printable(f"\n{note}"), "$text-muted") for note in notes)]


def _cells(thing: DrafterRow | Run) -> tuple[str, str, str]:
    if isinstance(thing, Run):
        return f"{thing.method} for {thing.model}", thing.state, ""
    own = "trained here" if thing.where == "trained" else "came with Outrider" if thing.where == "shipped" else ""
    return thing.name, own or ("there is one" if thing.usable else "none yet"), f"{thing.gain:.2f}" if own else ""


def _about_run(run: Run) -> list[Part]:
    return [
        (render.printable(f"{run.name}\n"), "bold"),
        (render.printable(f"{run.method} for {run.model}, {run.state}.\n\n"), "$text-muted"),
        ("enter goes on with it. It comes to the same drafter as if it had never been stopped.", ""),
    ]
