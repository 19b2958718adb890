"""How long texts become before they are tokens: bombs are refused, and what cannot fit is known without making tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from outrider.core.base.errors import ModelError
from outrider.core.text import growth
from outrider.core.text.files import TokenizerFiles
from outrider.core.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "tokenizers"


def with_steps(normaliser: Any = None, decoder: Any = None) -> Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 1, " ": 2}, merges=[]))
    if normaliser is not None:
        inner.normalizer = normaliser
    inner.decoder = decoder or decoders.Sequence([decoders.Fuse()])
    return Tokenizer(TokenizerFiles("evil", tokenizer=inner.to_str().encode()))


@pytest.mark.parametrize(
    "steps",
    [
        [normalizers.Replace("a", "a" * 16)] * 6,
        [normalizers.Replace("a", "a" * 1000)],
        [normalizers.Replace(tokenizers.Regex("."), "ab" * 20)],
        [normalizers.Prepend("a" * 1_000)],
        [normalizers.Replace("a", "bb")] * 6,
    ],
)
def test_bombs_are_refused(steps: list[Any]) -> None:
    with pytest.raises(ModelError, match=r"The tokenizer of evil would make [\d,]+ characters of one"):
        with_steps(normalizers.Sequence(steps))


def test_a_bomb_in_the_decoder_is_refused() -> None:
    with pytest.raises(ModelError, match="would make 4,096 characters of one"):
        with_steps(decoder=decoders.Sequence([decoders.Replace("a", "a" * 16)] * 3))


def test_usual_steps() -> None:
    usual = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁"), normalizers.NFKC(), normalizers.Lowercase()]
    assert with_steps(normalizers.Sequence(usual)).encode("a") is not None
    assert growth.longer({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}) == 1
    assert growth.shorter({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}) == 1
    assert growth.shorter({"type": "Replace", "pattern": {"String": "  "}, "content": ""}) == growth.SHORTER
    assert growth.shorter({"type": "NFC"}) == 3 and growth.shorter({}) == 1
    assert growth.shorter({"type": "Strip"}) == growth.SHORTER


def unknowns() -> Tokenizer:
    """Runs of unknown characters become one token."""
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "<unk>": 1}, merges=[], unk_token="<unk>", fuse_unk=True))
    inner.decoder = decoders.Sequence([decoders.Fuse()])
    return Tokenizer(TokenizerFiles("x", tokenizer=inner.to_str().encode()))


def composing() -> Tokenizer:
    signs = {sign: i for i, sign in enumerate(pre_tokenizers.ByteLevel.alphabet())}
    inner = tokenizers.Tokenizer(models.BPE(vocab=signs, merges=[]))
    inner.normalizer, inner.pre_tokenizer = normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(TokenizerFiles("x", tokenizer=inner.to_str().encode()))


def test_no_text_has_fewer_tokens_than_it_is_said_to_have(byte_level, sentencepiece, build) -> None:
    pieces = Tokenizer(TokenizerFiles("x", sentencepiece=(DATA / "pieces.model").read_bytes()))
    tekken = Tokenizer(TokenizerFiles("x", tekken=(DATA / "tekken.json").read_bytes()))
    kinds = [
        build(byte_level),
        build(byte_level | {"tokenizer.ggml.pre": "qwen2"}),
        build(sentencepiece),
        pieces,
        tekken,
    ]
    luck = random.Random(1)
    texts = [
        "a" * 300,
        " " * 300,
        "e\u0301" * 100,
        "\u1112\u1161\u11ab" * 100,
        "日本" * 50,
        "\U0001f642" * 40,
        "ab abc " * 50,
    ]
    texts += ["".join(luck.choice("ab c<|>\n日é\u0301ﬁ") for _ in range(200)) for _ in range(20)]
    for tokenizer in [*kinds, composing()]:
        for text in texts:
            assert tokenizer.least(text) <= len(tokenizer.encode(text)), (tokenizer, text[:20])
    assert unknowns().least("x" * 9) == 0  # nothing is certain there for a short text
    assert composing().least("a" * 3_000_000) > 100_000


def test_what_the_real_files_hold() -> None:
    """A tokenizer.json as it is written for SentencePiece models."""
    layout = json.loads(Tokenizer(TokenizerFiles("x", sentencepiece=(DATA / "pieces.model").read_bytes())).to_json())
    assert growth.longer(layout["normalizer"], layout["decoder"]) <= growth.LONGER
