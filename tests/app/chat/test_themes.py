"""Our own themes can be read: text of every meaning on every ground."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.theme import Theme

from outrider.app.chat.palette import contrast
from outrider.app.chat.themes import CONTRAST, DARK, LIGHT

TEXTS = (
    "foreground",
    "text",
    "text-muted",
    "text-primary",
    "text-success",
    "text-warning",
    "text-error",
    "text-accent",
)


@pytest.mark.parametrize(("theme", "least"), [(DARK, 4.5), (LIGHT, 4.5), (CONTRAST, 6.5)])
def test_text_stands_out(theme: Theme, least: float) -> None:
    colors = theme.to_color_system().generate()
    for ground in (Color.parse(colors[name]) for name in ("background", "surface", "panel")):
        for name in TEXTS:
            told = colors[name]
            share = float(told.removeprefix("auto").rstrip("%")) / 100 if told.startswith("auto") else 0.0
            text = ground + (ground.get_contrast_text(share) if share else Color.parse(told))
            assert contrast(text, ground) >= least, f"{name} on {ground.hex}"
