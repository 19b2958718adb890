"""Records the chat on the starter model: an asciinema cast, an animated SVG for the README, and a still one.

    PYTHONPATH=tests/support python benchmarks/peers/record_demo.py [--out FOLDER] [--models FOLDER] [--prompt TEXT] [--seed N]

Writes demo.cast, demo.svg and chat.svg. It needs the starter model in the local library, or in the one that `--models` names.
Pictures have the size 100 by 30; what changes from one recording to the next is how fast the machine was.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len
from terminal import PLAIN, Look, Screen, Terminal

SIZE = (100, 30)
PROMPT = "Explain how a rainbow forms, as a short list."
ASK_AGAIN = "Write a small Python function that counts the words in a text."
_GAP = 1.2  # seconds that nothing may happen
_FRAME = 0.09  # seconds between two pictures at least
_END = 4.0  # seconds that the last picture stays
_WIDTH, _HEIGHT, _BASE = 8.4, 18, 13.5  # pixels of a cell, and of its base line
_ANSI = ("#1d1f21", "#cc6666", "#b5bd68", "#f0c674", "#81a2be", "#b294bb", "#8abeb7", "#c5c8c6")
_BRIGHT = ("#666666", "#d54e53", "#b9ca4a", "#e7c547", "#7aa6da", "#c397d8", "#70c0b1", "#eaeaea")

Rows = list[list[tuple[str, Look]]]


@dataclass
class Film:
    """What a terminal wrote, and when."""

    parts: list[tuple[float, bytes]] = field(default_factory=list)

    def take(self, moment: float, data: bytes) -> None:
        """More of it."""
        self.parts.append((moment, data))

    def cut(self, start: float) -> list[tuple[float, bytes]]:
        """From the moment `start` on, which is 0, and with long pauses made short; what came before is at once."""
        before = b"".join(data for moment, data in self.parts if moment < start)
        made, clock, last = [(0.0, before)], 0.0, start
        for moment, data in self.parts:
            if moment >= start:
                clock += min(_GAP, moment - last)
                last = moment
                made.append((clock, data))
        return made


def record(command: list[str], env: dict[str, str], prompts: list[str]) -> list[tuple[float, bytes]]:
    """Ask these in a chat, as a person would type them."""
    film = Film()
    with Terminal(command, size=SIZE, env=env, watch=film.take) as terminal:
        terminal.until("ready", 120)
        terminal.rest(1.5)
        start = time.monotonic()
        for prompt in prompts:
            for letter in prompt:
                terminal.type(letter)
                terminal.rest(0.035)
            terminal.rest(0.4)
            terminal.type("\r")
            terminal.until(lambda: "writing" in terminal.screen.lines()[-1], 120)
            terminal.until(lambda: "ready" in terminal.screen.lines()[-1], 300)
            terminal.rest(1.0)
        parts = film.cut(start)
        terminal.type("\x11")
        terminal.ends()
    return parts


def cast(parts: list[tuple[float, bytes]], title: str) -> str:
    """The recording in the format of asciinema, version 2."""
    head = {"version": 2, "width": SIZE[0], "height": SIZE[1], "title": title, "env": {"TERM": "xterm-256color"}}
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    lines = [json.dumps([round(at, 3), "o", text]) for at, data in parts if (text := decode(data))]
    return "\n".join([json.dumps(head), *lines]) + "\n"


def frames(parts: list[tuple[float, bytes]]) -> list[tuple[float, Rows]]:
    """The pictures that differ, each with the moment it comes."""
    screen = Screen(*SIZE)
    made: list[tuple[float, Rows]] = []
    for number, (at, data) in enumerate(parts):
        screen.feed(data)
        follows = parts[number + 1][0] if number + 1 < len(parts) else at + 1
        if follows - at < 0.01:  # the rest of the same frame
            continue
        rows = screen.rows()
        if made and rows == made[-1][1]:
            continue
        if made and at - made[-1][0] < _FRAME:
            made[-1] = made[-1][0], rows
        else:
            made.append((at, rows))
    return made


# ---------------------------------------------------------------------------------------------------- pictures


def _color(value: str, otherwise: str) -> str:
    if not value.isdecimal():
        return value or otherwise
    number = int(value)
    if number < 16:
        return (_ANSI + _BRIGHT)[number]
    if number >= 232:
        return f"#{(8 + 10 * (number - 232)):02x}" * 1 + f"{(8 + 10 * (number - 232)):02x}" * 2
    levels = (0, 95, 135, 175, 215, 255)
    red, rest = divmod(number - 16, 36)
    return "#" + "".join(f"{levels[part]:02x}" for part in (red, *divmod(rest, 6)))


def _line(row: list[tuple[str, Look]], ground: str, ink: str) -> str:
    shapes, x = [], 0
    for look, cells in groupby(row, key=lambda cell: cell[1]):
        text = "".join(char for char, _ in cells)
        width = cell_len(text)
        front, back = _color(look.fg, ink), _color(look.bg, ground)
        if look.reverse:
            front, back = back, front
        if back != ground:
            shapes.append(f'<rect x="{x * _WIDTH:.1f}" width="{width * _WIDTH:.1f}" height="{_HEIGHT}" fill="{back}"/>')
        lead = len(text) - len(text.lstrip(" "))
        bare = text.strip(" ")
        if bare:
            left = (x + lead) * _WIDTH
            more = _style(look) + (f' fill="{front}"' if front != ink else "")
            length = f' textLength="{cell_len(bare) * _WIDTH:.1f}"'
            shapes.append(f'<text x="{left:.1f}" y="{_BASE}"{length}{more}>{escape(bare, quote=False)}</text>')
        x += width
    return "".join(shapes)


def _style(look: Look) -> str:
    made = ' font-weight="bold"' if look.bold else ""
    made += ' font-style="italic"' if look.italic else ""
    made += ' opacity=".6"' if look.dim else ""
    lines = " ".join(name for name, on in (("underline", look.underline), ("line-through", look.strike)) if on)
    return made + (f' text-decoration="{lines}"' if lines else "")


def _grounds(rows: Rows) -> tuple[str, str]:
    """The background of most cells and the colour of most letters."""
    looks = [look for row in rows for char, look in row]
    back = max({look.bg for look in looks}, key=lambda bg: sum(look.bg == bg for look in looks))
    letters = [look for row in rows for char, look in row if char.strip()] or [PLAIN]
    ink = max({look.fg for look in letters}, key=lambda fg: sum(look.fg == fg for look in letters))
    return _color(back, "#14181d"), _color(ink, "#d8dee4")


def _page(title: str, ground: str, ink: str, style: str, body: Iterator[str]) -> str:
    width, height = round(SIZE[0] * _WIDTH + 24), SIZE[1] * _HEIGHT + 24
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
    fonts = "font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre"
    sheet = f"<style>text{{{fonts}}}{style}</style>"
    frame = f'<rect width="100%" height="100%" rx="8" fill="{ground}"/>'
    inner = f'<svg x="12" y="12" width="{SIZE[0] * _WIDTH:.1f}" height="{SIZE[1] * _HEIGHT}" fill="{ink}">'
    return "\n".join([head, f"<title>{escape(title)}</title>", sheet, frame, inner, *body, "</svg></svg>\n"])


def still(rows: Rows, title: str) -> str:
    """One picture."""
    ground, ink = _grounds(rows)
    lines = (f'<g transform="translate(0 {y * _HEIGHT})">{_line(row, ground, ink)}</g>' for y, row in enumerate(rows))
    return _page(title, ground, ink, "", lines)


def animated(film: list[tuple[float, Rows]], title: str) -> str:
    """All pictures side by side behind a window that jumps from one to the next; equal lines are drawn once."""
    ground, ink = _grounds(film[-1][1])
    total, step = film[-1][0] + _END, SIZE[0] * _WIDTH
    known: dict[str, str] = {}
    reel = []
    for number, (_, rows) in enumerate(film):
        for y, row in enumerate(rows):
            line = _line(row, ground, ink)
            if line:
                name = known.setdefault(line, f"l{len(known):x}")
                reel.append(f'<use href="#{name}" x="{number * step:.0f}" y="{y * _HEIGHT}"/>')
    keys = "".join(
        f"{100 * at / total:.2f}%{{transform:translateX(-{number * step:.0f}px)}}"
        for number, (at, _) in enumerate(film)
    )
    last = f"translateX(-{(len(film) - 1) * step:.0f}px)"
    style = (
        f"@keyframes k{{{keys}100%{{transform:{last}}}}}.reel{{animation:k {total:.2f}s steps(1,end) infinite}}"
        f"@media(prefers-reduced-motion:reduce){{.reel{{animation:none;transform:{last}}}}}"
    )
    lines = [f'<g id="{name}">{line}</g>' for line, name in known.items()]
    body = ["<defs>", *lines, "</defs>", '<g class="reel">', *reel, "</g>"]
    return _page(title, ground, ink, style, iter(body))


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Record the chat on the starter model.")
    parser.add_argument("--out", type=Path, default=Path("packaging/docs"))
    parser.add_argument("--models", type=Path, help="library that holds the starter model")
    parser.add_argument("--state", type=Path, help="state folder with what was measured on this machine before")
    parser.add_argument(
        "--prompt", action="append", help=f"may be given several times; default: {PROMPT!r} and one more"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    prompts = options.prompt or [PROMPT, ASK_AGAIN]
    with tempfile.TemporaryDirectory() as home:
        env = {"OUTRIDER_HOME": home, "COLORFGBG": "", "SSH_TTY": "", "SSH_CONNECTION": ""}
        env |= {"OUTRIDER_MODELS": str(options.models.absolute())} if options.models else {}
        if options.state:
            os.symlink(options.state.absolute(), Path(home) / "state")
        outrider = [str(Path(sys.executable).with_name("outrider")), "--private"]
        sampling = ["--temperature", "0", "--seed", str(options.seed), "--max-tokens", "220"]
        parts = record([*outrider, *sampling], env, prompts)
    film = frames(parts)
    title = "A chat with the starter model: tinted words were guessed by a drafter and accepted by the model"
    options.out.mkdir(parents=True, exist_ok=True)
    made: dict[str, Callable[[], str]] = {
        "demo.cast": lambda: cast(parts, title),
        "demo.svg": lambda: animated(film, title),
        "chat.svg": lambda: still(film[-1][1], title),
    }
    for name, make in made.items():
        path = options.out / name
        path.write_text(make(), "utf-8")
        print(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    print(f"{len(film)} pictures, {film[-1][0]:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
