"""Whatever a model writes can be seen: in the chat, in `run` on a terminal, with each character's place known."""

from __future__ import annotations

import io
import random
import re
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it.token import Token

from outrider.app.chat.blocks import Piece, Scanner, coalesce
from outrider.app.chat.mapping import parser
from outrider.app.chat.places import texts
from outrider.app.live import LiveWriter
from outrider.core.base.protocol import Token as Written

SEEN = {
    "foot[^1] note\n\n[^1]: the note\n": "foot[^1] note\n[^1]: the note",
    '[1]: https://a.b "title"\n': '[1]: https://a.b "title"',
    "see [this][1] and [1]\n\n[1]: <https://a.b>\n": "see [this][1] and [1]\n[1]: https://a.b",
    "[a]: b\n[c]: d\n'e'\n": "[a]: b\n[c]: d\n'e'",
    "\\[ x_1 * y * z_2 \\]": "\\[ x_1 * y * z_2 \\]",
    "where \\(a_1 \\{ b \\} _c_\\) and \\( open": "where \\(a_1 \\{ b \\} _c_\\) and \\( open",
    "\\[\na \\\\ b\n= c_1\\, d_2\n\\]": "\\[\na \\\\ b\n= c_1\\, d_2\n\\]",
    "$$\\sum_i a_i *b* c$$ for $5 and $6": "$$\\sum_i a_i *b* c$$ for $5 and $6",
    "- \\(x\\)\n- **y \\(z\\)**": "\\(x\\)\ny \\(z\\)",
    "| a | b |\n|---|---|\n| 1 | 2 | 3 | 4 |\n| x \\| y | z \\| w | v |": "a\nb\n1\n2 | 3 | 4\nx | y\nz | w | v",
    "a | b\n--|--\n1 | 2 | 3": "a\nb\n1\n2 | 3",
    "[](https://a.b/c)": "https://a.b/c",
    "<!-- why -->\n\n<div>\n<b>x</b>\n</div>": "<!-- why -->\n<div>\n<b>x</b>\n</div>",
    "<script>\n\nx\n</script>": "<script>\nx\n</script>",
    "---\ntitle: x\n---\n\ntext": "title: x\ntext",
    "&amp; &copy; &#x41; &nope; &": "& © A &nope; &",
    "> " * 40 + "deep\n\nafter": None,
    "- " * 40 + "deep": None,
    "\\*a\\* b\\\n\\c": "*a* b\n\\c",
    "*[HTML]: Hyper Text": "*[HTML]: Hyper Text",
    "term\n: definition": "term\n: definition",
    "H~2~O x^2^ ==mark== :smile: {.class}": "H~2~O x^2^ ==mark== :smile: {.class}",
}
PARTS = (
    "¤[^¤]", "[^¤]: ¤", "[¤]: ¤ '¤'", "[¤]: <¤>", "\\[ ¤_¤*¤ \\]", "\\(¤\\)", "\\[", "\\)", "$$¤*¤*$$", "|¤|¤|¤|", "|-|-|", "|¤|",
    "[](¤)", "![](¤)", "[¤](¤)", "[¤][¤]", "<!--¤-->", "<b>¤", "<![CDATA[¤]]>", "---", "&¤;", "&lt;¤", "> ", "- ", "1. ", "    ",
    "\n", "\n\n", "¤", "*¤", "**", "`¤", "``", "~~¤", "#", "# ¤", "===", "```¤", "\\", "\t¤", "<¤@¤.¤>", "[ ] ¤",
)  # fmt: skip


def pieces_of(source: str) -> list[Piece]:
    scanner = Scanner()
    return [piece for piece in coalesce(scanner.feed(source) + scanner.finish()) if piece.shown]


def in_run(source: str) -> str:
    """What `run` writes to a terminal, without its colours."""
    out = io.StringIO()
    writer = LiveWriter(out, mark="", colour=True)
    writer.tokens([Written(1, source, "P")])
    writer.rest(source)
    writer.end()
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", out.getvalue())


@pytest.mark.parametrize("source", SEEN)
def test_nothing_is_swallowed(source: str) -> None:
    shown = [one for piece in pieces_of(source) for one in texts(piece)]
    if SEEN[source] is None:
        assert "deep" in shown[0][0]
    else:
        assert "\n".join(text for text, _ in shown) == SEEN[source]
    for text, places in shown:
        assert places is not None and len(places) == len(text)
        for letter, place in zip(text, places, strict=True):
            assert place < 0 or letter.isspace() or source[place] in (letter, "&", "<")
    written = "".join(in_run(source).split())
    for text, _ in shown:
        for word in text.split():
            assert word in written


def hidden(tokens: list[Token]) -> str:
    """What stands for itself nowhere: where links lead, and the language of code."""
    found = ""
    for token in tokens:
        found += token.info + "".join(str(value) for value in token.attrs.values()) + hidden(token.children or [])
    return unquote(found)


@pytest.mark.parametrize("seed", range(150))
def test_every_letter_is_rendered(seed: int) -> None:
    chance, letters = random.Random(seed), iter(range(0x4E00, 0x9FFF))
    source = re.sub("¤", lambda _: chr(next(letters)), "".join(chance.choices(PARTS, k=40)))
    shown = [one for piece in pieces_of(source) for one in texts(piece)]
    seen = "".join(text for text, _ in shown) + "".join(
        hidden(parser().parse(piece.source)) for piece in pieces_of(source)
    )
    assert not {letter for letter in source if letter >= "\u4e00"} - set(seen), source
    for text, places in shown:
        for letter, place in zip(text, places or (), strict=False):
            assert place < 0 or letter < "\u4e00" or source[place] == letter


async def test_the_prompt_shows_signs_for_what_terminals_obey(ride: Any) -> None:
    async with ride(private=True) as chat:
        chat.chat.prompt.put("a\u202e\x1b[31mb\u2066")
        await chat.pilot.pause(0)
        assert "a\ufffd␛[31mb\ufffd" in chat.screen()
