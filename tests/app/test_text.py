"""Text from anywhere, on a terminal: nothing that it could obey, in columns that are counted as it counts them."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len

from outrider.app.live import LiveWriter
from outrider.app.progress import ProgressLine
from outrider.app.render import cells, json_text, pairs, printable, table
from outrider.app.text import cut, padded, sanitize, width
from outrider.core.base import protocol

OBEYED = [
    *(chr(code) for code in (*range(9), *range(11, 32), *range(0x7F, 0xA0))),
    *"\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u206a\u206f\ufff9\ufffb",
    "\ud800",
]
WIDE = ("👨‍👩‍👧", "1️⃣", "हिन्दी", "தமிழ்", "\u1112\u1161\u11ab", "\u200b", "漢字", "e\u0301", "🏴󠁧󠁢󠁥󠁮󠁧󠁿")


@pytest.mark.parametrize("sign", OBEYED, ids=ascii)
def test_nothing_that_a_terminal_obeys(sign: str) -> None:
    assert len(sanitize(f"a{sign}b")) == 3 and sign not in sanitize(f"a{sign}b")
    assert sign not in printable(f"a{sign}b")
    assert sign not in table(("name",), [(f"a{sign}b",)]) and sign not in pairs([(f"a{sign}", f"b{sign}")])
    if sign != "\ud800":
        assert sign.encode() not in json_text({"name": f"a{sign}b"})


def test_ordinary_text_stays() -> None:
    text = "héllo\n\t漢字 🙂 שלום مرحبا می‌خواهم \u200d\ufe0f"
    assert sanitize(text) == printable(text) == text


def test_signs_written_as_entities_are_as_harmless() -> None:
    text = (
        "a&#x202e;b `c` ![x&#x2066;y](z&#x202e;) [t&#8238;](u)\n\n"
        "```py&#x202e;x\ncode\n```\n\n| h&#x202e; |\n|---|\n| &#x2028;c |\n"
    )
    out = io.StringIO()
    writer = LiveWriter(out, mark="", colour=True)
    writer.tokens([protocol.Token(1, text, "P")])
    writer.rest(text)
    writer.end()
    assert not set(out.getvalue()) & set(OBEYED) - {"\x1b", "\r"}


@pytest.mark.parametrize("text", WIDE, ids=ascii)
def test_columns_are_those_of_the_terminal(text: str) -> None:
    assert width(text) == cells(text) == cell_len(text)
    assert cell_len(padded(text, 9)) == cell_len(padded(text, 9, right=True)) == 9
    head, line = table(("one", "two"), [(text, "x")]).split("\n")
    assert cell_len(line.rpartition("x")[0]) == cell_len(head.rpartition("two")[0])
    for room in range(1, 12):
        assert cell_len(cut(text * 4, room)) <= room and cell_len(cut(text * 4, room, "…")) <= room


@pytest.mark.parametrize(("term", "plain"), [("dumb", True), ("", True), ("xterm", False)])
def test_a_terminal_that_knows_no_sequences_gets_none(term: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM", raising=False)
    out = Screen()
    progress = ProgressLine(out)
    for done in range(0, 101, 10):
        progress.update(protocol.Progress(1, "download", done, 100, "bytes", "hub"))
        progress.update(protocol.Progress(1, "weights", done, 100, "bytes"))
    progress.clear()
    assert ("\x1b" not in out.getvalue()) is plain and ("Downloading from hub" in out.getvalue())
