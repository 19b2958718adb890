"""The chat as a Textual program: themes, palette of marks, command palette, and a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterable
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from textual import on
from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.screen import Screen
from textual.theme import Theme

from outrider.app.chat import ChatOptions
from outrider.app.chat.bindings import terminal_driver, unbind
from outrider.app.chat.follow import Follower
from outrider.app.chat.keymap import shown
from outrider.app.chat.marks import ACCEPTED, Marks
from outrider.app.chat.palette import Palette, tints_of
from outrider.app.chat.screen import ChatScreen
from outrider.app.chat.styling import Styling
from outrider.app.chat.themes import CONTRAST, DARK, LIGHT, theme_of
from outrider.app.text import sanitize

if TYPE_CHECKING:
    from outrider.app.chat.gauge import Profile

_RUBBISH = (20_000, 10, 10)  # objects until it is looked for; the usual 700 cost a fifth of all time while a reply came
_WARM = 3.0  # seconds until all is loaded, which then is not looked through again: that held up a frame by a third of a second


class ChatApp(App[None]):
    """One chat screen over one engine."""

    TITLE = "Outrider"

    def __init__(self, options: ChatOptions) -> None:
        with as_file(files("outrider.assets").joinpath("styles")) as styles:
            super().__init__(driver_class=terminal_driver(), css_path=sorted(styles.glob("*.tcss")))
        unbind(self, self.COMMAND_PALETTE_BINDING)  # the registry's key for it is the screen's
        self.follower = Follower(options.asked)
        look = self.follower.settings.config.look
        self.palette = Palette()
        self.palette.show(Marks(look.marks))
        self.palette.gutter = look.gutter
        self.chat = ChatScreen(options, self.palette, self.follower)
        self.chat.session.wants_chances = self.palette.mode is Marks.CONFIDENCE
        for theme in (DARK, LIGHT, CONTRAST):
            self.register_theme(theme)
        self.theme = theme_of(look.theme)
        self.stylesheet = Styling(self.get_css_variables())
        self._mouse = look.mouse
        self._profile_ui = options.profile_ui
        self._profile: Profile | None = None

    def on_mount(self) -> None:
        """Colours of marks follow the theme."""
        self._adapt_palette(self.current_theme)
        self.theme_changed_signal.subscribe(self, self._adapt_palette)
        if self._profile_ui:
            from outrider.app.chat.gauge import Profile

            self._profile = Profile(self, self.chat.stage.frames)
        self.push_screen(self.chat)

    def _adapt_palette(self, theme: Theme) -> None:
        made = tints_of(self)
        self.palette.adapt(made.get(ACCEPTED), made)
        if self.chat.is_attached:
            self.chat.sight.repaint()

    def copy_to_clipboard(self, text: str) -> None:
        """Put it where it can be pasted, in this program too, and say how."""
        self.take_clip(text)
        self.chat.copying.copy(text, tell=False)

    def take_clip(self, text: str) -> None:
        """Put it where it can be pasted in this program."""
        self._clipboard = text

    def write_terminal(self, sequence: str) -> None:
        """Send a sequence to the terminal as it is."""
        if self._driver is not None:
            self._driver.write(sequence)

    async def action_quit(self) -> None:
        """The library's own key for it asks as ours does."""
        self.chat.quit()

    def stop_job(self) -> None:
        """Give the terminal back to the shell and stop until it says to go on. The engine goes on meanwhile."""
        self._suspend_signal()
        os.kill(os.getpid(), signal.SIGTSTP)

    @property
    def can_stop(self) -> bool:
        """Whether there is a terminal to give back."""
        return self._driver is not None and self._driver.can_suspend

    @on(Driver.SignalResume)
    def _repaint(self) -> None:
        """The screen is empty after a stop."""
        for screen in self.screen_stack:
            screen.refresh(layout=True)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The actions of the registry, and no others."""
        for action in self.chat.keymap.actions:
            keys = f"  ({shown(action.keys[0])})" if action.keys else ""
            yield SystemCommand(action.title, action.help + keys, lambda chosen=action.id: self.chat.pick(chosen))

    def ride(self) -> int:
        """Run until the user quits, then end the engine; returns the exit code."""
        return asyncio.run(self._ride())

    async def _ride(self) -> int:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError, AttributeError):  # not on every system
            for ends in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(ends, self.exit)
        gc.set_threshold(*_RUBBISH)
        loop.call_later(_WARM, gc.freeze)
        try:
            await self.run_async(mouse=self._mouse)
        finally:
            await self.chat.session.close()
            if parting := self.chat.session.keeper.parting:
                sys.stderr.write(sanitize(parting) + "\n")
            if self._profile is not None:
                self._profile.write(self._profile_ui)
        return self.return_code or 0
