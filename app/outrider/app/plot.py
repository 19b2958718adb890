"""What pictures of measurements share: hues that tell apart on light and dark pages, safe text, one page without any script."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from outrider.app import render

# Hues that tell apart on white and on black, lighter ones for dark pages; what they colour also has its name beside it.
LIGHT = ("#2563a8", "#b4560b", "#2e7d4f", "#8a3f9b", "#a8324a", "#5b6470", "#0b7a86", "#7a6a10")
DARK = ("#79b0ee", "#f0a35e", "#7fcf9d", "#d59be3", "#f28da0", "#b4bcc6", "#63cdd8", "#d6c25a")


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """A line of words of a class of the style."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{clean(words)}</text>'


def clean(words: str) -> str:
    """Words without control characters and markup."""
    return escape(render.printable(words))


def page(size: tuple[int, int], title: str, about: str, shape: str, body: Iterable[str]) -> str:
    """The whole picture. `shape` is style of its own; class `cN` fills with hue N, `sN` draws with it."""
    width, height = size
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{clean(title)}</title>",
            f"<desc>{clean(about)}</desc>",
            _style(shape),
            '<rect class="page" width="100%" height="100%"/>',
            *body,
            "</svg>\n",
        ]
    )


def _style(shape: str) -> str:
    def colours(hues: tuple[str, ...], ink: str, quiet: str, grid: str, ground: str) -> str:
        hued = "".join(f".c{number}{{fill:{hue}}}.s{number}{{stroke:{hue}}}" for number, hue in enumerate(hues))
        words = f"text{{fill:{ink}}}.quiet{{fill:{quiet}}}.figure,.edge{{stroke:{ground}}}.page{{fill:{ground}}}"
        return f"{words}.grid{{stroke:{grid}}}.one{{stroke:{quiet}}}.range{{stroke:{ink}}}{hued}"

    light = colours(LIGHT, "#1b1f24", "#57606a", "#d0d7de", "#ffffff")
    dark = colours(DARK, "#e6edf3", "#9198a1", "#3d444d", "#0d1117")
    common = (
        "text{font:12px system-ui,sans-serif}.title{font-size:16px;font-weight:600}.group{font-weight:600}"
        ".figure{paint-order:stroke;stroke-width:3px}"
    )
    return f"<style>{common}{shape}{light}@media(prefers-color-scheme:dark){{{dark}}}</style>"
