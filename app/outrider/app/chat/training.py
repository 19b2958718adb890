"""Training a drafter while the chat goes on: what can be trained, what runs, what was stopped. Knows no widgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.app import render
from outrider.app.chat.problem import Problem
from outrider.app.chat.status import Chip
from outrider.app.client import EngineError
from outrider.app.commands import _runs, _training
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterRow, Notice, Progress, TrainOrder

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

BUDGETS = (600.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0)  # seconds


class Way(Enum):
    """Where the training stands."""

    NONE = "none"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


class Training:
    """One training at a time, in an engine process of its own."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._task: asyncio.Future[Any] | None = None
        self._chip = ""
        self.way = Way.NONE
        self.method = ""
        self.folder = Path()
        self.figures = _training.Course()
        self.error: EngineError | None = None
        self.result: dict[str, Any] = {}
        self.notes: list[str] = []
        screen.stage.chips.append(self.chips)

    def show(self) -> None:
        """What can be trained, over the chat."""
        from outrider.app.chat.training_screen import TrainingScreen

        self._screen.app.push_screen(TrainingScreen(self))

    # ------------------------------------------------------------------------------------------------ what there is

    @property
    def model(self) -> str:
        """The model that drafters are trained for: the chat's."""
        return self._screen.session.options.model.model

    @property
    def memory(self) -> int:
        """Bytes that the model takes a second time."""
        loaded = self._screen.session.loaded
        return loaded.nbytes if loaded is not None else 0

    @property
    def rows(self) -> list[DrafterRow]:
        """The methods that can be trained, best fit first."""
        loaded = self._screen.session.loaded
        return [row for row in loaded.drafters if row.trains] if loaded is not None else []

    def stopped(self) -> list[_runs.Run]:
        """Runs that can go on, the one that runs now left aside."""
        running = str(self.folder) if self.running else ""
        return [run for run in _runs.kept() if not run.done and run.folder != running]

    @property
    def running(self) -> bool:
        """Whether one runs."""
        return self.way is Way.RUNNING

    # ------------------------------------------------------------------------------------------------ work

    def refuses(self) -> str:
        """Why none can begin now, empty if one can."""
        if self.running:
            return f"A training of {self.method} runs; ctrl+x stops it."
        return "" if self._screen.session.loaded is not None else "No model is loaded."

    def begin(self, method: str, budget_s: float, *, chats: bool) -> None:
        """Train a drafter of a method for the chat's model within about so many seconds. Raises Failure."""
        prompts = [*(_training.chats() if chats else []), *_training.prompts(None)]
        folder = _runs.fresh(method, self.model)
        order = TrainOrder(method=method, folder=str(folder), budget_s=budget_s)
        self._set_off(protocol.Train(id=0, order=order, model=self._screen.session.options.model, prompts=prompts))

    def go_on(self, run: _runs.Run) -> None:
        """Take up a run that was stopped."""
        order = TrainOrder(method=run.method, folder=run.folder)
        self._set_off(protocol.Train(id=0, order=order, resume=True))

    def stop(self) -> None:
        """End it where it can go on later."""
        if self.running and self._task is not None:
            self.way = Way.STOPPED
            self._task.cancel()
            self._changed()

    def _set_off(self, request: protocol.Train) -> None:
        self.way, self.error, self.result, self.notes = Way.RUNNING, None, {}, []
        self.method, self.folder = request.order.method, Path(request.order.folder)
        self.figures = _training.Course()
        self.figures.recall(self.folder)
        self._screen.stage.spawn(self._work(request))
        self._changed()

    async def _work(self, request: protocol.Train) -> None:
        def numbered(number: int) -> protocol.Request:
            request.id = number
            return request

        task = self._task = asyncio.ensure_future(self._screen.session.beside.training.ask(numbered, self._take))
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        self._over(task)
        self._changed()

    def _over(self, task: asyncio.Future[Any]) -> None:
        if self.way is Way.STOPPED or task.cancelled():
            self.way = Way.STOPPED
            return
        error = task.exception()
        if isinstance(error, EngineError):
            self.way, self.error = Way.FAILED, error
            self._screen.stage.complain(Problem.of(f"The training of {self.method} failed", error))
            return
        self.way, self.result = Way.DONE, task.result()
        self._screen.stage.tell(self._told())

    def _take(self, event: protocol.Event) -> None:
        if isinstance(event, Progress):
            self.figures.take(event)
            self._changed()
        elif isinstance(event, Notice):
            self.notes = [*self.notes[-2:], event.text]

    def _told(self) -> str:
        measured, rival = self.result.get("measured"), self.result.get("rival_measured")
        good = f": {measured['tokens_per_pass']:.2f} tokens a pass on texts that it has not seen" if measured else ""
        if self.result.get("place"):
            return (
                f"The drafter {self.method} is trained{good}. /drafter {self.method} takes it at once, "
                f"auto does when the model is loaded next (/restart)."
            )
        stays = f" The one that is there does {rival['tokens_per_pass']:.2f} and stays." if rival else ""
        return f"The drafter {self.method} is trained{good}.{stays} It lies in {self.result.get('drafter', '')}."

    # ------------------------------------------------------------------------------------------------ status

    def quit(self, leave: Callable[[], None]) -> bool:
        """Ask before a training is cut off. False if none runs, or if this is asked already."""
        from outrider.app.chat.confirm import ConfirmScreen

        if not self.running or isinstance(self._screen.app.screen, ConfirmScreen):
            return False
        question = f"A training runs: {self.method}.\nQuit all the same? It can go on later from where it stands."
        ask = ConfirmScreen(question, "quits", "stays", also=("ctrl+d",))
        self._screen.app.push_screen(ask, lambda yes: leave() if yes else None)
        return True

    def chips(self) -> list[Chip]:
        """What the status line says of it."""
        return [Chip(self._chip, 5, "$text-primary")] if self._chip else []

    def _changed(self) -> None:
        words = ""
        if self.running:
            event = self.figures.event
            share = f" {event.done / event.total:.0%}" if event is not None and event.total else ""
            words = f"⚒ {self.method}{share}"
        if words != self._chip:
            self._chip = words
            self._screen.stage.status_changed()


def words(budget_s: float) -> str:
    """A budget as people say it."""
    return render.duration(budget_s).replace(" 00 s", "").replace(" 00 min", "")
