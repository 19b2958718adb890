"""Control tokens that are spelt out in a message: text like any other. Only those that a chat template writes itself count.

While a template runs, a stand-in takes the place of each of them: one private-use character that is in no message. Whoever
makes tokens of the rendered text writes what it stands for as ordinary text, see `Tokenizer.encode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

_FIRST, _LAST = 0x100000, 0x10FFFD  # private-use characters of the last plane
_SHORTEST = 3  # characters; what is shorter, or a mere word or blank, may be meant in any text


class Rendered(str):
    """A rendered chat. Every character that is a key of `foreign` stands for text of a message that must not become control
    tokens; `shown` has that text in its place."""

    __slots__ = ("foreign",)
    foreign: Mapping[str, str]

    def __new__(cls, text: str, foreign: Mapping[str, str] | None = None) -> Rendered:
        """`foreign` without what does not occur in `text`."""
        made = super().__new__(cls, text)
        made.foreign = {sign: written for sign, written in (foreign or {}).items() if sign in text}
        return made

    @property
    def shown(self) -> str:
        """As a person would read it."""
        return written_out(self, self.foreign)


def written_out(text: str, foreign: Mapping[str, str]) -> str:
    """`text` with what its stand-ins stand for."""
    return str(text).translate(str.maketrans(dict(foreign)))


class Foreign:
    """Keeps messages from writing the control tokens `controls`."""

    def __init__(self, controls: Collection[str]) -> None:
        self._controls = frozenset(filter(_told, controls))
        self._lengths = sorted(
            {len(text) for text in self._controls}, reverse=True
        )  # longest first, as they are recognised
        self._starts = {text[0] for text in self._controls}
        self._start = re.compile("|".join(map(re.escape, self._starts))) if self._starts else None

    def rendered(
        self, turns: list[dict[str, Any]], source: str, render: Callable[[list[dict[str, Any]]], str]
    ) -> Rendered:
        """`turns` through a template with that `source`, which `render` runs. Messages without a control token go in as they are.

        A template may put a control token together from parts of a message, by leaving something out between them. So it also
        renders the messages with a stand-in for each character that could begin one; if its own control tokens are others
        then, that text holds.
        """
        texts = list(_texts(turns))
        starts = sorted(sign for sign in self._starts if any(sign in text for text in texts))
        if not starts:
            return Rendered(render(turns))
        found = sorted({token for text in texts for token in self._tokens(text)})
        signs = _free([source, *texts], len(found) + len(starts))
        foreign = dict(zip(signs, [*found, *starts], strict=True))
        stand_ins = {written: sign for sign, written in foreign.items()}
        single = str.maketrans({sign: stand_ins[sign] for sign in starts})
        text = render(_changed(turns, lambda one: self._hidden(one, stand_ins)) if found else turns)
        apart = render(_changed(turns, lambda one: one.translate(single)))
        same = self._tokens(text) == self._tokens(apart)
        return Rendered(text if same else apart, foreign)

    def joined(self, opening: str, text: str) -> Rendered:
        """A text whose control tokens count in its `opening` alone."""
        found = sorted(set(self._tokens(text)))
        foreign = dict(zip(_free([opening, text], len(found)), found, strict=True))
        return Rendered(opening + self._hidden(text, {token: sign for sign, token in foreign.items()}), foreign)

    def _tokens(self, text: str) -> list[str]:
        """The control tokens in a text, in order."""
        return [text[start:end] for start, end in self._places(text)]

    def _hidden(self, text: str, stand_ins: Mapping[str, str]) -> str:
        """The text with a stand-in for each control token; what is left around them holds none."""
        parts, place = [], 0
        for start, end in self._places(text):
            parts += [text[place:start], stand_ins[text[start:end]]]
            place = end
        return "".join([*parts, text[place:]])

    def _places(self, text: str) -> Iterator[tuple[int, int]]:
        place = 0
        for match in self._start.finditer(text) if self._start is not None else ():
            start = match.start()
            ends = (start + length for length in self._lengths)
            end = next((end for end in ends if text[start:end] in self._controls), 0) if start >= place else 0
            if end:
                yield start, end
                place = end


def _told(text: str) -> bool:
    """Whether a token's text is markup that nobody writes by chance."""
    return len(text) >= _SHORTEST and not text.isspace() and not text.isalnum()


def _texts(value: Any) -> Iterator[str]:
    """All texts of messages, roles apart."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if key != "role":
                yield from _texts(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Messages with all their texts changed, roles apart."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: part if key == "role" else _changed(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_changed(part, change) for part in value]
    return value


def _free(texts: Sequence[str], count: int) -> list[str]:
    """So many private-use characters that are in none of the texts."""
    taken = {sign for text in texts if not text.isascii() for sign in text}
    free = (sign for place in range(_FIRST, _LAST + 1) if (sign := chr(place)) not in taken)
    return [sign for sign, _ in zip(free, range(count), strict=False)]
