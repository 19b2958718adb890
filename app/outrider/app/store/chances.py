"""How likely the tokens of a reply were, as a short text: for each its tenth as a digit, then its length in letters.

`9e0b-` followed by `a`: a token of four characters with a chance of 0.9 or more, one of one character with less than 0.1,
and an empty one of which nobody told. Lengths are numbers to the base of 26, `a` is 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from outrider.app.chat.marks import UNKNOWN, Layers, tenth
from outrider.app.store.records import Pass
from outrider.core.protocol import Token

_TOKEN = re.compile(r"([0-9-])([a-z]+)")
_ALL = re.compile(r"(?:[0-9-][a-z]+)*")
_BASE, _FIRST = 26, ord("a")


def write(tokens: Iterable[Token]) -> str:
    """The chances of tokens."""
    return "".join(f"{'-' if token.p is None else tenth(token.p)}{_letters(len(token.text))}" for token in tokens)


def read(text: str) -> list[tuple[int, int]]:
    """Tenth and length of each token, `UNKNOWN` for a tenth that is not known. Raises ValueError for anything else."""
    if not _ALL.fullmatch(text):
        raise ValueError(f"{text[:40]!r} are no chances such as 9e0b")
    return [(UNKNOWN if sign == "-" else int(sign), _number(letters)) for sign, letters in _TOKEN.findall(text)]


def lay(answer: Layers, thought: Layers, passes: Sequence[Pass], chances: str) -> None:
    """Tell two finished texts of a reply which pass and how likely a token each character came from."""
    tokens = iter(read(chances))
    totals = len(answer), len(thought)
    for one in passes:
        answer.add_pass(one.answer)
        thought.add_pass(one.thought)
        _lay_tokens(answer, thought, one, tokens)
    for layers, total in zip((answer, thought), totals, strict=True):
        layers.passes.cut(total)
        layers.chances.cut(total)


def _lay_tokens(answer: Layers, thought: Layers, one: Pass, tokens: Iterator[tuple[int, int]]) -> None:
    """The tokens of one pass: what it thought comes before what it said."""
    left = one.thought
    for _ in range(one.tokens):
        chance, length = next(tokens, (UNKNOWN, 0))
        layers = thought if left >= length and left else answer
        left -= length if layers is thought else 0
        layers.chances.add(chance, length)


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
