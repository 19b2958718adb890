"""What an inline token of Markdown looks like: its text and styles, line breaks as they were written."""

from __future__ import annotations

import re

from markdown_it.token import Token
from textual.content import Content, Span
from textual.style import Style

from outrider.app.text import sanitize

PICTURE = "🖼  "  # stands for an image
_SPACES = re.compile(r"\s+")
_STYLES = {"em_open": ".em", "strong_open": ".strong", "s_open": ".s"}


def content_of(token: Token) -> Content:
    """The text of an inline token with its own styles. A soft break stays a break: a poem keeps its lines."""
    made = _Inline()
    for child in token.children or ():
        made.add(child)
    return Content("".join(made.parts), spans=made.spans)


def alt_of(token: Token) -> str:
    """The text of an image, without its markup."""
    breaks = ("softbreak", "hardbreak")
    parts = (
        "\n" if child.type in breaks else _SPACES.sub(" ", child.content) if child.type == "text" else child.content
        for child in token.children or ()
    )
    return sanitize("".join(parts))


class _Inline:
    """Collects text and spans child by child."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.spans: list[Span] = []
        self._open: list[tuple[int, Style | str]] = []
        self._at = 0

    def add(self, child: Token) -> None:
        """Append one child of the inline token."""
        kind = child.type
        if kind == "text":
            self._text(
                sanitize(_SPACES.sub(" ", child.content))
            )  # an entity may have been one that no terminal may get
        elif kind == "maths":
            self._text(child.content)
        elif kind in ("hardbreak", "softbreak"):
            self._text("\n")
        elif kind == "code_inline":
            self._whole(child.content, ".code_inline")
        elif kind == "image":
            text = alt_of(child) or sanitize(child.meta.get("shown", ""))
            self._whole(PICTURE + text, _link(child.attrs.get("src", "")))
        elif kind in _STYLES:
            self._open.append((self._at, _STYLES[kind]))
        elif kind == "link_open":
            self._open.append((self._at, _link(child.attrs.get("href", ""))))
            self._text(sanitize(child.meta.get("shown", "")))
        elif kind.endswith("_close") and self._open:
            start, style = self._open.pop()
            self.spans.append(Span(start, self._at, style))

    def _text(self, text: str) -> None:
        self.parts.append(text)
        self._at += len(text)

    def _whole(self, text: str, style: Style | str) -> None:
        start = self._at
        self._text(text)
        self.spans.append(Span(start, self._at, style))


def _link(target: object) -> Style:
    return Style.from_meta({"@click": f"link({target!r})"})
