"""The themes of the chat, from colours that stay apart under the common kinds of colour blindness."""

from __future__ import annotations

import os

from textual.theme import Theme

DARK = Theme(
    name="outrider-dark",
    primary="#56B4E9",
    secondary="#009E73",
    accent="#CC79A7",
    warning="#E69F00",
    error="#D55E00",
    success="#2FB58C",
    foreground="#D8DEE4",
    background="#14181D",
    surface="#1A1F25",
    panel="#222931",
    dark=True,
)
LIGHT = Theme(
    name="outrider-light",
    primary="#0072B2",
    secondary="#00785A",
    accent="#A8487F",
    warning="#9A6A00",
    error="#B34700",
    success="#00785A",
    foreground="#22272E",
    background="#FBFAF7",
    surface="#F3F1EC",
    panel="#E9E6DF",
    dark=False,
)
CONTRAST = Theme(
    name="outrider-contrast",
    primary="#7CD4FF",
    secondary="#5EEBC0",
    accent="#FFB3E0",
    warning="#FFC04D",
    error="#FF9E66",
    success="#5EEBC0",
    foreground="#FFFFFF",
    background="#000000",
    surface="#000000",
    panel="#1C1C1C",
    dark=True,
)


def first_theme() -> str:
    """Light if the terminal says that its background is light, else dark."""
    ground = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT.name if ground in ("7", "15") else DARK.name


def theme_of(setting: str) -> str:
    """The name of the theme that a setting asks for."""
    return {"auto": first_theme(), "dark": DARK.name, "light": LIGHT.name, "contrast": CONTRAST.name}.get(
        setting, setting
    )
