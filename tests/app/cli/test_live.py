"""The writer that renders an answer in a terminal while it comes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest

from outrider.app.chat.blocks import Scanner
from outrider.app.live import LiveWriter
from outrider.app.markdown import Lines, shown
from outrider.core.base.protocol import Kind, Token

SGR = re.compile(r"\x1b\[([0-9;]*)m")
TEXT = """# Title

Some **bold *both*** text with `code` and a [link](http://x.y) that is so long that it wraps somewhere past the right edge.
A second line of it.

- one
- two
  1. inner
  2. inner b
- three

| a | b |
|:--|--:|
| 1 | a cell that is long |
| 2 | x |

```python
def f():
\treturn 1
```

> quote
> more

5. five

6. six

***
The *end*.
"""
SEEN = """Title

Some bold both text with code and a link <http://x.y> that is so long that it
wraps somewhere past the right edge.
A second line of it.

 • one
 • two
    1. inner
    2. inner b
 • three

a │ b
──┼────────────────────
1 │ a cell that is long
2 │ x

```python
def f():
    return 1
```

│ quote
│ more

 5. five

 6. six

────────────────────────────────────────

The end.
"""


class Screen(io.StringIO):
    """A terminal that knows what the writer uses: returns, cursor up, clear below, line feeds."""

    def __init__(self, height: int = 24) -> None:
        super().__init__()
        self.lines, self.at, self.column, self.height = [""], 0, 0, height

    def write(self, text: str) -> int:
        """Show it."""
        for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            self._take(part)
        return len(text)

    def _take(self, part: str) -> None:
        if part == "\r":
            self.column = 0
        elif part == "\n":
            self.at, self.column = self.at + 1, 0
            self.lines += [""] * (self.at + 1 - len(self.lines))
        elif part[0] == "\x1b" and part.endswith("A"):
            self.at -= int(part[2:-1])
            assert self.at >= max(0, len(self.lines) - self.height), "the cursor would leave the screen"
        elif part[0] == "\x1b" and part.endswith("J"):
            self.lines[self.at :] = [self.lines[self.at][: self.column]]
        elif part[0] != "\x1b":
            line = self.lines[self.at].ljust(self.column)
            self.lines[self.at] = line[: self.column] + part + line[self.column + len(part) :]
            self.column += len(part)

    def seen(self) -> str:
        """All lines."""
        return "\n".join(line.rstrip() for line in self.lines)


def words(text: str, size: int) -> Iterator[list[Token]]:
    """Passes of `size` tokens, accepted and plain in turn."""
    kinds: tuple[Kind, ...] = ("A", "P")
    tokens = [Token(1, word, kinds[n % 2]) for n, word in enumerate(re.findall(r"\s*\w+|\s+$|\W", text))]
    for at in range(0, len(tokens), size):
        yield tokens[at : at + size]


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_is_seen_in_the_end_does_not_depend_on_how_it_came(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.app.live._PAUSE", 0.0)
    screen = Screen()
    writer = LiveWriter(screen, mark="32", colour=True)
    for tokens in words(TEXT, size):
        writer.tokens(tokens)
    writer.rest(TEXT)
    writer.end()
    writer.end()
    assert screen.seen() == SEEN


def test_a_long_tail_never_moves_the_cursor_off_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.app.live._PAUSE", 0.0)
    monkeypatch.setattr(LiveWriter, "_size", lambda _: (30, 4))
    screen = Screen(height=4)
    text = "| a | b |\n|---|---|\n" + "".join(f"| {n} | row |\n" for n in range(12))
    writer = LiveWriter(screen, mark="", colour=True)
    for tokens in words(text, 3):
        writer.tokens(tokens)
    writer.end()
    assert screen.seen().split("\n")[:3] == ["a  │ b", "───┼────", "0  │ row"] and "11 │ row\n" in screen.seen()


def test_marks_are_on_the_accepted_words_of_what_is_rendered() -> None:
    text = "# One two\n\n- *three* four `five`\n\n```\nsix seven\n```\n"
    parts = re.findall(r"\s*\w+|\W", text)
    kinds = "".join("PA"[n % 2] * len(part) for n, part in enumerate(parts))
    scanner, lines = Scanner(), Lines(colour=False)
    marked = []
    for piece in scanner.feed(text) + scanner.finish():
        for line in lines.of(piece, 80, lambda place: "32" if kinds[place] == "A" else ""):
            marked += [word for part, codes in line if "32" in codes.split(";") for word in part.split()]
    assert marked == [word for part in parts[1::2] for word in re.findall(r"\w+", part)] and len(marked) > 2


def test_without_colours_no_hue_is_used() -> None:
    scanner = Scanner()
    pieces = scanner.feed("# *T* `x` [l](u)\n") + scanner.finish()
    for colour, has in ((True, {"36", "34"}), (False, set())):
        text = "".join(shown(line) for piece in pieces for line in Lines(colour=colour).of(piece, 80, lambda _: ""))
        codes = {code for codes in SGR.findall(text) for code in codes.split(";")}
        assert codes & {"36", "34"} == has and {"1", "4", "3"} <= codes
