"""What the engine printed, what travels between it and the chat, and what the chat itself costs: for whoever wonders."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.app import files, render
from outrider.app.client import EngineClient
from outrider.app.store.writing import free_name, write_file
from outrider.core.base import paths

if TYPE_CHECKING:
    from outrider.app.chat.gauge import Rates, Reading, Written
    from outrider.app.chat.screen import ChatScreen


class Log:
    """The room behind the log's screen."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._written: Written | None = None

    def show(self) -> None:
        """The log over the chat."""
        from outrider.app.chat.gauge import Written
        from outrider.app.chat.log_screen import LogScreen

        if self._written is None:
            self._written = Written(self._screen.app)
        self._screen.app.push_screen(LogScreen(self))

    @property
    def clients(self) -> list[tuple[str, EngineClient]]:
        """Every engine process there is or was, with what it is for."""
        session = self._screen.session
        training = [("training", session.training)] if session.training.hello is not None else []
        return [("chat", session.client), *training]

    def lines(self) -> list[str]:
        """What the engines printed to stderr, the newest last; the chat's own engine comes first."""
        found = []
        for name, client in self.clients:
            words = client.last_words()
            if name != "chat" and words:
                found.append(f"── engine for {name} ──")
            found += words
        return found

    def reading(self) -> Reading:
        """The counters now."""
        from outrider.app.chat.gauge import Reading

        traffic = [client.traffic for _, client in self.clients]
        return Reading(
            at=time.monotonic(),
            cpu=time.process_time(),
            paints=self._screen.stage.frames.painted,
            written=self._written.nbytes if self._written is not None else 0,
            received=sum(one.received for one in traffic),
            frames=sum(one.frames.total() for one in traffic),
        )

    def figures(self, pace: Rates | None) -> list[tuple[str, str]]:
        """Names and values; `pace`: of the last second, None at first."""
        return [*self._engines(), *self._frames(pace), *self._own(pace)]

    def _engines(self) -> Iterator[tuple[str, str]]:
        for name, client in self.clients:
            hello = client.hello
            told = f", Outrider {hello.outrider}, protocol {hello.version}" if hello is not None else ""
            state = f"process {client.pid}{told}" if client.alive else "not running"
            yield f"engine for {name}", state

    def _frames(self, pace: Rates | None) -> Iterator[tuple[str, str]]:
        traffic = self._screen.session.client.traffic
        kinds = " · ".join(f"{count:,} {name}" for name, count in traffic.frames.most_common())
        yield "frames", kinds or "none yet"
        now = f", {pace.frames:.0f} frames and {render.size(pace.received)} a second" if pace is not None else ""
        yield "received", render.size(traffic.received) + now
        waiting = self._screen.session.client.backlog
        yield "backlog", f"{waiting} frames wait to be taken, the newest paint came {1000 * self._late:.0f} ms late"

    @property
    def _late(self) -> float:
        return self._screen.stage.frames.late

    def _own(self, pace: Rates | None) -> Iterator[tuple[str, str]]:
        frames = self._screen.stage.frames
        if pace is not None:
            yield (
                "screen",
                f"{pace.paints:.0f} paints a second, at most {1 / frames.tick:.0f}; {pace.cpu:.0%} of a core",
            )
            yield "to the terminal", f"{render.size(pace.written)} a second"
        if frames.costs:
            from outrider.app.chat.gauge import quantile

            mean = sum(frames.costs) / len(frames.costs)
            worst = quantile(frames.costs, 0.95)
            yield "a paint costs", f"{1000 * mean:.1f} ms, 95 of 100 at most {1000 * worst:.1f} ms"

    def text(self) -> str:
        """All of it, for the clipboard or a file."""
        return render.pairs(self.figures(None)) + "\n\n" + "\n".join(map(render.printable, self.lines())) + "\n"

    def copy(self) -> None:
        """Put it into the clipboard."""
        self._screen.copying.copy(self.text(), "the log")

    def save(self) -> str:
        """Write it to a file; a sentence with its name, or why not."""
        path = free_name(Path.cwd(), "outrider log", "txt")
        try:
            write_file(path, self.text())
        except OSError as error:
            return f"The log could not be written: {files.reason(error)} ({error.filename})."
        return f"Wrote {path.absolute()}; all that was ever printed is in {paths.engine_log()}."
