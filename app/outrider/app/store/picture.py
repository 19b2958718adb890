"""A chat as one SVG picture: lines of equal letters, accepted words on a tint, no script, no fonts of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from outrider.app.chat.input.attach import label as file_label
from outrider.app.render import cells
from outrider.app.store.exports import Said, moment, one_line, said
from outrider.app.store.records import Whole

_COLUMNS = 88  # letters of a line
_CELL, _LINE, _SIZE = 8.4, 20, 14  # pixels
_LEFT, _TOP = 24, 36
_MOST = 20_000  # lines; a picture of more opens nowhere
_NOT_XML = re.compile("[\ufffe\uffff\ufdd0-\ufdef]")
_WORDS = re.compile(r"\S+|\s")
_STYLE = """<style>
.page { fill: #fff } text { fill: #1c1c1c; font: 14px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
.who { font-weight: bold } .dim { fill: #5f6368 } .c { fill: #a34700; font-weight: bold } .a { fill: #0072b2; fill-opacity: .16 }
@media (prefers-color-scheme: dark) { .page { fill: #16181d } text { fill: #e6e6e6 } .dim { fill: #9aa0a6 }
.c { fill: #f0a94b } .a { fill: #56b4e9; fill-opacity: .22 } }
</style>"""


@dataclass(frozen=True, slots=True)
class _Part:
    """Neighbouring letters of one look."""

    text: str
    kind: str  # of a token, or a class of the style sheet


def to_svg(whole: Whole) -> str:
    """The branch that is shown."""
    lines: list[list[_Part]] = [[_Part(one_line(whole.chat.title), "who")]]
    about = f"{one_line(whole.chat.settings.model.model)} · {moment(whole.chat.created)}"
    lines += [[_Part(about, "dim")], []]
    for message in said(whole):
        lines += _lines(message)
    if len(lines) > _MOST:
        lines = [*lines[:_MOST], [_Part("… the rest is too long for a picture", "dim")]]
    height = _TOP + len(lines) * _LINE + _TOP // 2
    width = round(2 * _LEFT + _COLUMNS * _CELL)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    title = f"<title>{_clean(one_line(whole.chat.title))}</title>"
    body = [shape for number, line in enumerate(lines) for shape in _draw(line, _TOP + number * _LINE)]
    return "\n".join([head, title, _STYLE, '<rect class="page" width="100%" height="100%"/>', *body, "</svg>\n"])


def _lines(message: Said) -> Iterator[list[_Part]]:
    yield [_Part(message.who, "who")]
    if message.thought:
        label = f"thought, {message.thought_figures}" if message.thought_figures else "thought"
        yield [_Part(f"({label})", "dim")]
    for one in message.attachments:
        yield [_Part(f"({file_label(one)})", "dim")]
    parts = [_Part(message.text[run.start : run.end], run.kind) for run in message.runs]
    parts.append(_Part(message.text[len(message.runs) :], "P"))
    yield from _wrapped(parts)
    if message.footer:
        yield [_Part(message.footer, "dim")]
    yield []


def _wrapped(parts: list[_Part]) -> Iterator[list[_Part]]:
    """Lines of at most `_COLUMNS` cells, broken between words where they have any."""
    line: list[_Part] = []
    used = 0
    for part in parts:
        for word in _WORDS.findall(part.text.expandtabs(4)):
            if word == "\n":
                yield line
                line, used = [], 0
                continue
            if used and used + cells(word) > _COLUMNS:
                yield line
                line, used = [], 0
            for piece in _pieces(word):
                if used + cells(piece) > _COLUMNS:
                    yield line
                    line, used = [], 0
                line.append(_Part(piece, part.kind))
                used += cells(piece)
    if line:
        yield line


def _pieces(word: str) -> Iterator[str]:
    """A word cut where it is wider than a line."""
    while cells(word) > _COLUMNS:
        end = _COLUMNS
        while cells(word[:end]) > _COLUMNS:
            end -= 1
        yield word[:end]
        word = word[end:]
    yield word


def _draw(line: list[_Part], y: int) -> Iterator[str]:
    x = float(_LEFT)
    for part in _joined(line):
        width = cells(part.text) * _CELL
        if part.kind == "A":
            yield f'<rect class="a" x="{x:.1f}" y="{y - _SIZE}" width="{width:.1f}" height="{_LINE - 1}"/>'
        name = {"who": ' class="who"', "dim": ' class="dim"', "C": ' class="c"'}.get(part.kind, "")
        if part.text.strip():
            fit = f' textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs"' if part.kind in "ABCP" else ""
            yield f'<text{name} x="{x:.1f}" y="{y}" xml:space="preserve"{fit}>{_clean(part.text)}</text>'
        x += width


def _joined(line: list[_Part]) -> list[_Part]:
    joined: list[_Part] = []
    for part in line:
        if joined and joined[-1].kind == part.kind:
            joined[-1] = _Part(joined[-1].text + part.text, part.kind)
        else:
            joined.append(part)
    return joined


def _clean(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
