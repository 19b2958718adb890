"""Documents of every shape that a model writes for long, as tokens and as passes of a reply."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_WORDS = (
    *("the", "cache", "stores", "keys", "and", "values", "of", "every", "token", "so", "that", "attention"),
    *("need", "not", "be", "computed", "again", "model", "layer"),
)

Marked = list[tuple[str, str]]  # text and kind of a token


def _words(count: int) -> list[str]:
    draw = random.Random(7)
    return [draw.choice(_WORDS) for _ in range(count)]


def prose(count: int) -> list[str]:
    """Paragraphs of eighty words."""
    return [(" " if n % 80 else "") + word + (".\n\n" if n % 80 == 79 else "") for n, word in enumerate(_words(count))]


def paragraph(count: int) -> list[str]:
    """One paragraph."""
    return [(" " if n else "") + word for n, word in enumerate(_words(count))]


def fence(count: int) -> list[str]:
    """One block of code, eight tokens a line."""
    lead = {0: "    ", 1: " = "}
    body = [lead.get(n % 8, " ") + word + ("\n" if n % 8 == 7 else "") for n, word in enumerate(_words(count - 2))]
    return ["```python\n", *body, "\n```\n"]


def items(count: int) -> list[str]:
    """One list, eleven words an item."""
    return [
        ("- " if n % 11 == 0 else " ") + word + ("\n" if n % 11 == 10 else "") for n, word in enumerate(_words(count))
    ]


def table(count: int) -> list[str]:
    """One table of three columns, nine words a row."""
    rows = []
    for n, word in enumerate(_words(count - 1)):
        place = n % 9
        rows.append(("| " if place in (0, 3, 6) else " ") + word + (" |\n" if place == 8 else " " * (place in (2, 5))))
    return ["| a | b | c |\n|---|---|---|\n", *rows]


SHAPES: dict[str, Callable[[int], list[str]]] = {
    "prose": prose,
    "paragraph": paragraph,
    "fence": fence,
    "list": items,
    "table": table,
}


def passes(tokens: Sequence[str], width: int = 4) -> list[Marked]:
    """Tokens as passes of `width`: some accepted, then what the target said itself."""
    draw = random.Random(3)
    made: list[Marked] = []
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        accepted = draw.randint(0, len(part) - 1)
        own = draw.choice("CB")
        kinds = ["A" if n < accepted else own if n == accepted else "P" for n in range(len(part))]
        made.append(list(zip(part, kinds, strict=True)))
    return made
