"""How the transcript looks and where in it one is: marks, theme, scrolling."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.widgets import Static

from outrider.app.chat import legend
from outrider.app.chat.follow import Follower
from outrider.app.chat.marks import Marks
from outrider.app.chat.palette import Palette
from outrider.app.chat.talk import Chat
from outrider.app.chat.themes import theme_of
from outrider.app.config import FIELDS
from outrider.app.config.fields import nearest

if TYPE_CHECKING:
    from outrider.app.chat.reply import ReplyView
    from outrider.app.chat.screen import ChatScreen


class Sight:
    """What is chosen here is remembered for the next start where the settings leave it open."""

    def __init__(self, screen: ChatScreen, palette: Palette, follower: Follower) -> None:
        self._screen = screen
        self._palette = palette
        self._follower = follower
        self._explained: Chat | None = None  # the chat in which the marks were
        screen.stage.ended.append(self.explain)

    def marks(self, name: str) -> None:
        """Switch to marks by name, or to the next ones."""
        modes = list(Marks)
        if name and name not in legend.NAMES:
            hint = " ".join(filter(None, (nearest(name, legend.NAMES), f"Marks: {', '.join(legend.NAMES)}.")))
            self._screen.stage.tell(f"There are no marks {name}. {hint}")
            return
        mode = Marks(name) if name else modes[(modes.index(self._palette.mode) + 1) % len(modes)]
        self.show_marks(mode)
        reply = self._screen.session.current.reply if self._screen.session.current else None
        reply = reply or self._screen.session.chat.last_reply()
        words = legend.flash(mode, self._palette, reply.answer.layers if reply else None, "/marks corrections")
        self._flash_choice(words, self._follower.chosen(self._screen, "look.marks", mode.value))

    def show_marks(self, mode: Marks) -> None:
        """Mark this from now on, in the whole transcript; what is far from the window follows when it is near."""
        self._palette.show(mode)
        self._screen.session.wants_chances = mode is Marks.CONFIDENCE
        self.redress()
        for view in self._screen.transcript.query("ReplyView.-explained"):
            cast("ReplyView", view).explain(self._legend(cast("ReplyView", view)))

    def explain(self, view: ReplyView) -> None:
        """Under the first reply of a chat that has marks, what they mean."""
        chat, reply = self._screen.session.chat, view.reply
        if self._explained is chat or reply.meter.tokens_per_pass is None:  # one from the store
            return
        if legend.has_marks(self._palette.mode, reply.answer.layers):
            self._explained = chat
            view.explain(self._legend(view))

    def _legend(self, view: ReplyView) -> str:
        key = self._screen.keymap.first("marks")
        return legend.line(self._palette.mode, self._palette, view.reply.answer.layers, key)

    def show_gutter(self, shown: bool) -> None:
        """Beside each line how much of it was guessed, or not."""
        self._palette.gutter = shown
        for view in self._screen.transcript.query(".reply"):
            view.refresh()

    def redress(self) -> None:
        """Lay all marks anew."""
        for flow in self._screen.transcript.query(".flow"):
            redress = getattr(flow, "redress", None)
            if redress is not None:
                redress()

    def raw(self) -> None:
        """Show the focused or the last reply as it was written, or rendered again."""
        from outrider.app.chat.reply import ReplyView

        views = list(self._screen.transcript.query_children(ReplyView))
        if not views:
            self._screen.stage.flash("There is no reply yet")
            return
        view = next((view for view in views if view is self._screen.focused), views[-1])
        self._screen.run_worker(view.show_raw(not view.raw))
        self._screen.stage.flash("Rendered" if view.raw else "As the model wrote it")

    def repaint(self) -> None:
        """Paint the transcript again after the palette changed."""
        for widget in self._screen.transcript.query(Static):
            widget.refresh()

    def theme(self, name: str) -> None:
        """Another theme by name; none means dark or light."""
        themes = FIELDS["look.theme"].choices
        chosen = name or ("light" if self._screen.app.current_theme.dark else "dark")
        if chosen not in themes:
            self._screen.stage.tell(f"There is no theme {name}. {nearest(name, themes)} Themes: {', '.join(themes)}.")
            return
        self._screen.app.theme = theme_of(chosen)
        self._flash_choice(f"Theme: {chosen}", self._follower.chosen(self._screen, "look.theme", chosen))

    def scroll(self, where: str) -> None:
        """Scroll the transcript: `up`, `down`, `home` or `end`."""
        transcript = self._screen.transcript
        if transcript.max_scroll_y <= 0:
            return
        if where == "up":
            transcript.scroll_page_up(animate=False)
        elif where == "down":
            transcript.scroll_page_down(animate=False)
        elif where == "home":
            transcript.scroll_home(animate=False)
        else:
            transcript.anchor()

    def _flash_choice(self, words: str, note: str) -> None:
        self._screen.stage.flash(f"{words} ({note})" if note else words)
