"""A saved race on the screen without a chat and without an engine."""

from __future__ import annotations

from importlib.resources import as_file, files

from textual.app import App

from outrider.app.chat.bindings import terminal_driver
from outrider.app.chat.compare.arena import RaceScreen
from outrider.app.chat.compare.exporting import export_here, marks_of
from outrider.app.chat.compare.race import Race
from outrider.app.chat.marks import ACCEPTED
from outrider.app.chat.palette import Palette, tints_of
from outrider.app.chat.themes import CONTRAST, DARK, LIGHT, theme_of
from outrider.app.config.schema import Look


class ReplayApp(App[None]):
    """Shows one race and ends with it."""

    TITLE = "Outrider"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, race: Race, look: Look) -> None:
        with as_file(files("outrider.assets") / "styles" / "compare.tcss") as style:
            super().__init__(driver_class=terminal_driver(), css_path=style)
        for theme in (DARK, LIGHT, CONTRAST):
            self.register_theme(theme)
        self.theme = theme_of(look.theme)
        self._race, self._still = race, look.reduced_motion

    def on_mount(self) -> None:
        """The race is all there is."""
        palette, made = Palette(), tints_of(self)
        palette.adapt(made.get(ACCEPTED), made)
        self.push_screen(RaceScreen(self._race, marks_of(palette), export_here, self._still), lambda _: self.exit())
