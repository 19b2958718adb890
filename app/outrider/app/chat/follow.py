"""The settings in a running chat: what holds at its start, and what changes while it runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.app import files
from outrider.app.chat.keymap import keymap
from outrider.app.chat.marks import Marks
from outrider.app.chat.session import Problem, Session
from outrider.app.chat.terminal import Profile, profile
from outrider.app.config import FIELDS, Asked, Fault, Source
from outrider.app.config.read import config_file
from outrider.app.config.remember import REMEMBERED, remember
from outrider.app.config.schema import DEFAULT
from outrider.app.config.settle import Settings, differences
from outrider.app.config.toml import written

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen

PERIOD = 2.0  # seconds between two looks at the file
_SHOWN = 8  # faults in a card
_DRAFTER = ("drafting.drafter", "drafting.drafter_weights", "drafting.drafter_options", "drafting.draft_tokens")
_LATER = (
    "look.mouse",
    "look.screen_reader",
    "drafting.exact",
)  # and what says how a model is loaded, and where things lie


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when a file does; empty where there is none."""
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


class Follower:
    """Knows the settings of one chat, and takes changes of the file over into its screen."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self._model = ""  # that the chat went over to, empty while it is the one of the settings
        self._seen = _stamp(config_file())
        self.settings = asked.settle()
        self.keymap = keymap(self.settings)

    @property
    def faults(self) -> list[Fault]:
        """What is wrong in file and environment, the keys included."""
        return [*self.settings.faults, *self.keymap.faults]

    def card(self) -> Problem | None:
        """The faults for the transcript, None if there are none."""
        if not self.faults:
            return None
        lines = [str(fault) for fault in self.faults[:_SHOWN]]
        more = len(self.faults) - len(lines)
        lines += [f"and {more} more: `outrider config check`"] if more else []
        hint = "What is wrong is left out; mend it with `outrider config edit`, and the chat takes it over."
        return Problem("The settings have mistakes", "\n".join(lines), hint)

    def check(self, screen: ChatScreen) -> None:
        """Look whether the file has changed, and take it over."""
        stamp = _stamp(config_file())
        if stamp == self._seen:
            return
        screen.stage.tell(self.reload(screen, f"{config_file().name} has changed"))

    def reload(self, screen: ChatScreen, words: str) -> str:
        """Read the file again and take over what has changed in it; `words`, and what that was."""
        self._seen = _stamp(config_file())
        try:
            settings = self._settle(self.asked)
        except LookupError as error:  # the persona is not in the file any more
            screen.stage.tell(str(error.args[0]))
            self.asked = dataclasses.replace(self.asked, persona=None)
            settings = self._settle(self.asked)
        return self._take(screen, settings, words)

    def _settle(self, asked: Asked) -> Settings:
        """What holds with the model in use; which model the settings themselves name is told as it stands there."""
        plain = asked.settle()
        if not self._model:
            return plain
        path = "engine.model"
        settings = dataclasses.replace(asked, flags={**asked.flags, path: self._model}).settle()
        return dataclasses.replace(
            settings,
            values={**settings.values, path: plain.values[path]},
            sources={**settings.sources, path: plain.sources[path]},
        )

    def loaded(self, screen: ChatScreen, model: str) -> str:
        """Another model is in use: what holds for it is taken over, but for what the chat was told for itself."""
        own = {path for path in FIELDS if self.own(screen.session, path) is not None}
        self._model = model
        return self._take(screen, self._settle(self.asked), f"Model {model}", own)

    def own(self, session: Session, path: str) -> Any:
        """What the chat was told in place of a setting, as in the file; None if nothing."""
        section, name = path.split(".")
        if section == "sampling":
            now, then = getattr(session.sampling, name), getattr(self.settings.sampling(), name)
        elif path in ("chat.system", "chat.think"):
            now, then = session.chat.system if name == "system" else session.think, self.settings.get(path)
        elif path == "engine.model":
            now, then = self._model or None, None
        elif path == "drafting.drafter":
            now, then = session.drafter.name, self.settings.get(path)
        else:
            return None
        return None if now == then else DEFAULT if now is None else now

    def persona(self, screen: ChatScreen, name: str) -> None:
        """Take on a persona, or list them."""
        personas = self.settings.file.personas
        if not name:
            now = f"Persona: {self.settings.persona or 'none'}. "
            screen.stage.tell(now + (f"There are {', '.join(personas)}." if personas else "The settings have none."))
            return
        asked = dataclasses.replace(self.asked, persona=None if name == "none" and name not in personas else name)
        try:
            settings = self._settle(asked)
        except LookupError as error:
            screen.stage.tell(" ".join(map(str, error.args)))
            return
        self.asked = asked
        screen.stage.tell(self._take(screen, settings, f"Persona {name}"))

    def chosen(self, screen: ChatScreen, path: str, value: Any) -> str:
        """Remember what was chosen in the chat; a few words if it will not hold at the next start."""
        kind = self.settings.sources[path].kind
        place = self.settings.place(path)
        values, sources = {**self.settings.values, path: value}, self.settings.sources
        if kind in ("remembered", "default"):
            try:
                remember(path, value)
            except OSError as error:
                return f"not remembered: {files.reason(error)}"
            sources = {**sources, path: Source("remembered")}
        self.settings = dataclasses.replace(self.settings, values=values, sources=sources)
        return "" if kind in ("remembered", "default") else f"for now; {place} decides at the next start"

    # ------------------------------------------------------------------------------------------------ changes

    def _take(self, screen: ChatScreen, settings: Settings, words: str, without: Collection[str] = ()) -> str:
        before, known = self.settings, self.faults
        own = {path: before.values[path] for path in REMEMBERED if settings.sources[path].kind == "remembered"}
        settings = dataclasses.replace(settings, values={**settings.values, **own})  # another chat's choice is its own
        self.settings = settings
        changed = [path for path in differences(before, settings) if path not in without]
        self.keymap = keymap(settings)
        for path in changed:
            self._apply(screen, path)
        if any(path in _DRAFTER for path in changed):
            self._switch(screen)
        if any(path.startswith("keys.") for path in changed):
            screen.use_keys(self.keymap)
        screen.stage.standing = self.card()
        if screen.stage.standing is not None and self.faults != known:
            screen.stage.complain(screen.stage.standing)
        return self._told(words, changed)

    def _told(self, words: str, changed: list[str]) -> str:
        later = [path for path in changed if is_later(path)]
        now = [path for path in changed if path not in later and path != "chat.persona"]
        parts = [words]
        if now:
            parts[0] += ": " + ", ".join(f"{path} is {self._shown(path)}" for path in now)
        elif not later:
            parts[0] += (
                "; nothing else than before holds" if words.startswith("Persona") else ", with nothing to take over"
            )
        if later:
            parts.append(f"From the next start on: {', '.join(f'{path} {self._shown(path)}' for path in later)}")
        return ". ".join(parts) + "."

    def _shown(self, path: str) -> str:
        value = self.settings.get(path)
        text = "left to " + FIELDS[path].unset if value is None else written(value)
        return text if len(text) <= 60 else text[:59] + "…"

    def _apply(self, screen: ChatScreen, path: str) -> None:
        section, name = path.split(".")
        value, session = self.settings.get(path), screen.session
        if section == "look":
            self._look(screen, name, value)
        elif section == "sampling":
            session.sampling = msgspec.structs.replace(session.sampling, **{name: value})
        elif path == "chat.system":
            session.chat.system = value
        elif path == "chat.think":
            session.think = value
        elif path == "drafting.rule":
            session.options = dataclasses.replace(session.options, rule=value)

    def _look(self, screen: ChatScreen, name: str, value: Any) -> None:
        """Show the screen as a setting of `look` asks now."""
        if name == "theme":
            from outrider.app.chat.themes import theme_of

            screen.app.theme = theme_of(value)
        elif name == "marks":
            screen.sight.show_marks(Marks(value))
        elif name == "gutter":
            screen.sight.show_gutter(value)
        elif name == "stats":
            screen.stats.show(value)
        elif name == "details":
            screen.inspection.always(value)
        elif name == "width":
            screen.fit(screen.size.width)
        elif name in ("fps", "reduced_motion"):
            screen.stage.frames.tick = self.pace.tick
            screen.app.animation_level = "none" if self.pace.still else "full"

    @property
    def pace(self) -> Profile:
        """How often and how the screen is painted."""
        return profile(self.settings.config.look, os.environ)

    def _switch(self, screen: ChatScreen) -> None:
        drafter, session = self.settings.drafter(), screen.session
        session.options = dataclasses.replace(session.options, drafter=drafter)
        if not session.choose_drafter(drafter.name):
            screen.stage.tell(f"There is no drafter {drafter.name}. Usable here: {', '.join(session.drafters())}.")


def is_later(path: str) -> bool:
    """Whether a change of this setting holds from the next start only."""
    return path in _LATER or FIELDS[path].section in ("engine", "folders")
