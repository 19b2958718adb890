"""All drafters over the chat: who drafts, who could, what was measured, and a test for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList
from textual.worker import Worker

from outrider.app.chat.browser import Browser, Part, columns
from outrider.app.chat.drafters_list import AUTO, HEAD, NONE, RIGHT, Rider, cells, details, riders
from outrider.app.chat.letters import TypeThrough
from outrider.app.chat.models.pulls import bar
from outrider.app.client import EngineError
from outrider.app.commands import _drafters
from outrider.app.render import printable
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.chat.drafters import Drafters

_REDRAW = 0.5  # seconds between two looks at who rides


class DraftersScreen(TypeThrough[None], Browser):
    """Works on the room `riders` of the chat screen."""

    BINDINGS: ClassVar = [
        Binding("t", "test(False)", "Test", show=False),
        Binding("T", "test(True)", "Check the contract", show=False),
        Binding("j", "step('down')", "Next", show=False),
        Binding("k", "step('up')", "Previous", show=False),
        Binding("ctrl+r", "look", "Look again", show=False),
        Binding("q", "leave", "Close", show=False),
    ]
    KEYS = "enter switches, also in mid-reply · t tests · T checks the contract · ctrl+r looks again · esc closes"
    FILTERED = False
    REPEATED = "jk"

    def __init__(self, room: Drafters) -> None:
        super().__init__()
        self._room = room
        self._riders: list[Rider] = riders(room.rows)
        self._tests: dict[str, list[Part]] = {}
        self._testing: Worker[None] | None = None

    def on_mount(self) -> None:
        """What the engine knows takes a moment."""
        self.set_interval(_REDRAW, self._follow)
        self._fill()
        self.action_look()

    def action_look(self) -> None:
        """Ask the engine again."""
        self.run_worker(self._look(), exclusive=True, group="look")

    async def _look(self) -> None:
        try:
            rows = await self._room.look()
        except EngineError as error:
            self._room.complain("The drafters could not be listed", error)
            self.say(error.message)
            return
        now = self._rider()
        self._riders = riders(rows)
        self._fill(now.name if now else "")

    # ------------------------------------------------------------------------------------------------ the list

    def _rider(self) -> Rider | None:
        place = self.place
        return self._riders[place] if place is not None and place < len(self._riders) else None

    def _fill(self, name: str = "") -> None:
        now = self._room.now
        head, lines = self._lines()
        chosen = next((n for n, one in enumerate(self._riders) if one.state(now) in ("in use", "parked")), 0)
        self.show(head, lines, next((n for n, one in enumerate(self._riders) if one.name == name), chosen))

    def _lines(self) -> tuple[str, list[Content]]:
        now = self._room.now
        width = max(40, self.query_one(OptionList).size.width - 2)
        head, lines = columns(HEAD, [cells(one, now) for one in self._riders], width, right=RIGHT)
        made = []
        for rider, line in zip(self._riders, lines, strict=True):
            used = rider.state(now) in ("in use", "riding", "parked")
            made.append(Content.styled(line, "bold" if used else "" if rider.ready else "$text-muted"))
        return head, made

    def _follow(self) -> None:
        self.redraw(self._lines()[1])

    def on_resize(self) -> None:
        """Other columns may fit."""
        now = self._rider()
        self.call_after_refresh(self._fill, now.name if now else "")

    # ------------------------------------------------------------------------------------------------ one of them

    def highlighted(self, place: int) -> None:
        """What is known of it, and what a test said."""
        rider = self._riders[place]
        self.tell([*details(rider, self._room.now), *self._tests.get(rider.name, ())])

    def chosen(self, place: int) -> None:
        """Switch to it."""
        rider = self._riders[place]
        if self._room.ride(rider):
            self.dismiss()
        else:
            self.say(rider.why_not())

    def action_test(self, contract: bool) -> None:
        """Try it on some prompts."""
        rider, busy = self._rider(), self._room.busy()
        if rider is None or self._testing is not None:
            return
        if busy or rider.row in (AUTO, NONE) or not rider.ready:
            self.say(busy or ("A test needs one drafter." if rider.ready else rider.why_not()))
            return
        self._testing = self.run_worker(self._test(rider, contract), group="test")

    async def _test(self, rider: Rider, contract: bool) -> None:
        self.run([(f"Testing {rider.name.strip()} …  esc stops", "")])
        try:
            data = await self._room.test(rider, lambda event: self._progress(rider, event), contract=contract)
        except EngineError as error:
            self._tests[rider.name] = [("\n\nThe test failed\n", "bold $text-error"), (printable(error.message), "")]
        else:
            self._tests[rider.name] = result(data)
        finally:
            self._testing = None
            if self.is_mounted:
                self.run([])
        await self._look()
        self.call_after_refresh(self.query_one(".details", VerticalScroll).scroll_end, animate=False)

    def _progress(self, rider: Rider, event: protocol.Event) -> None:
        if isinstance(event, protocol.Progress):
            told = bar(event.done / event.total) if event.total else ""
            words = f"{event.done:.0f} of {event.total:.0f} {event.unit}" if event.total else event.phase
            self.run([(printable(f"Testing {rider.name.strip()}  {told}  {words}  ·  esc stops"), "")])

    def action_leave(self) -> None:
        """Stop the test, or go back to the chat."""
        if self._testing is not None:
            self._testing.cancel()
            self._testing = None
            self.run([])
            self.say("The test was stopped.")
        else:
            self.dismiss()


def result(data: dict[str, Any]) -> list[Part]:
    """What a test found, in the words of `outrider drafters test`."""
    text = _drafters.checks(data) if "checks" in data else _drafters.tested(data)
    problems = [trial["problem"] for trial in data.get("trials", ()) if trial["problem"]]
    parts: list[Part] = [("\n\nTest\n", "bold"), (printable(text), "")]
    return [*parts, *((f"\n{printable(problem)}", "$text-error") for problem in problems)]
