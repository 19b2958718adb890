"""Tokenizers from tokenizer.model, tekken.json and vocab.json with merges.txt, against ids of the original libraries.

`pieces.model` was trained by sentencepiece on the README and the texts in `ids.json`, the ranks in `tekken.json` on the same;
the ids in `ids.json` were made by sentencepiece 0.2.3 and mistral-common 1.13.1.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.text.files import TokenizerFiles, fingerprint, token_strings
from outrider.core.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "tokenizers"
PIECES = (DATA / "pieces.model").read_bytes()
TEKKEN = (DATA / "tekken.json").read_bytes()
IDS = json.loads((DATA / "ids.json").read_text("utf-8"))


def message(number: int, body: bytes) -> bytes:
    """A field of a protobuf message that holds another message."""
    assert len(body) < 128
    return bytes([number << 3 | 2, len(body)]) + body


def piece(text: str, kind: int) -> bytes:
    """One more token at the end of a tokenizer.model; its score is 0."""
    return message(1, message(1, text.encode()) + b"\x15\0\0\0\0" + bytes([3 << 3, kind]))


def normaliser(prefix: bool, squeeze: bool, marked: bool = True) -> bytes:
    """Settings that replace those of a tokenizer.model when they are put behind it."""
    return message(3, message(1, b"identity") + bytes([3 << 3, prefix, 4 << 3, squeeze, 5 << 3, marked]))


USERS = b"".join(piece(text, 4) for text in ("▁▁", "▁▁▁", "\n\n", "<think>", "</think>"))


def from_pieces(more: bytes = b"", **settings: Any) -> Tokenizer:
    return Tokenizer(TokenizerFiles("folder", sentencepiece=PIECES + more, settings=settings))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("prefix", b""),
        ("squeezed", normaliser(prefix=True, squeeze=True)),
        ("users", USERS + normaliser(prefix=False, squeeze=False)),
    ],
)
def test_sentencepiece_gives_the_same_ids(name: str, more: bytes) -> None:
    tokenizer = from_pieces(more)
    for text, ids in zip(IDS["texts"], IDS[name], strict=True):
        assert tokenizer.encode(text) == ids, text
        if name != "squeezed":
            assert tokenizer.decode(ids, skip_special=False) == text


def test_what_a_tokenizer_model_says_of_itself() -> None:
    tokenizer = from_pieces()
    assert tokenizer.tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    assert tokenizer.bos_id == 1 and tokenizer.eos_ids == {2} and tokenizer.special == {0, 1, 2, 3}
    assert tokenizer.encode_raw("the")[0] == 1
    assert from_pieces(add_bos_token=False).encode_raw("the")[0] != 1
    assert tokenizer.decode(tokenizer.encode("<s>the</s>")) == "the"


def test_where_a_space_is_put_in_front() -> None:
    text = "<s>the<s> the"
    assert words(from_pieces(), text) == ["<s>", "▁the", "<s>", "▁", "▁the"]
    assert words(from_pieces(legacy=True), "the<s>the") == ["▁the", "<s>", "▁the"]
    assert words(from_pieces(legacy=False), "the<s>the") == ["▁the", "<s>", "th", "e"]
    assert words(from_pieces(legacy=False), text) == ["<s>", "th", "e", "<s>", "▁the"]
    assert words(from_pieces(add_prefix_space=False), "the") == ["th", "e"]
    plain = from_pieces(normaliser(prefix=True, squeeze=False, marked=False))
    assert words(plain, "t ") == ["<0x20>", "t", "<0x20>"]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer._inner.id_to_token(i) or "" for i in tokenizer.encode(text)]


def test_tokens_that_the_settings_add() -> None:
    listed = {
        "540": {"content": "<|user|>", "special": True, "rstrip": True},
        "541": {"content": "<tool>", "special": False},
        "544": {"content": "<|x|>", "special": True, "lstrip": True},
    }
    files = TokenizerFiles(
        "folder",
        sentencepiece=PIECES,
        settings={"added_tokens_decoder": listed, "eos_token": {"content": "<|end|>"}, "pad_token": "<p>"},
        added={"<|end|>": 542, "<p>": 543},
    )
    tokenizer = Tokenizer(files)
    assert tokenizer.encode("<|user|>\n  the<tool>") == [540, *tokenizer.encode("the"), 541]
    assert tokenizer.encode("the \n<|x|>") == [*tokenizer.encode("the"), 544]
    assert tokenizer.special == {0, 1, 2, 3, 540, 542, 543, 544}
    assert tokenizer.eos_ids == {2, 542} and tokenizer.decode([540, 541, 542]) == "<tool>"
    assert token_strings(files)[540:] == ["<|user|>", "<tool>", "<|end|>", "<p>", "<|x|>"]
    gap = TokenizerFiles("folder", sentencepiece=PIECES, added={"<a>": 545})
    assert token_strings(gap)[539:] == [token_strings(gap)[539], *(f"[PAD{i}]" for i in range(540, 545)), "<a>"]
    assert Tokenizer(gap).decode([540, 545]) == "<a>"


def tekken(**change: Any) -> bytes:
    """A tekken.json with other values in its config, or other top-level keys."""
    file = json.loads(TEKKEN)
    file["config"].update({key: value for key, value in change.items() if key in file["config"]})
    file.update({key: value for key, value in change.items() if key not in file["config"]})
    return json.dumps(file).encode()


def test_tekken_gives_the_same_ids() -> None:
    files = TokenizerFiles("folder", tekken=TEKKEN)
    tokenizer = Tokenizer(files)
    for text, ids in zip(IDS["texts"], IDS["tekken"], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("[INST]a[/INST]</s>")[::2] == [3, 4] and tokenizer.special == set(range(20))
    assert tokenizer.bos_id == 1 and tokenizer.eos_ids == {2} and tokenizer.adds_bos
    assert tokenizer.vocab_size == 596 < 20 + len(json.loads(TEKKEN)["vocab"])  # some stored tokens are not used


def test_tekken_lists_its_special_tokens_or_not() -> None:
    more = token_strings(TokenizerFiles("folder", tekken=tekken(default_num_special_tokens=25, default_vocab_size=601)))
    assert more[:4] == ["<unk>", "<s>", "</s>", "[INST]"] and more[19:25] == [
        *("[TOOL_CONTENT]", "<SPECIAL_20>", "<SPECIAL_21>", "<SPECIAL_22>", "<SPECIAL_23>", "<SPECIAL_24>")
    ]
    listed = [
        {"rank": 1, "token_str": "<s>", "is_control": True},
        {"rank": 5, "token_str": "[THINK]", "is_control": False},
    ]
    tokenizer = Tokenizer(TokenizerFiles("folder", tekken=tekken(special_tokens=listed)))
    assert tokenizer.encode("[THINK]<s><SPECIAL_3>") == [5, 1, 3]
    assert tokenizer.decode([5, 1, 3]) == "[THINK]"
    assert tokenizer.tokens == {"bos_token": "<s>"} and tokenizer.eos_ids == frozenset()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (TEKKEN[:-9], "truncated|malformed"),
        (b"[]", "Expected `object`"),
        (tekken(vocab=[]), "0 tokens in a vocabulary of 576"),
        (tekken(default_vocab_size=10), "20 special tokens in a vocabulary of 10"),
        (tekken(default_vocab_size=1 << 40), "in a vocabulary of"),
        (tekken(vocab=[{"rank": i, "token_bytes": "?"} for i in range(600)]), "base64"),
        (tekken(special_tokens=[{"rank": 99, "token_str": "<x>"}]), "'<x>' has the rank 99"),
        (tekken(pattern="("), "makes no tokenizer"),
    ],
)
def test_a_tekken_file_that_is_broken(data: bytes, why: str) -> None:
    with pytest.raises(BrokenFileError, match=rf"^folder: tekken.json .*({why})"):
        Tokenizer(TokenizerFiles("folder", tekken=data))


def test_a_tokenizer_model_cut_off_anywhere() -> None:
    for size in [*range(0, 40), *range(40, len(PIECES), 97), len(PIECES) - 1]:
        files = TokenizerFiles("folder", sentencepiece=PIECES[:size])
        for read in (Tokenizer, fingerprint):
            with pytest.raises(BrokenFileError, match=r"^folder: tokenizer.model cannot be read"):
                read(files)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (b"\x0b", "wire type 3"),
        (b"\x08" + b"\xff" * 12, "number without end"),
        (b"\x0a\x05ab", "ends inside a field"),
        (piece("x", 9), "'x' is of type 9"),
        (message(1, message(1, b"\xff")), "utf-8"),
        (message(1, b"\x12\x00"), "unpack"),
        (message(2, b"\x1a\x00"), "field 3 is no number"),
        (message(3, b"\x10\x01"), "field 2 holds no bytes"),
        (message(3, message(2, b"nonsense")), "makes no tokenizer"),
    ],
)
def test_a_tokenizer_model_that_makes_no_sense(more: bytes, why: str) -> None:
    with pytest.raises(BrokenFileError, match=rf"^folder: tokenizer.model .*{why}"):
        from_pieces(more)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (PIECES + message(2, b"\x18\x01"), "of the unigram kind"),
        (PIECES + message(2, b"\x18\x03"), "of the word kind"),
        (PIECES + message(2, b"\x18\x02\xc0\x01\x01"), "of the suffixed kind"),
        (b"IQ== 0\nIg== 1\n", "a tiktoken file"),
    ],
)
def test_a_tokenizer_model_of_another_kind(data: bytes, what: str) -> None:
    files = TokenizerFiles("folder", sentencepiece=data)
    with pytest.raises(ModelError, match=rf"^folder: tokenizer.model is {what}") as caught:
        Tokenizer(files)
    assert "tokenizer.json" in caught.value.hint and not isinstance(caught.value, BrokenFileError)
    assert fingerprint(files) == ""  # the model can still be described


def vocab_and_merges() -> dict[str, Any]:
    """The byte-level words of `tekken.json` as vocab.json and merges.txt."""
    layout = json.loads(Tokenizer(TokenizerFiles("x", tekken=tekken(default_num_special_tokens=0))).to_json())
    lines = ["#version: 0.2", *(" ".join(pair) for pair in layout["model"]["merges"]), ""]
    return {"vocab": json.dumps(layout["model"]["vocab"]).encode(), "merges": "\r\n".join(lines).encode()}


def test_vocab_and_merges() -> None:
    files = vocab_and_merges()
    settings = {"tokenizer_class": "Qwen2TokenizerFast", "added_tokens_decoder": {"596": {"content": "<|im_end|>"}}}
    settings |= {"eos_token": "<|im_end|>"}
    tokenizer = Tokenizer(TokenizerFiles("folder", **files, settings=settings))
    text = "The text is the same 123<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text
    assert tokenizer.encode(text)[-1] == 596 and tokenizer.eos_ids == {596} and not tokenizer.adds_bos
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")  # accents are composed there
    other = Tokenizer(TokenizerFiles("folder", **files, config={"model_type": "gpt2"}))
    assert other.encode("e\u0301") != other.encode("é")
    with pytest.raises(ModelError, match="nothing that says how its tokenizer splits text"):
        Tokenizer(TokenizerFiles("folder", **files))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab": b"["}, "folder: vocab.json or merges.txt cannot be read"),
        ({"vocab": b'{"a": -1}'}, "folder: vocab.json holds token ids from -1"),
        ({"vocab": b'{"a": 1, "b": 1}'}, "gives one id to several"),
        ({"merges": b"\xff"}, "folder: vocab.json or merges.txt cannot be read"),
        ({"merges": b"a nothing"}, "folder: merges.txt: the merge 'a nothing' does not fit"),
    ],
)
def test_vocab_and_merges_that_are_broken(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BrokenFileError, match=message):
        Tokenizer(TokenizerFiles("folder", **(vocab_and_merges() | change), config={"model_type": "gpt2"}))


def test_all_forms_of_one_tokenizer_have_one_fingerprint() -> None:
    original = TokenizerFiles("folder", sentencepiece=PIECES + USERS)
    whole = TokenizerFiles("folder", tokenizer=Tokenizer(original).to_json().encode())
    tokens = token_strings(original)
    scores = [0.0] * len(tokens)
    metadata = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores}
    assert fingerprint(original) == fingerprint(whole) == fingerprint(TokenizerFiles("file", metadata=metadata)) != ""
    marked = {"tokenizer.ggml.tokens": [token.replace(" ", "▁") for token in tokens]}
    assert fingerprint(TokenizerFiles("file", metadata=marked)) == fingerprint(original)
    ranks = TokenizerFiles("folder", tekken=TEKKEN)
    whole = TokenizerFiles("folder", tokenizer=Tokenizer(ranks).to_json().encode())
    assert fingerprint(ranks) == fingerprint(whole) != fingerprint(original)


def test_the_first_file_of_several_counts() -> None:
    both = TokenizerFiles("folder", tekken=TEKKEN, sentencepiece=PIECES, vocab=b"[", merges=b"")
    assert Tokenizer(both).encode("the") == Tokenizer(TokenizerFiles("folder", tekken=TEKKEN)).encode("the")
    whole = Tokenizer(TokenizerFiles("folder", sentencepiece=PIECES)).to_json().encode()
    assert Tokenizer(TokenizerFiles("folder", tokenizer=whole, tekken=b"")).vocab_size == 540


def test_a_folder_hands_its_files_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 600}')
    (tmp_path / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    (tmp_path / "tokenizer.model").write_bytes(PIECES)
    (tmp_path / "added_tokens.json").write_text('{"<|end|>": 540}')
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|end|>"}')
    files = open_checkpoint(tmp_path).text()
    assert Tokenizer(files).encode("the<|end|>") == [*from_pieces().encode("the"), 540]
    assert Tokenizer(files).eos_ids == {2, 540} and files.rows == 600
    (tmp_path / "tekken.json").write_bytes(TEKKEN)
    assert Tokenizer(open_checkpoint(tmp_path).text()).vocab_size == 596
    for name, data in vocab_and_merges().items():
        (tmp_path / {"vocab": "vocab.json", "merges": "merges.txt"}[name]).write_bytes(data)
    for name in ("tekken.json", "tokenizer.model", "added_tokens.json"):
        (tmp_path / name).unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert Tokenizer(open_checkpoint(tmp_path).text()).encode("the")
    (tmp_path / "tokenizer.json").write_bytes(Tokenizer(files).to_json().encode())
    whole = open_checkpoint(tmp_path).text()
    assert whole.vocab is None and Tokenizer(whole).encode("the") == from_pieces().encode("the")


def test_every_stored_byte_of_tekken_comes_back() -> None:
    file = json.loads(TEKKEN)
    tokenizer = Tokenizer(TokenizerFiles("folder", tekken=TEKKEN))
    for entry in file["vocab"][:576]:
        assert tokenizer.token_bytes(20 + entry["rank"]) == base64.b64decode(entry["token_bytes"])
