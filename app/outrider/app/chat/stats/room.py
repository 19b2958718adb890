"""What the chat screen does with figures: counts them, shows them as a strip or a panel, and says why."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from textual.containers import VerticalScroll
from textual.geometry import Spacing

from outrider.app.chat import layout
from outrider.app.chat.follow import Follower
from outrider.app.chat.header import Caption, Header
from outrider.app.chat.stats.figures import Figures, context_of, gather
from outrider.app.chat.stats.lines import panel, strip
from outrider.app.chat.stats.tally import Tally, Totals
from outrider.app.chat.stats.view import Lines
from outrider.app.chat.stats.why import Cause, Slow, cause, explained
from outrider.core.base.protocol import Done, Event, Step

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen
    from outrider.app.chat.session import Session
    from outrider.app.chat.talk import Reply, Turn

PERIOD = 0.25  # seconds between two looks
_FREEZE = 1.0  # seconds after the end of a reply, from which nothing changes


def arrange(screen: ChatScreen, size: tuple[int, int], column: int) -> None:
    """Give everything its place in a window of so many columns and rows; `column`: cells of text at most."""
    stats = screen.stats
    plan = layout.plan(size, column, stats.mode, over=stats.over, pane=screen.inspection.view is not None)
    stats.arranged(plan)
    screen.transcript.styles.padding = Spacing(1, plan.left - 1, 0, plan.left)  # its scrollbar takes a cell
    screen.query_one("#prompt-row").styles.padding = Spacing(0, plan.right, 0, plan.left)
    screen.status.styles.padding = Spacing(0, plan.left + 1, 0, plan.left + 1)


class Stats:
    """Counts every pass; makes lines of it only where they are seen, four times a second."""

    def __init__(self, screen: ChatScreen, follower: Follower) -> None:
        self._screen = screen
        self._follower = follower
        self.header, self.strip, self.panel = Header(), Lines("strip"), Lines("panel")
        self.side = VerticalScroll(self.panel, id="side", can_focus=False)
        self.mode: layout.Mode = follower.settings.config.look.stats
        self.over = False  # the panel lies over the text
        self.totals = Totals()
        self.tallies: WeakKeyDictionary[Reply, Tally] = WeakKeyDictionary()
        self._slow = Slow()
        self._caption: Caption | None = None
        self._ended = 0.0
        self._shown: object = None

    def attach(self) -> None:
        """Begin to listen and to look."""
        self._caption = Caption(self._screen.app)
        self._screen.session.watchers += [self.hear, self._screen.inspection.hear]
        self._screen.stage.heads.append(self.head)
        self._screen.set_interval(PERIOD, self.look)

    def leave(self) -> None:
        """The screen goes."""
        if self._caption is not None:
            self._caption.restore()

    def hear(self, turn: Turn, event: Event) -> None:
        """Something came of a running reply."""
        if turn.reply is None:
            return
        if isinstance(event, Step):
            tally = self.tallies.get(turn.reply)
            if tally is None:
                tally = self.tallies[turn.reply] = Tally()
                self._slow = Slow()
            tally.take(event)
        elif isinstance(event, Done):
            self.totals.add(event.report)
            self._ended = monotonic()

    def head(self, session: Session) -> None:
        """The line at the top and the terminal's title, once a frame."""
        reply = self._reply()
        context = context_of(reply, self.tallies.get(reply) if reply else None)
        if self.header.display:
            self.header.show(session, context)
        if self._caption is not None:
            self._caption.show(session)

    def _reply(self) -> Reply | None:
        session = self._screen.session
        return session.current.reply if session.current else session.chat.last_reply()

    def figures(self) -> Figures:
        """All of them, now."""
        reply = self._reply()
        return gather(self._screen.session, reply, self.tallies.get(reply) if reply else None)

    # ------------------------------------------------------------------------------------------------ showing

    def look(self) -> None:
        """Show what is new, where it is seen."""
        if self._screen.inspection.beside:
            self._screen.inspection.look()
        if not (self.strip.display or self.side.display) or self._screen.app.screen is not self._screen:
            return
        session, reply = self._screen.session, self._reply()
        standing = (session.state, session.drafter, session.loaded, reply, self.mode, self._screen.size)
        lively = session.current is not None or monotonic() - self._ended < _FREEZE
        if not lively and standing == self._shown:
            return
        self._shown = standing
        self._show(self.figures())

    def _show(self, figures: Figures) -> None:
        found = self._cause(figures)
        sparks = self._follower.pace.sparkline
        if self.strip.display:
            self.strip.show(strip(figures, self.totals, found, self.strip.content_size.width, sparks=sparks))
        if self.side.display and self.panel.display:
            self.panel.show(panel(figures, self.totals, found, sparks=sparks))

    def _cause(self, figures: Figures) -> Cause | None:
        return cause(figures) if self._slow.told(figures, monotonic()) else None

    # ------------------------------------------------------------------------------------------------ choosing

    def next(self) -> None:
        """Chip, strip, panel."""
        mode, over = layout.following(self._screen.size.width, self.mode, over=self.over)
        self._choose(mode, over)

    def choose(self, word: str) -> None:
        """A mode by name; alone the next one."""
        mode: layout.Mode | None = next((mode for mode in layout.MODES if mode == word), None)
        if not word:
            self.next()
        elif mode is None:
            self._screen.stage.tell(f"/stats takes {', '.join(layout.MODES[:-1])} or {layout.MODES[-1]}, not {word}.")
        else:
            small = mode == "panel" and self._screen.size.width < layout.BESIDE
            self._choose(mode, small)

    def _choose(self, mode: layout.Mode, over: bool) -> None:
        self.over, before = over, self.mode
        note = self._follower.chosen(self._screen, "look.stats", mode) if mode != self.mode else ""
        self.show(mode)
        seen = "panel" if self.side.display else "strip" if self.strip.display else "in the status line"
        asked = mode if mode != "chip" and not (over or self.strip.display or self.side.display) else ""
        words = f"Figures: {seen}" + (f"; the {asked} where the window is larger" if asked and mode != before else "")
        self._screen.stage.flash(f"{words} ({note})" if note else words)

    def show(self, mode: layout.Mode) -> None:
        """Use this mode from now on."""
        self.mode = mode
        self._shown = None
        self._screen.fit(self._screen.size.width)
        self._screen.call_after_refresh(self.look)

    def close_over(self) -> bool:
        """Put away the panel that lies over the text. False if none does."""
        was, self.over = self.over and self.side.has_class("-over"), False
        if was:
            self._screen.fit(self._screen.size.width)
        return was

    def arranged(self, plan: layout.Plan) -> None:
        """Header, strip and panel have their places now."""
        self.header.display, self.strip.display, self.side.display = plan.header, plan.strip, bool(plan.side)
        inspecting = self._screen.inspection.view is not None and plan.side == "beside"
        self.side.set_class(plan.side == "over", "-over")
        self.side.set_class(inspecting, "-inspecting")
        self.panel.display = not inspecting
        self.header.styles.padding = self.strip.styles.padding = Spacing(0, plan.left + 1, 0, plan.left + 1)
        self._screen.status.model = not plan.header

    def why(self) -> None:
        """Say why drafting gains what it gains, with the numbers."""
        self._screen.stage.tell(explained(self.figures()), self._reply())
