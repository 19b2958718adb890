"""The map from rendered text to source: right to the character, or not there at all."""

from __future__ import annotations

import random

import pytest
from markdown_it.token import Token

from outrider.app.chat.inline import content_of
from outrider.app.chat.mapping import map_code, map_inline, parser, starts_of_lines

TEMPLATES = [
    "# ¤ **¤** ¤ #",
    "¤ *¤ ¤* and **¤ `¤ ¤` ¤** ¤",
    "¤ __¤ _¤_ ¤__ ~~¤~~ ¤",
    "¤ \\*¤\\* &amp; ¤ &lt;¤&gt; &#33; \\\\ ¤ & ¤",
    '[¤ **¤**](http://¤.x/(¤) "¤ ¤") ¤ [¤](<¤>) ¤',
    "¤ <http://x.y/z> ¤ ![¤](¤) ¤",
    "¤ ``¤ ` ¤`` ¤ ` ¤ ` ¤",
    "¤\n¤  \n¤\\\n  ¤",
    "- ¤ *¤*\n  ¤\n  - ¤\n    ¤\n- ¤",
    "3. ¤\n   ¤\n\n   ¤ `¤`\n4. ¤",
    "> ¤ ¤\n> ¤ **¤**\n¤",
    "> - ¤\n>   ¤\n> # ¤",
    "| ¤ | **¤** |\n|---|:-:|\n| `¤` | ¤ \\| ¤ |\n| | ¤ |\n| ¤ |",
    "¤ | ¤\n--|--\n¤ | *¤*",
    "¤ ¤\n===\n\n¤",
    "- [ ] ¤\n- [x] ¤",
    "**¤**¤*¤*",
    "***¤*** ¤ **_¤_**",
    "¤ <div>¤</div> ¤",
    "¤   ¤\t¤",
]
CODE = [
    "```py\n¤ ¤\n  ¤\n\n¤\n```",
    "~~~\n¤\n~~~",
    "    ¤\n      ¤\n\n    ¤",
    "- ¤\n  ```\n  ¤\n    ¤\n  ```",
    "> ```\n> ¤\n> ¤\n> ```",
    "```\n¤ not closed",
]


class Unique:
    """Fills templates with words whose letters occur once in the document, so that a wrong place shows."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._letter = 0x4E00

    def fill(self, template: str) -> str:
        """`template` with a word for every ¤."""
        return "".join(self._word() if sign == "¤" else sign for sign in template)

    def _word(self) -> str:
        length = self._draw.randint(1, 4)
        self._letter += length
        return "".join(chr(self._letter - length + n) for n in range(length))


def rendered(token: Token) -> str:
    """The text that is shown of an inline token."""
    return content_of(token).plain


def check(source: str) -> tuple[int, int]:
    """Mapped and all rendered letters of a document; fails on a letter in a wrong place."""
    starts = starts_of_lines(source)
    cells: dict[int, int] = {}
    mapped = total = 0
    in_cell = False
    for token in parser().parse(source):
        in_cell = token.type in ("th_open", "td_open") or (in_cell and token.type == "inline")
        if token.type in ("fence", "code_block"):
            assert token.map
            shown = token.content.rstrip()
            offsets = map_code(source, starts, token.map[0] + (token.type == "fence"), shown)
        elif token.type == "inline":
            assert token.map
            cell = None
            if in_cell:
                cell = cells[token.map[0]] = cells.get(token.map[0], -1) + 1
            shown = rendered(token)
            offsets = map_inline(source, starts, token, cell=cell)
        else:
            continue
        total += len(shown)
        if offsets is None:
            continue
        assert len(offsets) == len(shown)
        mapped += len(offsets)
        forward = [offset for offset in offsets if offset >= 0]
        assert forward == sorted(forward)
        for sign, offset in zip(shown, offsets, strict=True):
            if offset >= 0 and not sign.isspace() and source[offset] != "&":
                assert source[offset] == sign
    return mapped, total


@pytest.mark.parametrize("seed", range(30))
def test_every_letter_maps_to_itself(seed: int) -> None:
    draw = random.Random(seed)
    unique = Unique(seed)
    parts = [unique.fill(template) for template in draw.sample(TEMPLATES + CODE, 12)]
    mapped, total = check("\n\n".join(parts) + "\n")
    assert mapped == total


@pytest.mark.parametrize("template", TEMPLATES + CODE)
def test_each_shape_maps_in_full(template: str) -> None:
    mapped, total = check(Unique(1).fill(template))
    assert mapped == total


def test_repeated_text_is_told_apart() -> None:
    source = '[a a](a "a a") a **a** `a` a'
    (inline,) = [token for token in parser().parse(source) if token.type == "inline"]
    offsets = map_inline(source, starts_of_lines(source), inline)
    assert offsets == [1, 2, 3, 14, 15, 16, 19, 22, 24, 26, 27]


def test_what_does_not_match_is_given_up() -> None:
    source = "- a\n\n\tb"  # a tab that is only partly indentation
    token = Token("inline", "", 0, map=[0, 1], content="zzz", children=[Token("text", "", 0, content="zzz")])
    assert map_inline(source, starts_of_lines(source), token) is None
    assert map_code(source, starts_of_lines(source), 2, "c") is None
    assert map_code(source, starts_of_lines(source), 99, "c") is None


def test_signs_at_random_never_map_to_another_letter() -> None:
    draw = random.Random(5)
    mapped = total = 0
    for _ in range(400):
        unique = Unique(draw.randint(0, 99))
        text = "".join(draw.choice("¤¤¤  \n*_`[]()!<>&;\\|#->~.1\"'") for _ in range(80))
        got, all_ = check(unique.fill(text))
        mapped, total = mapped + got, total + all_
    assert mapped > 0.97 * total


def test_lines_stay_as_they_were_written() -> None:
    source = "The fog *comes\non* little  \ncat\\\nfeet ![a\n*seal*](x)"
    (inline,) = [token for token in parser().parse(source) if token.type == "inline"]
    assert rendered(inline) == "The fog comes\non little\ncat\nfeet 🖼  a\nseal"
    offsets = map_inline(source, starts_of_lines(source), inline)
    assert offsets is not None and offsets[-4:] == [source.index("seal") + n for n in range(4)]
    assert [source[offset] for offset in offsets if offset >= 0] == list("The fog comes\non little\ncat\nfeet a\nseal")
