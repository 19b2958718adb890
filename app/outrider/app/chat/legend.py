"""What the marks mean, in words: a line under the first reply that has some, and what a switch of them says."""

from __future__ import annotations

from outrider.app.chat.marks import ACCEPTED, CORRECTION, PASS_A, Layers, Marks
from outrider.app.chat.palette import Palette

MOST = 0.85  # share of accepted text from which on its marks say little

NAMES = [mode.value for mode in Marks]


def look(palette: Palette, name: str) -> str:
    """How a mark looks: `tinted`, `underlined` or `bold`."""
    style = palette.style(name)
    if style is None or style.background is not None:
        return "tinted" if style is not None and not style.bold else "bold and tinted"
    return "bold" if style.bold else "underlined"


def meaning(mode: Marks, palette: Palette) -> str:
    """What is marked now, in one line; empty if nothing is."""
    return {
        Marks.ACCEPTED: f"{look(palette, ACCEPTED)}: guessed by a drafter and accepted by the model",
        Marks.PASSES: f"{look(palette, PASS_A)} and plain in turn: what each pass of the model brought",
        Marks.CORRECTIONS: f"{look(palette, CORRECTION)}: the model's word where a guess was wrong",
        Marks.CONFIDENCE: "underlined: less than an even chance; the most unlikely stand out more",
        Marks.OFF: "",
    }[mode]


def flash(mode: Marks, palette: Palette, layers: Layers | None, other: str) -> str:
    """What a switch to `mode` says; `layers` are those of the last reply, `other` how corrections are shown."""
    words = f"Marks {mode.value}" + (f" · {meaning(mode, palette)}" if mode is not Marks.OFF else "")
    if layers is None or not len(layers):
        return words
    if mode is Marks.ACCEPTED and layers.accepted >= MOST:
        return f"Marks accepted · {100 * layers.accepted:.0f}% of the last reply; {other} shows the rest of it"
    if mode is Marks.CONFIDENCE and not layers.knows_chances:
        return "Marks confidence · not known of the last reply; it is of those to come"
    return words


def line(mode: Marks, palette: Palette, layers: Layers, key: str) -> str:
    """The line under a reply; `key` goes to other marks."""
    words = meaning(mode, palette) or "nothing is marked"
    if mode is Marks.ACCEPTED and layers.accepted >= MOST:
        words += ", nearly all of this; corrections show the rest"
    return f"{words} ({key}: other marks)"


def has_marks(mode: Marks, layers: Layers) -> bool:
    """Whether anything of a text is marked in this mode."""
    return next(layers.marks(mode, 0, len(layers)), None) is not None
