"""Lists that are asked for and stand above the prompt: earlier prompts, waiting messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from outrider.app.chat.input.attach import label
from outrider.app.chat.input.candidate import Candidate, Entry, Menu

if TYPE_CHECKING:
    from outrider.app.chat.prompt import Prompt
    from outrider.app.chat.talk import Turn

_SHOWN = 200


class Picking(Protocol):
    """One such list."""

    title: str

    def entries(self) -> list[Entry]:
        """What is there to choose from now."""
        ...

    def key(self, name: str, menu: Menu) -> bool:
        """Take a key of its own."""
        ...

    def take(self, entry: Entry | None) -> None:
        """This one was chosen, None where there was nothing to choose."""
        ...

    def leave(self) -> None:
        """Nothing was chosen."""
        ...


def found(query: str, prompts: Iterable[str]) -> list[Entry]:
    """Prompts, the newest first, that have all words of the query, with the places of the words in them."""
    words = query.casefold().split()
    entries: list[Entry] = []
    for text in prompts:
        if len(entries) >= _SHOWN:
            break
        have = text.casefold()
        if all(word in have for word in words):
            line = have.replace("\n", " ") if len(have) == len(text) else ""
            places = {at for word in words for at in _places(line, word)}
            entries.append(Entry(Candidate(text), tuple(sorted(places))))
    return entries


def _places(line: str, word: str) -> range:
    at = line.find(word)
    return range(at, at + len(word)) if at >= 0 else range(0)


class Searching:
    """Everything that was sent; what stands in the prompt is searched for."""

    title = "search what you sent · enter takes · ctrl+r older · esc back"

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._draft = prompt.text
        self._prompts: list[str] = []

    def add(self, prompts: Sequence[str]) -> None:
        """What the store knows, oldest first."""
        self._prompts = list(prompts)[::-1]

    def entries(self) -> list[Entry]:
        """What fits, newest first."""
        return found(self._prompt.text, self._prompts)

    def key(self, name: str, menu: Menu) -> bool:
        """All keys are the prompt's."""
        return False

    def take(self, entry: Entry | None) -> None:
        """Into the prompt with it; what was typed there was only to find it."""
        self._prompt.put(entry.candidate.text if entry else self._draft)

    def leave(self) -> None:
        """What stood there before comes back."""
        self._prompt.put(self._draft)


class Waiting:
    """Messages that wait, in the order in which they go out."""

    title = "waiting · enter edits · delete removes · esc back"

    def __init__(self, queue: Sequence[Turn], edit: Callable[[Turn], object], drop: Callable[[Turn], object]) -> None:
        self._queue, self._edit, self._drop = queue, edit, drop

    def entries(self) -> list[Entry]:
        """One for each."""
        files = [", ".join(map(label, turn.attachments)) for turn in self._queue]
        texts = [turn.text or "attachments alone" for turn in self._queue]
        return [
            Entry(Candidate(f"{number}. {text}", title))
            for number, (text, title) in enumerate(zip(texts, files, strict=True), 1)
        ]

    def key(self, name: str, menu: Menu) -> bool:
        """Remove the chosen one."""
        if name not in ("delete", "backspace") or menu.at >= len(self._queue):
            return False
        self._drop(self._queue[menu.at])
        return True

    def take(self, entry: Entry | None) -> None:
        """Edit it."""
        places = [place for place, one in enumerate(self.entries()) if one == entry]
        if places:
            self._edit(self._queue[places[0]])

    def leave(self) -> None:
        """They wait on."""
