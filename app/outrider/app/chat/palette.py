"""How marks look: computed from the theme and from what the terminal can show, so that text stays readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.color import ColorSystem
from textual.app import App
from textual.color import Color, ColorParseError
from textual.style import Style

from outrider.app.chat.marks import ACCEPTED, CORRECTION, LOW, LOWEST, PASS_A, PASS_B, Marks

CONTRAST = 4.5  # of text on a tint; below it a line or weight takes over
HIT, HIT_NOW = "find-hit", "find-now"  # styles of what was searched for
VARIABLES = {  # of a theme, each a colour with its strength
    ACCEPTED: "spec-accepted",
    CORRECTION: "spec-correction",
    PASS_A: "spec-pass-a",
    PASS_B: "spec-pass-b",
    LOWEST: "spec-low",
}
_BLUE = {True: Color.parse("#56B4E9"), False: Color.parse("#0072B2")}  # by `dark`
_ORANGE = {True: Color.parse("#E69F00"), False: Color.parse("#D55E00")}
_STRENGTHS = (0.14, 0.20, 0.28)
_PLAIN = Style()


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


@dataclass(frozen=True, slots=True)
class Ground:
    """What marks are laid on. `colors` is what the terminal can show: `truecolor`, `256`, or something less."""

    dark: bool
    surface: Color
    text: Color
    colors: str | None

    def tint(self, hue: Color) -> Color | None:
        """A see-through background of this hue that can be seen and read on, None if there is none."""
        if self.colors not in ("truecolor", "256"):
            return None
        for strength in _STRENGTHS:
            ground = self.surface.blend(hue, strength)
            if contrast(self.text, ground) < CONTRAST:
                return None
            if self.colors == "truecolor" or _eight_bit(ground) != _eight_bit(self.surface):
                return hue.with_alpha(strength)
        return None

    def readable(self, tint: Color) -> bool:
        """Whether text can be read on a tint that somebody chose."""
        return self.colors is not None and contrast(self.text, self.surface + tint) >= CONTRAST


def tint(*, dark: bool, surface: Color, text: Color, colors: str | None) -> Color | None:
    """A see-through background for accepted text, or None where an underline serves better."""
    return Ground(dark, surface, text, colors).tint(_BLUE[dark])


def tints(ground: Ground, theme: Mapping[str, str]) -> dict[str, Color]:
    """The tint of each mark that has one, by the name of its style; `theme` are the theme's own variables."""
    made = {
        ACCEPTED: ground.tint(_BLUE[ground.dark]),
        CORRECTION: ground.tint(_ORANGE[ground.dark]),
        PASS_A: ground.tint(_BLUE[ground.dark]),
        LOWEST: ground.tint(_ORANGE[ground.dark]),
    }
    if any(made.values()):
        for name, variable in VARIABLES.items():
            made[name] = _own(ground, theme.get(variable, "")) or made.get(name)
    return {name: color for name, color in made.items() if color is not None}


def tints_of(app: App[Any]) -> dict[str, Color]:
    """The tints that a program's theme and its terminal allow; none without colours."""
    if app.no_color or app.native_ansi_color:
        return {}
    colors, theme = app.theme_variables, app.current_theme
    surface, text = Color.parse(colors["background"]), Color.parse(colors["foreground"])
    return tints(Ground(theme.dark, surface, text, app.console.color_system), theme.variables)


def _own(ground: Ground, written: str) -> Color | None:
    if not written:
        return None
    try:
        color = Color.parse(written)
    except ColorParseError:
        return None
    color = color.with_alpha(_STRENGTHS[0]) if color.a == 1 else color
    return color if ground.readable(color) else None


class Palette:
    """The style of each mark by name, for the widgets that show them. Shared: a change is seen by all."""

    def __init__(self) -> None:
        self.mode = Marks.ACCEPTED
        self.gutter = True
        self.ground: Color | None = None
        """The tint of accepted text, None where it is underlined."""
        self._tints: dict[str, Color] = {}
        self._styles: dict[str, Style] = {}
        self.adapt(None)

    def adapt(self, ground: Color | None, others: Mapping[str, Color] | None = None) -> None:
        """Use `ground` as the tint of accepted text and `others` by name; what has none gets a line or weight instead."""
        self.ground = ground
        self._tints = dict(others or {})
        if ground is None:
            self._tints.pop(ACCEPTED, None)
        else:
            self._tints.setdefault(PASS_A, ground)
            self._tints[ACCEPTED] = ground
        self._build()

    def show(self, mode: Marks) -> None:
        """Switch to another mode."""
        self.mode = mode

    def style(self, name: str) -> Style | None:
        """The style called `name`, None if it is none of ours."""
        return self._styles.get(name)

    @property
    def edge(self) -> Style:
        """The style of the gutter."""
        return Style(dim=True) if self.ground is None else Style(foreground=self.ground.with_alpha(0.7))

    def hit(self, now: bool) -> Style:
        """The style of what was searched for; `now`: of the hit that is looked at."""
        return self._styles[HIT_NOW if now else HIT]

    def plain(self, name: str) -> bool:
        """Whether what is marked so looks like all other text."""
        return self._styles.get(name, _PLAIN) == _PLAIN

    def _build(self) -> None:
        lines = {
            ACCEPTED: Style(underline=True),
            CORRECTION: Style(bold=True),
            PASS_A: Style(underline=True),
            PASS_B: _PLAIN,
            LOW: Style(underline2=True),
            LOWEST: Style(underline2=True, bold=True),
        }
        self._styles = {name: self._mark(name, line) for name, line in lines.items()}
        if self._tints:
            self._styles[LOW] = Style(underline=True)
        colored = bool(self._tints)
        self._styles[HIT] = (
            Style(background=_ORANGE[True].with_alpha(0.4)) if colored else Style(underline=True, bold=True)
        )
        self._styles[HIT_NOW] = Style(reverse=True, bold=True)

    def _mark(self, name: str, line: Style) -> Style:
        tint = self._tints.get(name)
        if tint is None:
            return line
        also = {CORRECTION: Style(bold=True), LOWEST: Style(underline=True)}.get(name, _PLAIN)
        return also + Style(background=tint)
