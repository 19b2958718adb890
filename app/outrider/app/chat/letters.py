"""Letters that act on a focused message or card, kept apart from text: a letter alone acts, several in a row are typing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from textual.events import Key
from textual.message import Message
from textual.screen import Screen
from textual.widget import Widget

from outrider.app.chat.actions import BY_ID, Action
from outrider.app.chat.card import Card
from outrider.app.chat.transcript import UserMessage

if TYPE_CHECKING:
    from outrider.app.chat.prompt import Prompt
    from outrider.app.chat.screen import ChatScreen

ResultT = TypeVar("ResultT")
PAUSE = 0.15  # seconds; letters that follow each other faster are typing
CAREFUL = 0.3  # seconds, for a letter that changes something: slow typing is typing too


class Burst:
    """Collects characters that follow each other quickly; `ended` gets them once no more has come.

    The end travels through the same queues as a key does, so that a key which was pressed in time is never overtaken
    by it, however busy the program is. Whoever owns a burst hands `on_burst_quiet` on to `settle`.
    """

    class Quiet(Message):
        """No key came for a while."""

        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

    def __init__(self, owner: Widget, ended: Callable[[str], None]) -> None:
        self._owner, self._ended = owner, ended
        self._count = 0
        self.text = ""

    def add(self, character: str, via: Widget, pause: float = PAUSE) -> None:
        """One more; `via` is the widget that the key went to."""
        self.text += character
        self._count += 1
        self._owner.set_timer(pause, partial(self._ring, via, self._count))

    def _ring(self, via: Widget, count: int) -> None:
        if count == self._count and self.text:
            via.app.call_later(via.post_message, self.Quiet(count))

    def settle(self, event: Quiet) -> None:
        """It has been quiet; too late if another key has come since."""
        if self.due(event):
            self._ended(self.take())

    def due(self, event: Quiet) -> bool:
        """Whether what was collected is complete."""
        return event.count == self._count and bool(self.text)

    def flush(self) -> None:
        """Another kind of key has come: wait no longer."""
        if self.text:
            self._ended(self.take())

    def take(self) -> str:
        """What was collected, which is then forgotten."""
        text, self.text = self.text, ""
        return text


class TypeThrough(Screen[ResultT]):
    """A screen over the chat without a field to type in: a letter that is a key acts alone, all other text is the prompt's.

    Signs that are keys act at once and as often as they come.
    """

    REPEATED = ""  # letters that are keys however fast they come, if another key at most is behind them

    @cached_property
    def typed(self) -> Burst:
        """Letters that may be keys or text."""
        return Burst(self, lambda _: None)

    async def on_key(self, event: Key) -> None:
        """Letters wait a moment; whatever else comes ends that."""
        letter = event.character if event.is_printable else None
        if letter and letter.isalpha() and "+" not in event.key:
            event.stop()
            self.typed.add(letter, self.focused or self)
            return
        await self._act(self.typed.take())
        if letter and event.key not in self._bindings.key_to_bindings:
            event.stop()
            self._through(letter)

    async def on_burst_quiet(self, event: Burst.Quiet) -> None:
        """No other letter has followed."""
        if self.typed.due(event):
            await self._act(self.typed.take())

    async def _act(self, letters: str) -> None:
        bound = self._bindings.key_to_bindings
        *before, last = letters or " "
        if letters and (last not in bound or any(letter not in self.REPEATED for letter in before)):
            self._through(letters)
            return
        for letter in letters:
            for binding in bound[letter]:
                await self.run_action(binding.action)

    def _through(self, text: str) -> None:
        if (prompt := self._prompt_below) is not None:
            prompt.insert(text)

    @property
    def _prompt_below(self) -> Prompt | None:
        """That of the chat beneath; a race is shown without a chat too."""
        return getattr(getattr(self.app, "chat", None), "prompt", None)


def is_message(widget: Widget | None) -> bool:
    """Whether this shows what the user or the model said."""
    return isinstance(widget, UserMessage) or hasattr(widget, "reply")


class Letters:
    """What the letters of the focused message or card do. An action that wants its letter twice waits for the second."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._burst = Burst(screen, self._act)
        self.settle = self._burst.settle
        self._target: Widget | None = None
        self.armed = ""
        """A letter that was pressed once and acts with the second press."""

    def action(self, letter: str, target: Widget | None) -> Action | None:
        """What a letter does there."""
        if isinstance(target, Card):
            told = target.letters.get(letter)
            return BY_ID[told[0]] if told else None
        return self._screen.keymap.letters().get(letter) if is_message(target) else None

    def press(self, character: str, target: Widget | None, *, plain: bool = True) -> None:
        """A printable key that went to `target`; not `plain`: with alt or the like, which is never a letter."""
        if target is not self._target:
            self.forget()
        before = self._burst.take() + self.armed
        action = self.action(character, target) if plain else None
        wanted = before in ("", character) and action is not None and (not before or action.twice)
        if not wanted or target is None or action is None:
            self.forget()
            self.type(before + character)
            return
        self._target, self.armed = target, ""
        self._burst.add(before + character, target, CAREFUL if action.changes else PAUSE)
        if before:
            self._screen.stage.status_changed()

    def other(self, key: str) -> bool:
        """A key that is no text. Whether it belonged to what was being typed."""
        text = self._burst.text
        if not text or key not in ("enter", "backspace"):
            return False
        self.forget()
        if key == "enter":
            self.type(text)
            self._screen.prompt.send()
        return True

    @property
    def waiting(self) -> bool:
        """Whether a letter waits to act, or for others."""
        return bool(self._burst.text)

    def held(self) -> str:
        """What was pressed and has not acted, which is then forgotten here."""
        text = self._burst.text + self.armed
        self.forget()
        return text

    def forget(self) -> bool:
        """Nothing is to come of what was pressed. Whether anything was."""
        pressed, self._target = self._burst.take() + self.armed, None
        if self.armed:
            self.armed = ""
            self._screen.stage.status_changed()
        return bool(pressed)

    def left(self) -> None:
        """Something lost the focus."""
        if self._target is not None and self._screen.focused is not self._target:
            self.forget()

    def type(self, text: str) -> None:
        """It was meant for the prompt."""
        self._screen.set_focus(self._screen.prompt)
        self._screen.prompt.insert(text)

    def _act(self, letters: str) -> None:
        target, screen = self._target, self._screen
        action = self.action(letters[0], target)
        if target is None or screen.focused is not target or screen.app.screen is not screen or action is None:
            self.forget()
        elif action.twice and len(letters) == 1 and not action.unavailable(screen):
            self.armed = letters
            screen.stage.status_changed()
        else:
            self.forget()
            screen.perform(action)
