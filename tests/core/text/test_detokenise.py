"""Streaming: the pieces always join to the whole, and no piece ends inside a character."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from outrider.core.text.detokenise import Detokeniser
from outrider.core.text.tokenizer import Tokenizer

TEXTS = ["héllo 日本語のテキスト", "👩‍👩‍👧‍👦 and 🏳️‍🌈!", "ไทย हिन्दी العربية", "a\n\n  b\t", "🙂" * 20, "\U0010ffff\0"]


def stream(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    detokeniser = Detokeniser(tokenizer)
    return [*(detokeniser.push(i) for i in ids), detokeniser.flush()]


def check(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids), ids


@pytest.mark.parametrize("text", TEXTS)
def test_a_character_is_shown_when_it_is_complete(byte_level, build, text: str) -> None:
    tokenizer = build(byte_level)
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == text == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    assert pieces[-1] == ""


def test_when_the_bytes_of_a_character_come_apart(byte_level, build) -> None:
    tokenizer = build(byte_level)
    assert stream(tokenizer, tokenizer.encode("🙂a")) == ["", "", "", "🙂", "a", ""]
    assert stream(tokenizer, tokenizer.encode("🙂")[:3]) == ["", "", "", "\ufffd"]
    assert "".join(stream(tokenizer, [*tokenizer.encode("🙂")[:2], *tokenizer.encode("b")])) == "\ufffdb"


def test_control_tokens_are_silent_and_split_nothing(byte_level, build) -> None:
    tokenizer = build(byte_level)
    first, *rest = tokenizer.encode("é")
    assert stream(tokenizer, [1, first, 2, *rest, 0]) == ["", "", "", "é", "", ""]
    assert stream(tokenizer, tokenizer.encode("<think>x")) == ["<think>", "x", ""]


def test_ids_that_no_token_has(byte_level, build) -> None:
    tokenizer = build(byte_level)
    assert stream(tokenizer, [-1, 10**6, 1 << 40]) == ["", "", "", ""]
    assert tokenizer.decode([-1, 10**6, 1 << 40]) == ""


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_any_ids_at_all(kind: str, build, request: pytest.FixtureRequest) -> None:
    tokenizer = build(request.getfixturevalue(kind))
    rng = random.Random(kind)
    for _ in range(5000):
        check(tokenizer, [rng.randrange(-1, tokenizer.vocab_size + 2) for _ in range(rng.randrange(12))])


def test_the_space_in_front_belongs_to_the_tokenizer(sentencepiece, build) -> None:
    tokenizer = build(sentencepiece)
    assert stream(tokenizer, tokenizer.encode("ab hi")) == ["ab", " hi", ""]
    assert "".join(stream(tokenizer, tokenizer.encode("  ab"))) == "  ab"
    assert "".join(stream(tokenizer, [1, *tokenizer.encode("ab")])) == "ab"


def test_work_and_memory_are_bounded(byte_level, build) -> None:
    """What is held back never grows, however long invalid bytes go on."""
    tokenizer = build(byte_level)
    detokeniser = Detokeniser(tokenizer)
    lead = tokenizer.encode("🙂")[0]
    shown = sum(len(detokeniser.push(lead)) for _ in range(10000))
    assert shown == 9999 and detokeniser.flush() == "\ufffd"


@pytest.mark.real
def test_the_starter_by_brute_force(starter: Tokenizer) -> None:
    rng = random.Random(11)
    partial = [i for i in range(starter.vocab_size) if b"\xef\xbf\xbd" in starter.decode([i]).encode()]
    assert len(partial) > 100
    for _ in range(4000):
        check(starter, [rng.randrange(starter.vocab_size) for _ in range(rng.randrange(1, 30))])
        check(starter, [rng.choice(partial) for _ in range(rng.randrange(1, 12))])
    signs = [*range(0x20, 0x500), *range(0x1F300, 0x1F600), *range(0x4E00, 0x7000), *[0x200D, 0xFE0F] * 500]
    for _ in range(1500):
        text = "".join(chr(rng.choice(signs)) for _ in range(rng.randrange(20)))
        pieces = stream(starter, starter.encode(text))
        assert "".join(pieces) == text
        assert all("\ufffd" not in piece for piece in pieces)
