"""What of the screen is shown at which size. Knows no widgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.app.chat.transcript import side_space

BESIDE, STRIP = 110, 80  # columns from which a panel stands beside the text, and figures above the prompt
HEADER, LEAST = 24, 12  # rows from which there is a header, and a strip
SIDE = 39  # columns of a panel
KEYS = 4  # in the status line where the figures have no strip
Mode = Literal["chip", "strip", "panel"]
MODES: tuple[Mode, ...] = ("chip", "strip", "panel")  # in the order in which they follow each other


@dataclass(frozen=True, slots=True)
class Plan:
    """`left` and `right`: free cells on both sides of the column of text, a panel beside it included."""

    header: bool
    strip: bool
    side: Literal["", "beside", "over"]
    left: int
    right: int


def plan(size: tuple[int, int], column: int, mode: Mode, *, over: bool = False, pane: bool = False) -> Plan:
    """For a window of so many columns and rows. `over`: the figures were asked for where they have no place; `pane`: something
    else wants to stand beside the text."""
    width, height = size
    beside = width >= BESIDE and (pane or mode == "panel")
    side: Literal["", "beside", "over"] = "beside" if beside else "over" if over and width < BESIDE else ""
    wanted = mode == "strip" or (mode == "panel" and width < BESIDE)
    strip = wanted and width >= STRIP and height >= LEAST and side != "over"
    room = width - SIDE if beside else width
    free = side_space(room, column)
    return Plan(height >= HEADER, strip, side, free, free + width - room)


def following(width: int, mode: Mode, *, over: bool) -> tuple[Mode, bool]:
    """What comes after a mode when one asks for the next: the mode, and whether the panel lies over the text."""
    if width >= BESIDE:
        return MODES[(MODES.index(mode) + 1) % len(MODES)], False
    if width < STRIP:
        return mode, not over
    if over:
        return "chip", False
    return ("strip", False) if mode == "chip" else (mode, True)
