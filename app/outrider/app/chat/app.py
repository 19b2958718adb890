"""The chat as a Textual program: themes, palette of marks, command palette, and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterable
from importlib.resources import as_file, files

from textual.app import App, SystemCommand
from textual.color import Color
from textual.screen import Screen
from textual.theme import Theme

from outrider.app.chat import ChatOptions
from outrider.app.chat.bindings import unbind
from outrider.app.chat.follow import Follower
from outrider.app.chat.keymap import shown
from outrider.app.chat.marks import Marks
from outrider.app.chat.palette import Palette, tint
from outrider.app.chat.screen import ChatScreen
from outrider.app.chat.themes import CONTRAST, DARK, LIGHT, theme_of


class ChatApp(App[None]):
    """One chat screen over one engine."""

    TITLE = "Outrider"

    def __init__(self, options: ChatOptions) -> None:
        with as_file(files("outrider.assets").joinpath("styles")) as styles:
            super().__init__(css_path=sorted(styles.glob("*.tcss")))
        unbind(self, self.COMMAND_PALETTE_BINDING)  # the registry's key for it is the screen's
        self.follower = Follower(options.asked)
        look = self.follower.settings.config.look
        self.palette = Palette()
        self.palette.show(Marks(look.marks))
        self.chat = ChatScreen(options, self.palette, self.follower)
        for theme in (DARK, LIGHT, CONTRAST):
            self.register_theme(theme)
        self.theme = theme_of(look.theme)
        self._mouse = look.mouse

    def on_mount(self) -> None:
        """Colours of marks follow the theme."""
        self._adapt_palette(self.current_theme)
        self.theme_changed_signal.subscribe(self, self._adapt_palette)
        self.push_screen(self.chat)

    def _adapt_palette(self, theme: Theme) -> None:
        colors = self.theme_variables
        self.palette.adapt(
            None
            if self.no_color or self.native_ansi_color
            else tint(
                dark=theme.dark,
                surface=Color.parse(colors["background"]),
                text=Color.parse(colors["foreground"]),
                colors=self.console.color_system,
            )
        )
        if self.chat.is_attached:
            self.chat.sight.repaint()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The actions of the registry, and no others."""
        for action in self.chat.keymap.actions:
            keys = f"  ({shown(action.keys[0])})" if action.keys else ""
            yield SystemCommand(action.title, action.help + keys, lambda chosen=action.id: self.chat.pick(chosen))

    def ride(self) -> int:
        """Run until the user quits, then end the engine; returns the exit code."""
        return asyncio.run(self._ride())

    async def _ride(self) -> int:
        with contextlib.suppress(NotImplementedError):  # not on every system
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        try:
            await self.run_async(mouse=self._mouse)
        finally:
            await self.chat.session.close()
        return self.return_code or 0
