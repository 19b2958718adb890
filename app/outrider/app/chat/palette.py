"""How marks look: computed from the theme and from what the terminal can show, so that text stays readable."""

from __future__ import annotations

from rich.color import ColorSystem
from textual.color import Color
from textual.style import Style

from outrider.app.chat.marks import Marks
from outrider.core.protocol import Kind

CONTRAST = 4.5  # of text on a tint; below it an underline takes over
_TINTS = {True: Color.parse("#56B4E9"), False: Color.parse("#0072B2")}  # by `dark`
_STRENGTHS = (0.14, 0.20, 0.28)
_PLAIN = Style()
STYLE_NAMES: dict[Kind, str] = {"A": "mark-accepted", "C": "mark-correction"}


def _luminance(color: Color) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel) for channel in color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio of two opaque colours, 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _eight_bit(color: Color) -> int | None:
    return color.rich_color.downgrade(ColorSystem.EIGHT_BIT).number


def tint(*, dark: bool, surface: Color, text: Color, colors: str | None) -> Color | None:
    """A see-through background for accepted text, or None where an underline serves better.

    `colors` is what the terminal can show: `truecolor`, `256`, or something less.
    """
    if colors not in ("truecolor", "256"):
        return None
    hue = _TINTS[dark]
    for strength in _STRENGTHS:
        ground = surface.blend(hue, strength)
        if contrast(text, ground) < CONTRAST:
            return None
        if colors == "truecolor" or _eight_bit(ground) != _eight_bit(surface):
            return hue.with_alpha(strength)
    return None


class Palette:
    """The style of each mark by name, for the widgets that show them. Shared: a change is seen by all."""

    def __init__(self) -> None:
        self.mode = Marks.ACCEPTED
        self.ground: Color | None = None
        self._styles: dict[str, Style] = {}
        self._build()

    def adapt(self, ground: Color | None) -> None:
        """Use `ground` as the tint; None means an underline instead."""
        self.ground = ground
        self._build()

    def show(self, mode: Marks) -> None:
        """Switch to another mode."""
        self.mode = mode
        self._build()

    def style(self, name: str) -> Style | None:
        """The style called `name`, None if it is none of ours."""
        return self._styles.get(name)

    def _build(self) -> None:
        self._styles = dict.fromkeys(STYLE_NAMES.values(), _PLAIN)
        if self.mode is Marks.ACCEPTED:
            accepted = Style(underline=True) if self.ground is None else Style(background=self.ground)
            self._styles[STYLE_NAMES["A"]] = accepted
