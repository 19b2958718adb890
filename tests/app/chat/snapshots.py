"""Whole screens as text: what stands where, and how each cell looks, in files that a person can read and compare."""

from __future__ import annotations

import difflib
import os
import string
from pathlib import Path

import pytest
from chat_support import Ride
from rich.style import Style

FOLDER = Path(__file__).parents[2] / "data" / "snapshots"
REWRITE = "OUTRIDER_SNAPSHOTS"  # `=write` takes the screens of now as right


def look(style: Style | None) -> str:
    """A style in words."""
    if style is None:
        return "plain"
    flags = ("bold", "dim", "italic", "underline", "underline2", "reverse", "strike")
    words = [flag for flag in flags if getattr(style, flag)]
    colors = [style.color.name if style.color else "default", style.bgcolor.name if style.bgcolor else "default"]
    return " on ".join(colors) + "".join(f" {word}" for word in words)


def dump(chat: Ride) -> str:
    """The screen that is shown: its lines, a letter for the look of each cell, and what the letters mean."""
    lines, letters, looks = [], [], {}
    names = iter("." + string.ascii_lowercase + string.ascii_uppercase + string.digits)
    for strip in chat.app.screen._compositor.render_strips():
        lines.append(strip.text.rstrip())
        line = ""
        for segment in strip:
            words = look(segment.style)
            if words not in looks:
                looks[words] = next(names)
            line += looks[words] * segment.cell_length
        letters.append(line.rstrip("."))
    legend = [f"{letter}  {words}" for words, letter in looks.items()]
    width = max(len(line) for line in lines)
    return "\n".join([*lines, "=" * width, *letters, "=" * width, *legend]) + "\n"


def same(name: str, chat: Ride) -> None:
    """Compare the screen with its file."""
    path, shown = FOLDER / f"{name}.txt", dump(chat)
    if os.environ.get(REWRITE) == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown, "utf-8")
        return
    kept = path.read_text("utf-8") if path.exists() else ""
    if kept != shown:
        lines = difflib.unified_diff(kept.splitlines(), shown.splitlines(), str(path.name), "now", lineterm="")
        pytest.fail(
            f"the screen is another one; {REWRITE}=write takes it as right:\n" + "\n".join(lines), pytrace=False
        )
