"""Where the lines of a text begin and end once it is wrapped, the way the screen wraps it."""

from __future__ import annotations

from itertools import pairwise

from rich._wrap import divide_line

Lines = list[tuple[int, int]]  # ranges of the text, one for each line that is seen
_TAB = 8


def wrapped(text: str, width: int, *, fold: bool = True) -> Lines:
    """The lines of `text` in so many cells; `width` 0 means that none is wrapped. `fold`: words too long are parted."""
    lines: Lines = []
    at = 0
    for line in text.split("\n"):
        shown, places = (line, None) if "\t" not in line else _expanded(line)
        cuts = [0, *(divide_line(shown, width, fold=fold) if width else ()), len(shown)]
        if places is not None:
            cuts = [places[cut] for cut in cuts]
        lines += [(at + begin, at + end) for begin, end in pairwise(cuts)]
        at += len(line) + 1
    return lines


def line_at(lines: Lines, place: int) -> int:
    """Number of the line in which a place of the text is."""
    return next((number for number, (_, end) in enumerate(lines) if place < end), max(0, len(lines) - 1))


def _expanded(line: str) -> tuple[str, list[int]]:
    """A line without tabs, and which character of `line` each place of it belongs to, the end included."""
    shown, places = "", list[int]()
    for index, char in enumerate(line):
        made = " " * (_TAB - len(shown) % _TAB) if char == "\t" else char
        shown += made
        places += [index] * len(made)
    return shown, [*places, len(line)]
