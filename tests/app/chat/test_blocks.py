"""The block scanner: pieces are exact, do not depend on how the text arrives, and render as the whole would."""

from __future__ import annotations

import random
import re

import pytest

from outrider.app.chat.blocks import FENCE_LINES, PARAGRAPH, TABLE_ROWS, Piece, Scanner, coalesce
from outrider.app.chat.mapping import parser

BITS = [
    "# Title\n",
    "Title\n===\n",
    "Plain words, and *more* of `them`.\n",
    "\n",
    "\n\n",
    "- item one\n",
    "- item two\n  with a second line\n",
    "  - nested\n",
    "* star\n",
    "1. first\n",
    "2. second\n\n   paragraph inside\n",
    "3) third\n",
    "1. again one\n",
    "```python\n",
    "```\n",
    "   ```\n   code in item\n   ```\n",
    "~~~\nx\n~~~\n",
    "    indented code\n",
    "| a | b |\n|---|---|\n",
    "| 1 | 2 |\n",
    "a | b\n--|--\n",
    "> quote\n",
    "> - list in quote\nlazy line\n",
    "---\n",
    "***\n",
    "text without end",
    "word " * 500 + "\n",
    "Sentence one. " * 200,
    '[link](http://x.y/z "t") and ![im](src)\n',
    "<div>html</div>\n",
    "\ttabbed\n",
    "-\n",
    "é ü 漢字 🙂\n",
    "\\* not a list\n",
    "x" * 2500,
]


def document(seed: int) -> str:
    """A random document from the bits above or from loose signs."""
    draw = random.Random(seed)
    if seed % 4:
        return "".join(draw.choices(BITS, k=draw.randint(1, 14)))
    return "".join(draw.choice("ab *_`#->|~\n\n 1.)[](") for _ in range(draw.randint(0, 300)))


def scan(text: str, cuts: list[int]) -> list[Piece]:
    """The pieces of a text that arrives in parts."""
    scanner = Scanner()
    pieces: list[Piece] = []
    last = 0
    for cut in [*cuts, len(text)]:
        pieces += scanner.feed(text[last:cut])
        last = cut
        assert "".join(piece.text for piece in pieces) + scanner.tail == text[:cut]
        assert scanner.settled == sum(len(piece.text) for piece in pieces)
    return pieces + scanner.finish()


@pytest.mark.parametrize("seed", range(200))
def test_pieces_are_exact_and_do_not_depend_on_the_arrival(seed: int) -> None:
    text = document(seed)
    whole = scan(text, [])
    assert "".join(piece.text for piece in whole) == text
    start = 0
    for piece in whole:
        assert piece.start == start and piece.text
        start += len(piece.text)
    draw = random.Random(len(text))
    some = sorted(draw.sample(range(len(text) + 1), min(len(text), 12)))
    assert scan(text, some) == whole
    if len(text) < 1500:
        assert scan(text, list(range(1, len(text)))) == whole


def rendered(markdown: str) -> list[str]:
    """What a reader would see: the words of every leaf block, in order."""
    leaves = []
    for token in parser().parse(markdown):
        if token.type in ("fence", "code_block"):
            leaves.extend(f"code {line}" for line in token.content.rstrip().split("\n"))
        elif token.type == "inline":
            leaves.append(re.sub(r"\s+", " ", "".join(child.content or " " for child in token.children or [])).strip())
        elif token.type == "hr":
            leaves.append("---")
    return leaves


def without_heads(piece: Piece) -> list[str]:
    """A piece's own leaves: the header that a table piece repeats is left out."""
    leaves = rendered(piece.source)
    if piece.head and piece.form == "table":
        return leaves[len(rendered(piece.head)) :]
    return leaves


@pytest.mark.parametrize("seed", range(200))
def test_pieces_render_as_the_whole(seed: int) -> None:
    text = document(seed)
    if any(len(line) > PARAGRAPH for line in text.split("\n")):
        text = text.replace("word " * 500, "").replace("Sentence one. " * 200, "").replace("x" * 2500, "")
    pieces = [piece for piece in scan(text, []) if piece.shown]
    apart = [leaf for piece in pieces for leaf in without_heads(piece)]
    assert apart == rendered(text)


def test_settles_at_block_ends() -> None:
    scanner = Scanner()
    assert scanner.feed("# Title\n")[0].form == "heading"
    assert scanner.feed("Some text") == []
    assert [piece.text for piece in scanner.feed(" here.\n\nNext")] == ["Some text here.\n\n"]
    assert scanner.tail == "Next"


def test_settles_list_items_and_keeps_their_numbers() -> None:
    scanner = Scanner()
    pieces = scanner.feed("1. one\n1. two\n1. three\n\nafter\n\n")
    assert [(piece.form, piece.joins, piece.number) for piece in pieces] == [
        ("list", False, None),
        ("list", True, 2),
        ("list", True, 3),
        ("paragraph", False, None),
    ]


def test_settles_an_item_once_the_next_has_begun() -> None:
    scanner = Scanner()
    assert scanner.feed("- one\n  - inner\n- ") == []
    assert [piece.text for piece in scanner.feed("t")] == ["- one\n  - inner\n"]
    assert [piece.text for piece in scanner.feed("wo\n\nend\n")] == ["- two\n\n"]


def test_settles_a_closed_fence_at_once() -> None:
    scanner = Scanner()
    assert scanner.feed("```py\nx = 1\n\n# no heading\n") == []
    (piece,) = scanner.feed("```\n")
    assert piece.form == "fence" and piece.shown


def test_parts_a_long_fence() -> None:
    body = "".join(f"line {n}\n" for n in range(2 * FENCE_LINES))
    pieces = scan("```py\n" + body + "```\n", [])
    assert [(piece.joins, piece.head, piece.shown) for piece in pieces] == [
        (False, "", True),
        (True, "```py\n", True),
        (True, "```py\n", False),
    ]


def test_parts_a_long_table_and_repeats_its_header() -> None:
    rows = "".join(f"| {n} | x |\n" for n in range(TABLE_ROWS + 5))
    first, second = scan("| a | b |\n|---|---|\n" + rows, [])
    assert first.text.count("\n") == TABLE_ROWS + 2 and first.head == ""
    assert second.joins and second.head == "| a | b |\n|---|---|\n"


def test_parts_a_long_paragraph_between_words_and_outside_of_markup() -> None:
    text = "So **many words that** go `on and on`. " * 200
    scanner = Scanner()
    pieces = []
    for at in range(0, len(text), 7):
        pieces += scanner.feed(text[at : at + 7])
        assert len(scanner.tail) < 2 * PARAGRAPH
    assert len(pieces) > 3 and all(piece.joins for piece in pieces[1:])
    for piece in pieces:
        assert piece.text.endswith(" ") and piece.text.count("**") % 2 == 0 and piece.text.count("`") % 2 == 0


def test_parts_a_long_paragraph_of_many_lines_where_a_line_ends() -> None:
    pieces = scan("A line of a poem. It goes on\n" * 150, [])
    assert len(pieces) > 2 and all(piece.text.endswith("on\n") for piece in pieces)


def test_coalesce_keeps_apart_what_would_render_otherwise() -> None:
    long_fence = "```\n" + "x\n" * (FENCE_LINES + 2) + "```\n"
    pieces = coalesce(scan("- a\n- b\n\ntext\n\n" + long_fence + "after\n\n1. x\n1. y\n", []))
    assert [(piece.text[:3], piece.head, piece.goes_on) for piece in pieces] == [
        ("- a", "", False),
        ("```", "", True),
        ("x\nx", "```\n", False),
        ("aft", "", False),
        ("1. ", "", False),
    ]


@pytest.mark.parametrize("seed", range(100))
def test_coalesced_pieces_render_as_the_whole(seed: int) -> None:
    text = document(seed)
    if any(len(line) > PARAGRAPH for line in text.split("\n")):
        text = text.replace("word " * 500, "").replace("Sentence one. " * 200, "").replace("x" * 2500, "")
    pieces = coalesce(scan(text, []))
    assert "".join(piece.text for piece in pieces) == text
    assert [leaf for piece in pieces if piece.shown for leaf in without_heads(piece)] == rendered(text)
