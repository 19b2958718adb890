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
        told = sorted(filter(_told, controls), key=len, reverse=True)
        self._controls = told  # longest first, as they are recognised
        self._pattern = re.compile("|".join(map(re.escape, told))) if told else None
        self._starts = {text[0] for text in told}

    def rendered(
        self, turns: list[dict[str, Any]], source: str, render: Callable[[list[dict[str, Any]]], str]
    ) -> Rendered:
        """`turns` through a template with that `source`, which `render` runs. Messages without a control token go in as they are.

        A template may put a control token together from parts of a message, by leaving something out between them. So it also
        renders the messages with a stand-in for each character that could begin one; if its own control tokens are others
        then, that text holds.
        """
        texts = list(_texts(turns))
        starts = [sign for sign in sorted(self._starts) if any(sign in text for text in texts)]
        if self._pattern is None or not starts:
            return Rendered(render(turns))
        found = [text for text in self._controls if any(text in one for one in texts)]
        signs = _free([source, *texts], len(found) + len(starts))
        foreign = dict(zip(signs, [*found, *starts], strict=True))
        stand_ins = {written: sign for sign, written in foreign.items()}
        text = render(_replaced(turns, {one: stand_ins[one] for one in found}) if found else turns)
        apart = render(_replaced(turns, {one: stand_ins[one] for one in starts}))
        same = self._pattern.findall(text) == self._pattern.findall(apart)
        return Rendered(text if same else apart, foreign)

    def joined(self, opening: str, text: str) -> Rendered:
        """A text whose control tokens count in its `opening` alone."""
        found = [one for one in self._controls if one in text]
        foreign = dict(zip(_free([opening, text], len(found)), found, strict=True))
        return Rendered(opening + _replaced(text, {one: sign for sign, one in foreign.items()}), foreign)


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


def _replaced(value: Any, stand_ins: Mapping[str, str]) -> Any:
    """The same with stand-ins; of texts that contain each other the longer ones come first."""
    if isinstance(value, str):
        for text, sign in stand_ins.items():
            value = value.replace(text, sign)
        return value
    if isinstance(value, Mapping):
        return {key: part if key == "role" else _replaced(part, stand_ins) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_replaced(part, stand_ins) for part in value]
    return value


def _free(texts: Sequence[str], count: int) -> list[str]:
    """So many private-use characters that are in none of the texts."""
    taken = {sign for text in texts if not text.isascii() for sign in text}
    free = (sign for place in range(_FIRST, _LAST + 1) if (sign := chr(place)) not in taken)
    return [sign for sign, _ in zip(free, range(count), strict=False)]
