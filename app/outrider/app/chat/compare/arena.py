"""The race on the screen: a lane for each arm with its text and marks, the track, the clock, and the verdict at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from outrider.app.chat.clean import harmless
from outrider.app.chat.compare import verdict
from outrider.app.chat.compare.race import Race
from outrider.app.chat.compare.replay import Replay, Track
from outrider.app.chat.letters import TypeThrough
from outrider.app.chat.meter import speed
from outrider.app.text import padded, width

_TICK, _REMOTE_TICK = 1 / 15, 1 / 8  # seconds
_NARROW = 36  # cells that a lane needs beside others
_LOW = 28  # lines below which lanes make room for the verdict
_KEYS = "space pause · ← → speed · . , step · r again · end · v verdict · y copy · e export · esc closes"


class LaneView(Widget):
    """The newest lines of one lane."""

    def __init__(self, track: Track, marked: Callable[[str], Style | None]) -> None:
        super().__init__(classes="lane")
        self.track = track
        self._marked = marked
        self._moment, self._passes = 0.0, -1
        self.border_title = harmless(track.lane.label)

    def show(self, moment: float, told: str, leads: bool) -> None:
        """Draw it as it was at a moment."""
        self._moment, passes = moment, self.track.passes(moment)
        self.border_subtitle = told
        self.set_class(leads, "-leads")
        if passes != self._passes:
            self._passes = passes
            self.refresh()

    def render(self) -> Content:
        """As much of its end as there is room for."""
        width, height = self.size
        if not width or not height:
            return Content("")
        lines = self._text(2 * width * height).wrap(width)
        return Content("\n").join(lines[-height:])

    def _text(self, most: int) -> Content:
        """The last characters, from the beginning of a line where there is one."""
        parts: list[str | tuple[str, str | Style]] = []
        left = most
        for text, kind, thinking in reversed(self.track.pieces(self._moment)):
            if left <= 0 and "\n" in text:
                parts.append(text.rpartition("\n")[2])
                break
            left -= len(text)
            style = self._marked(kind)
            parts.append((harmless(text), style or ("$text-muted" if thinking else "")))
        return Content.assemble(*reversed(parts))


class RaceScreen(TypeThrough[None], Screen[None]):
    """Replays one race. `export` writes it to files and says which; `still` begins at the end."""

    BINDINGS: ClassVar = [
        Binding("escape,f7,q,ctrl+c", "leave", "Close", show=False),
        Binding("space", "pause", "Pause", show=False, priority=True),
        Binding("r", "again", "Again", show=False),
        Binding("left", "faster(-1)", "Slower", show=False),
        Binding("right", "faster(1)", "Faster", show=False),
        Binding("full_stop", "step(1)", "Next pass", show=False),
        Binding("comma", "step(-1)", "Pass before", show=False),
        Binding("end", "finish", "To the end", show=False, priority=True),
        Binding("v", "verdict", "Verdict", show=False),
        Binding("y", "copy", "Copy", show=False),
        Binding("e", "export", "Export", show=False),
    ]

    def __init__(
        self, race: Race, marked: Callable[[str], Style | None], export: Callable[[Race], str], still: bool = False
    ) -> None:
        super().__init__()
        self.race, self.replay = race, Replay(race)
        self._export, self._marked = export, marked
        self._seen = monotonic()
        self._asked: bool | None = None  # for the verdict; None: shown at the end
        self._laid = False
        self._timer: Timer | None = None
        self._ticking = True
        if still:
            self.replay.finish()

    def compose(self) -> ComposeResult:
        """Clock, lanes, track, verdict, keys."""
        yield Static("", markup=False, id="race-clock")
        with Container(id="lanes"):
            for track in self.replay.tracks:
                yield LaneView(track, self._marked)
        yield Static("", markup=False, id="track")
        with VerticalScroll(id="race-verdict"):
            yield Static(harmless(self._verdict()), markup=False)
        yield Static(_KEYS, markup=False, id="race-keys")

    def on_mount(self) -> None:
        """The clock runs."""
        self._seen = monotonic()
        self._timer = self.set_interval(_REMOTE_TICK if os.environ.get("SSH_TTY") else _TICK, self._tick)
        self._show()

    def on_resize(self, event: Resize) -> None:
        """Lanes beside each other, or stacked."""
        count = max(1, len(self.replay.tracks))
        lanes = self.query_one("#lanes")
        lanes.set_class(event.size.width // count < _NARROW, "-stacked")
        self.set_class(event.size.height < _LOW or event.size.width // count < _NARROW, "-low")
        self.call_after_refresh(self._show)

    def _verdict(self) -> str:
        return "\n".join([*verdict.sentences(self.race), "", verdict.table(self.race)])

    def _tick(self) -> None:
        now = monotonic()
        spent, self._seen = now - self._seen, now
        if self.replay.running:
            self.replay.advance(spent)
            self._show()

    def _show(self) -> None:
        replay = self.replay
        self._run(replay.running)
        places = replay.places()
        for view, place in zip(self.query(LaneView), places, strict=True):
            rate = f" · {speed(place.rate)}" if place.rate else ""
            done = " · done" if place.done else ""
            view.show(replay.moment, f"{place.tokens} tokens{rate}{done}", place.lead > 0)
        state = "end" if replay.over else "paused" if replay.paused else f"{replay.speed:g}×"
        clock = f"{replay.moment:5.1f} of {replay.length:.1f} s · {state}"
        parts = (clock, "bold $text-primary"), ("   " + harmless(self.race.head()), "$text-muted")
        line = Content.assemble(*parts).truncate(max(1, self.size.width - 2))
        self.query_one("#race-clock", Static).update(line, layout=False)
        self.query_one("#track", Static).update(self._track(), layout=not self._laid)  # its height stays
        self._laid = True
        shown = replay.over if self._asked is None else self._asked
        if shown != self.has_class("-verdict"):
            self.set_class(shown, "-verdict")
            self.set_focus(self.query_one("#race-verdict") if shown else None)  # so that its keys scroll it

    def _run(self, running: bool) -> None:
        """The clock ticks only while time goes by."""
        if self._timer is None or running == self._ticking:
            return
        self._ticking = running
        if running:
            self._seen = monotonic()
            self._timer.resume()
        else:
            self._timer.pause()

    def _track(self) -> Content:
        """A bar for each lane, in tokens, and who leads."""
        places = self.replay.places()
        names = max(width(harmless(place.label)) for place in places)
        room = max(8, min(60, self.size.width - names - 24))
        parts: list[str | tuple[str, str]] = []
        for place in places:
            full = round(room * place.tokens / self.replay.most) if self.replay.most else 0
            lead = f" +{place.lead}" if place.lead else ""
            parts += [
                (f"{padded(harmless(place.label), names)} ", "bold"),
                ("█" * full, "$primary"),
                ("·" * (room - full), "$text-muted"),
                f" {place.tokens}{lead}\n",
            ]
        return Content.assemble(*parts, (self.replay.leader(), "$text-muted"))

    def action_pause(self) -> None:
        """Pause or go on; at the end from the beginning."""
        self.replay.toggle()
        self._show()

    def action_again(self) -> None:
        """From the beginning."""
        self.replay.again()
        self._asked = None
        self._show()

    def action_faster(self, by: int) -> None:
        """Another speed."""
        self.replay.faster(by)
        self._show()

    def action_step(self, by: int) -> None:
        """One pass further, or back."""
        self.replay.step(by)
        self._show()

    def action_finish(self) -> None:
        """To the end."""
        self.replay.finish()
        self._asked = None
        self._show()

    def action_verdict(self) -> None:
        """Show the verdict, or hide it."""
        self._asked = not self.has_class("-verdict")
        self._show()

    def action_copy(self) -> None:
        """The verdict as Markdown, for pasting."""
        self.app.copy_to_clipboard(verdict.markdown(self.race))
        self._say("Copied the verdict as Markdown")

    def action_export(self) -> None:
        """JSON, Markdown and picture."""
        self._say(self._export(self.race))

    def _say(self, words: str) -> None:
        self.query_one("#race-keys", Static).update(Content.styled(harmless(words), "bold $text-primary"))

    def action_leave(self) -> None:
        """Back to where one came from."""
        self.dismiss(None)
