"""Text for terminals, from wherever it comes: made safe, measured, cut. Loads no screen library until it measures."""

from __future__ import annotations

import re

# Control characters but newline and tab; line and paragraph separators; what turns the direction of text around, or
# shapes and annotates it unseen; halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\u206a-\u206f\ufff9-\ufffb\ud800-\udfff]"
)
_PICTURES = 0x2400  # the block of visible signs for control characters


def sanitize(text: str, *, drop: bool = False) -> str:
    """`text` with every character that a terminal could obey replaced by one that is seen, so offsets stay; or dropped."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_without if drop else _stand_in, text)


def _without(match: re.Match[str]) -> str:
    return " " if match[0] in "\u2028\u2029" else ""


def _stand_in(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0D or code in (0x2028, 0x2029):
        return " "
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def width(text: str) -> int:
    """How many columns `text` takes in a terminal."""
    from rich.cells import cell_len

    return len(text) if text.isascii() and text.isprintable() else cell_len(text)


def cut(text: str, room: int, end: str = "") -> str:
    """What of `text` fits into `room` columns, at least one; where some of it does not, with `end` behind the rest."""
    from rich.cells import set_cell_size

    room = max(room, 1)
    return text if width(text) <= room else set_cell_size(text, max(0, room - width(end))).rstrip() + end


def padded(text: str, room: int, *, right: bool = False) -> str:
    """`text` with spaces up to `room` columns; `right` puts them before it."""
    pad = " " * (room - width(text))
    return pad + text if right else text + pad
