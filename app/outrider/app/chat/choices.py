"""What the chat is held with, chosen in words: drafter, thinking, system prompt, sampling, persona."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.app.chat.follow import Follower
from outrider.app.chat.sampling import changed_sampling, describe
from outrider.app.chat.status import one_line

if TYPE_CHECKING:
    from outrider.app.chat.screen import ChatScreen


class Choices:
    """Each takes what is typed after its command; with nothing it tells what holds."""

    def __init__(self, screen: ChatScreen, follower: Follower) -> None:
        self._screen = screen
        self._follower = follower

    def drafter(self, name: str) -> None:
        """Switch to a drafter by name, or list them."""
        names = ", ".join(self._screen.session.drafters())
        if not name:
            reply = self._screen.session.chat.last_reply()
            why = f" Last choice: {one_line(reply.meter.why)}." if reply is not None and reply.meter.why else ""
            self._screen.stage.tell(f"Drafter: {self._screen.session.drafter.name}. Usable here: {names}.{why}")
        elif not self._screen.session.choose_drafter("none" if name == "off" else name):
            self._screen.stage.tell(f"There is no drafter {name}. Usable here: {names}.")

    def thinking(self, word: str) -> None:
        """Ask for thinking or for none, or show which."""
        words: dict[str, bool | None] = {"on": True, "off": False, "auto": None}
        if word and word not in words:
            self._screen.stage.tell(f"/think takes on, off or auto, not {word}.")
            return
        if word:
            self._screen.session.think = words[word]
        now = next(name for name, think in words.items() if think is self._screen.session.think)
        self._screen.stage.tell(f"Thinking: {now}" + (", the model's own way." if now == "auto" else "."))

    def system(self, text: str) -> None:
        """Set or show the system prompt."""
        chat = self._screen.session.chat
        if text:
            chat.system = text
        self._screen.stage.tell(f"System prompt: {chat.system}" if chat.system else "There is no system prompt.")

    def sampling(self, words: str) -> None:
        """Set or show sampling options."""
        try:
            changed = changed_sampling(self._screen.session.sampling, words)
        except ValueError as error:
            self._screen.stage.tell(str(error))
            return
        self._screen.session.sampling = changed
        defaults = self._screen.session.loaded.sampling if self._screen.session.loaded else None
        self._screen.stage.tell(describe(changed, defaults))

    def persona(self, name: str) -> None:
        """Take on a persona of the settings, or list them."""
        self._follower.persona(self._screen, name)
