"""How the transcript looks and where in it one is: marks, theme, scrolling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widgets import Static

from outrider.app.chat.follow import Follower
from outrider.app.chat.marks import Marks
from outrider.app.chat.palette import Palette
from outrider.app.chat.themes import theme_of
from outrider.app.config import FIELDS
from outrider.app.config.fields import nearest

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


class Sight:
    """What is chosen here is remembered for the next start where the settings leave it open."""

    def __init__(self, screen: ChatScreen, palette: Palette, follower: Follower) -> None:
        self._screen = screen
        self._palette = palette
        self._follower = follower

    def next_marks(self) -> None:
        """The next mode of marks."""
        modes = list(Marks)
        mode = modes[(modes.index(self._palette.mode) + 1) % len(modes)]
        self.show_marks(mode)
        words = "Marks off" if mode is Marks.OFF else "Marks: accepted drafts"
        self._flash_choice(words, self._follower.chosen(self._screen, "look.marks", mode.value))

    def show_marks(self, mode: Marks) -> None:
        """Mark this from now on, in the whole transcript."""
        self._palette.show(mode)
        self.repaint()

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
