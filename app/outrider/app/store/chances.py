"""Which pass brought each character of a reply and how likely it was, as a short text beside the run lengths of kinds.

`9d|5b-a/`: a pass of three characters with a chance of 0.9 or more; one of a character with a chance from 0.5 to 0.6 and one
that is empty, of which nobody told; no thought. A digit is the tenth of a chance, the letters behind it are a number of
characters to the base of 26 in which `a` is 0; the answer comes first, then behind a slash the thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outrider.app.chat.marks import UNKNOWN, Layers
from outrider.app.store.records import Pass

_RUN = re.compile(r"([0-9-])([a-z]+)")
_ALL = re.compile(r"(?:[0-9-][a-z]+|\|)*/(?:[0-9-][a-z]+|\|)*")
_BASE, _FIRST = 26, ord("a")


def write(answer: Layers, thought: Layers) -> str:
    """The passes and chances of both texts of a reply."""
    return f"{_passes(answer)}/{_passes(thought)}"


def lay(answer: Layers, thought: Layers, text: str) -> None:
    """Tell two texts that only know their kinds what `write` told. Raises ValueError for anything else."""
    check(text)
    for layers, told in zip((answer, thought), text.split("/"), strict=True):
        for one in told.split("|"):
            length = 0
            for sign, letters in _RUN.findall(one):
                layers.chances.add(UNKNOWN if sign == "-" else int(sign), _number(letters))
                length += _number(letters)
            layers.add_pass(length)
        layers.cut(len(layers))


def check(text: str) -> None:
    """Raises ValueError if `write` never writes such a text."""
    if not _ALL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} are no chances such as 9d|5b/")


def lay_passes(answer: Layers, thought: Layers, passes: Sequence[Pass]) -> None:
    """The same for a reply of which only the table of passes was kept."""
    for one in passes:
        answer.add_pass(one.answer)
        thought.add_pass(one.thought)
    for layers in (answer, thought):
        layers.cut(len(layers))


def _passes(layers: Layers) -> str:
    return "|".join(
        "".join(
            f"{'-' if run.kind == UNKNOWN else run.kind}{_letters(run.end - run.start)}"
            for run in layers.chances.between(one.start, one.end)
        )
        for one in layers.passes
    )


def _letters(number: int) -> str:
    digits = chr(_FIRST + number % _BASE)
    while number >= _BASE:
        number //= _BASE
        digits = chr(_FIRST + number % _BASE) + digits
    return digits


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = _BASE * number + ord(letter) - _FIRST
    return number
