"""The writer of `outrider run`: every character of the answer comes out, held ones at the end."""

from __future__ import annotations

import io

from outrider.app.render import AnswerWriter
from outrider.core.base.protocol import Token


def written(tokens: list[Token], whole: str, *, safe: bool = False) -> str:
    stream = io.StringIO()
    writer = AnswerWriter(stream, safe=safe)
    writer.tokens(tokens)
    writer.rest(whole)
    writer.end()
    return stream.getvalue()


def test_text_that_the_engine_held_comes_last() -> None:
    tokens = [Token(1, "on", "P"), Token(2, "", "A")]
    assert written(tokens, "on st") == "on st\n"


def test_nothing_is_written_twice() -> None:
    tokens = [Token(1, "on\x1b[2J", "P"), Token(2, "e", "A")]
    assert written(tokens, "on\x1b[2Je", safe=True) == "on[2Je\n"
    assert written(tokens, "on\x1b[2Je") == "on\x1b[2Je\n"


def test_a_colour_for_all_of_it_and_one_for_what_was_drafted() -> None:
    stream = io.StringIO()
    writer = AnswerWriter(stream, safe=True, mark="32", base="2")
    writer.tokens([Token(1, "a", "P"), Token(2, "b", "A"), Token(3, "c", "P")])
    writer.tokens([Token(4, "", "A")])
    writer.end(blank=True)
    writer.end(blank=True)
    assert stream.getvalue() == "\x1b[2ma\x1b[32mb\x1b[0m\x1b[2mc\x1b[0m\n\n"


def test_an_answer_of_held_text_alone() -> None:
    assert written([], "s") == "s\n"
