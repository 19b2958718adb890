"""Tokenizers from GGUF metadata and from tokenizer.json."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text import splits
from outrider.core.text.files import TokenizerFiles, fingerprint, token_strings
from outrider.core.text.metadata import read
from outrider.core.text.rebuild import rebuild
from outrider.core.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[2] / "data" / "starter_ids.json"


def test_words_merges_and_bytes(byte_level, build) -> None:
    tokenizer = build(byte_level)
    ids = {token: i for i, token in enumerate(byte_level["tokenizer.ggml.tokens"])}
    assert tokenizer.encode("ab ab") == [ids["ab"], ids["Ġab"]]
    assert tokenizer.encode("é") == [ids["Ã"], ids["©"]]
    assert tokenizer.vocab_size == len(ids)
    assert tokenizer.decode(tokenizer.encode("ab é 日本 🙂\n\0")) == "ab é 日本 🙂\n\0"


def test_special_tokens_in_the_text(byte_level, build) -> None:
    tokenizer = build(byte_level)
    ids = tokenizer.encode("<|im_start|>a<|im_end|><think>")
    assert ids[0] == 1 and ids[2] == 2 and len(ids) == 4
    assert tokenizer.special == {0, 1, 2}  # <think> is text
    assert tokenizer.decode(ids) == "a<think>"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>a<|im_end|><think>"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.bos_id) == ("<|im_start|>", "<|im_end|>", 1)


def test_the_bos_token_comes_once_and_only_when_asked(byte_level, build) -> None:
    tokenizer = build(byte_level)
    assert tokenizer.encode("a")[0] != 1
    assert tokenizer.encode("a", bos=True)[0] == 1
    assert tokenizer.encode("<|im_start|>a", bos=True).count(1) == 1
    assert tokenizer.encode("", bos=True) == [1]
    assert tokenizer.encode_raw("a") == tokenizer.encode("a")
    told = build(byte_level | {"tokenizer.ggml.add_bos_token": True})
    assert told.encode_raw("a") == [1, *tokenizer.encode("a")]
    custom = build(byte_level | {"tokenizer.ggml.pre": "llama-bpe"})
    assert custom.encode_raw("a")[0] == 1


def test_which_tokens_end_an_answer(byte_level, build) -> None:
    assert build(byte_level).eos_ids == {0, 2}  # <|endoftext|> by its name, <|im_end|> as eos
    more = build(byte_level, config={"eos_token_id": [7, 8]}, generation={"eos_token_id": 9})
    assert more.eos_ids == {0, 2, 7, 8, 9}
    odd = build(byte_level, config={"eos_token_id": [True, 7.0, "8", None, -3]}, generation={"eos_token_id": False})
    assert odd.eos_ids == {0, 2}
    nested = build(byte_level | {"tokenizer.ggml.eot_token_id": 11}, config={"text_config": {"eos_token_id": 10}})
    assert nested.eos_ids == {0, 2, 10, 11}
    harmony = byte_level["tokenizer.ggml.tokens"].copy()
    harmony[:3] = ["<|end|>", "<|return|>", "<|call|>"]
    assert build(byte_level | {"tokenizer.ggml.tokens": harmony}).eos_ids == {1, 2}
    gemma = byte_level["tokenizer.ggml.tokens"].copy()
    gemma[:3] = ["</s>", "<bos>", "<turn|>"]
    assert build(byte_level | {"tokenizer.ggml.tokens": gemma}).eos_ids == {2}


def test_sentencepiece_scores_decide(sentencepiece, build) -> None:
    tokenizer = build(sentencepiece)
    tokens = sentencepiece["tokenizer.ggml.tokens"]
    text = [tokens[i] for i in tokenizer.encode("ab hi é")]
    assert text == ["▁ab", "▁hi", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab hi é")) == "ab hi é"
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
    assert tokenizer.leading_spaces == 1
    assert tokenizer.encode_raw("hi")[0] == 1
    assert tokenizer.special == {0, 1, 2} and tokenizer.eos_ids == {2}
    bare = build(sentencepiece | {"tokenizer.ggml.add_space_prefix": False})
    assert [tokens[i] for i in bare.encode("ab")] == ["ab"]
    assert bare.leading_spaces == 0


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "I'll pay 12345 €!\n\n x", ["I", "'ll", "Ġpay", "Ġ", "123", "45", "ĠâĤ¬!ĊĊ", "Ġx"]),
        ("qwen2", "a 123 b", ["a", "Ġ", "1", "2", "3", "Ġb"]),
        ("qwen35", "e\u0301 12", ["Ã©", "Ġ", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234/\n", ["Hello", "World's", "Ġ", "123", "4", "/Ċ"]),
        ("tekken", "HelloWorld's 12", ["Hello", "World", "'s", "Ġ", "1", "2"]),
        ("deepseek-v3", "ab1234中文 cd!", ["ab", "123", "4", "ä¸ŃæĸĩĠcd"[:6], "Ġcd", "!"]),
        ("smollm", "abc 123", ["abc", "Ġ", "1", "2", "3"]),
        ("gpt-2", "abc 123", ["abc", "Ġ123"]),
        ("minicpm5", "a12345", ["a", "123", "45"]),
        ("deepseek-llm", "Hi, 12 Привет 中文\n", ["Hi", ",", "Ġ", "1", "2", "ĠÐŁÑĢÐ¸Ð²ÐµÑĤ", "Ġ", "ä¸Ńæĸĩ", "Ċ"]),
        ("deepseek-coder", "if x: 12\n", ["if", "Ġx", ":", "Ġ", "1", "2", "Ċ"]),
        ("falcon", "a=b 1234", ["a", "=", "b", "Ġ", "123", "4"]),
        ("bailingmoe", "I'm 12\n\n", ["I", "'m", "Ġ", "1", "2", "ĊĊ"]),
        ("seed-coder", "a 12 !\n", ["a", "Ġ", "1", "2", "Ġ!", "Ċ"]),
        ("exaone-moe", "a b 12 c", ["aĠb", "Ġ", "1", "2", "Ġc"]),
        ("tiny_aya", "1234567 Hi", ["1", "234", "567", "ĠHi"]),
        ("kimi-k2", "HelloWorld's中文a 1234", ["Hello", "World's", "ä¸Ńæĸĩ", "a", "Ġ", "123", "4"]),
        ("youtu", "ab 12 中文", ["ab", "Ġ", "1", "2", "Ġ", "ä¸Ńæĸĩ"]),
        ("spark2_5", "a 1234\n", ["a", "Ġ", "1", "2", "3", "4", "Ċ"]),
        ("bloom", "a b, c", ["a", "Ġb", ",", "Ġc"]),
        ("viking", "a 12", ["a", "Ġ", "1", "2"]),
        ("laguna", "a \n\n b", ["a", "Ġ", "ĊĊ", "Ġb"]),
    ],
)
def test_how_text_is_split(byte_level, pre: str, text: str, words: list[str]) -> None:
    inner = rebuild(read(byte_level | {"tokenizer.ggml.pre": pre}, "toy.gguf"))
    normal = inner.normalizer.normalize_str(text) if inner.normalizer is not None else text
    assert inner.pre_tokenizer is not None
    assert [word for word, _ in inner.pre_tokenizer.pre_tokenize_str(normal)] == words


def test_every_known_rule_can_be_used(byte_level) -> None:
    for name in splits.NAMES:
        rebuild(read(byte_level | {"tokenizer.ggml.pre": name}, "toy.gguf"))
    assert len(splits.NAMES) > 60


def test_words_that_stay_whole(byte_level, build) -> None:
    ids = {token: i for i, token in enumerate(byte_level["tokenizer.ggml.tokens"])}
    assert build(byte_level | {"tokenizer.ggml.pre": "llama-bpe"}).encode("abc") == [ids["abc"]]
    assert build(byte_level | {"tokenizer.ggml.pre": "qwen2"}).encode("abc") == [ids["ab"], ids["c"]]


def test_merges_on_plain_text(sentencepiece, build) -> None:
    """The kind of Gemma 4: tokens as in SentencePiece, merges as in byte-level files."""
    metadata = sentencepiece | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": ["a b", "▁ a", "▁a b"]}
    tokenizer = build(metadata)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert [tokens[i] for i in tokenizer.encode("ab ab é")] == ["ab", "▁", "ab", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode(" ab\n\nab")) == " ab\n\nab"
    assert tokenizer.leading_spaces == 0 and not tokenizer.adds_bos
    by_name = build(metadata | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "sarvam-moe"})
    assert by_name.encode("ab ab é") == tokenizer.encode("ab ab é")


def test_phi3_takes_the_blanks_behind_its_control_tokens(sentencepiece, build) -> None:
    plain, phi = build(sentencepiece), build(sentencepiece, config={"model_type": "phi3"})
    assert phi.encode("</s>\n ab") == phi.encode("</s>ab") == plain.encode("</s>ab")
    assert plain.encode("</s>\nab") != plain.encode("</s>ab")
    assert phi.encode("<s>\nab") == plain.encode("<s>\nab")


def test_rows_without_a_token_decode_to_nothing(byte_level, build) -> None:
    tokens = byte_level["tokenizer.ggml.tokens"]
    padded = [*tokens, f"[PAD{len(tokens)}]", "[PAD7]"]
    kinds = [*byte_level["tokenizer.ggml.token_type"], 5, 5]
    metadata = byte_level | {"tokenizer.ggml.tokens": padded, "tokenizer.ggml.token_type": kinds}
    tokenizer = build(metadata, config={"vocab_size": len(padded) + 100})
    assert tokenizer.decode([len(tokens), len(tokens) + 2, len(tokens) + 99, 1 << 40, -1]) == ""
    assert tokenizer.decode([len(tokens) + 1]) == "[PAD7]"  # only the name of its own place is filler


def test_tokens_beyond_the_embedding(byte_level, build) -> None:
    """Control and user-defined ones are ordinary text then, whatever file names them; ordinary ones are an error."""
    rows = len(byte_level["tokenizer.ggml.tokens"])
    more = {"tokens": ["<|image|>", "<tool>"], "token_type": [3, 4]}
    metadata = {**byte_level, **{f"tokenizer.ggml.{k}": byte_level[f"tokenizer.ggml.{k}"] + more[k] for k in more}}
    config = {"text_config": {"vocab_size": rows}, "vocab_size": 5}
    text = "ab<|image|> <tool>"
    small, large = build(byte_level), build(metadata)
    assert max(large.encode(text)) == rows + 1
    whole = TokenizerFiles("folder", tokenizer=large.to_json().encode(), config=config)
    inner = json.loads(large.to_json())
    for token in more["tokens"]:
        del inner["model"]["vocab"][token]
    added = TokenizerFiles("folder", tokenizer=json.dumps(inner).encode(), config=config)
    for tokenizer in (build(metadata, config=config), Tokenizer(added)):
        assert tokenizer.encode(text) == small.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.vocab_size == rows and tokenizer.decode([rows]) == ""
        assert tokenizer.fingerprint == small.fingerprint
    with pytest.raises(ModelError, match=rf"folder knows the token id {rows + 1}, but the model only ids below {rows}"):
        Tokenizer(whole)
    with pytest.raises(ModelError, match="knows the token id") as caught:
        build(byte_level, config={"vocab_size": rows - 2})
    assert "another model" in caught.value.hint and not isinstance(caught.value, BrokenFileError)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.merges": []}, "a tokenizer without merges"),
        ({"tokenizer.ggml.pre": "quux-9"}, "by the rule 'quux-9', which is not known"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer of kind 'bert'"),
        ({"tokenizer.ggml.model": None}, "holds no tokenizer"),
        ({"tokenizer.ggml.token_type": [1]}, "types for another number"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "other things than strings"),
        ({"tokenizer.ggml.merges": ["a nothing"]}, "the merge 'a nothing' does not fit"),
        ({"tokenizer.ggml.merges": ["ab"]}, "the merge 'ab' does not fit"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.5]}, "scores for another number"),
    ],
)
def test_metadata_that_makes_no_tokenizer(byte_level, build, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(byte_level | change)


def whole(byte_level: dict[str, Any]) -> bytes:
    """The same tokenizer as a tokenizer.json."""
    return rebuild(read(byte_level, "toy")).to_str().encode()


def test_a_tokenizer_json_gives_the_same(byte_level, build) -> None:
    settings = {
        "bos_token": {"content": "<|im_start|>"},
        "eos_token": "<|im_end|>",
        "pad_token": None,
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ eos_token }}"}],
        "add_bos_token": True,
    }
    files = TokenizerFiles("folder", tokenizer=whole(byte_level), settings=settings)
    tokenizer, other = Tokenizer(files), build(byte_level)
    text = "ab <think><|im_end|> é🙂"
    assert tokenizer.encode(text) == other.encode(text)
    assert tokenizer.tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert tokenizer.special == other.special and tokenizer.eos_ids == other.eos_ids
    assert tokenizer.fingerprint == other.fingerprint != ""
    assert tokenizer.encode_raw("a")[0] == 1
    assert tokenizer.template is not None and tokenizer.template.render([]) == "<|im_end|>"


def test_a_post_processor_tells_about_bos(byte_level) -> None:
    inner = tokenizers.Tokenizer.from_str(whole(byte_level).decode())
    inner.enable_truncation(3)
    inner.enable_padding(length=9)
    named = {"bos_token": "<|im_start|>"}
    without = Tokenizer(TokenizerFiles("x", tokenizer=inner.to_str().encode(), settings=named))
    assert without.encode_raw("a b c d e") == without.encode("a b c d e")
    assert without.decode(without.encode("a b c d e f g")) == "a b c d e f g"  # neither cut nor padded
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    with_bos = Tokenizer(TokenizerFiles("x", tokenizer=inner.to_str().encode(), settings=named))
    assert with_bos.encode_raw("a") == [1, *with_bos.encode("a")]


def test_fingerprints_ignore_filler_at_the_end_only(byte_level) -> None:
    tokens = byte_level["tokenizer.ggml.tokens"]
    plain = fingerprint(TokenizerFiles("x", metadata=byte_level))
    padded = [*tokens, "[PAD264]", "<unused1>", "[PAD]"]
    assert fingerprint(TokenizerFiles("x", metadata={"tokenizer.ggml.tokens": padded})) == plain
    for changed in ([*tokens, "more"], ["[PAD0]", *tokens], tokens[:-1], [*tokens[:-2], tokens[-1], tokens[-2]]):
        assert fingerprint(TokenizerFiles("x", metadata={"tokenizer.ggml.tokens": changed})) != plain
    assert fingerprint(TokenizerFiles("x")) == ""


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"model": 3}', b'{"model": {"vocab": {"a": -1}}}'])
def test_a_tokenizer_json_that_is_broken(data: bytes) -> None:
    files = TokenizerFiles("folder", tokenizer=data)
    with pytest.raises(BrokenFileError, match=r"folder: tokenizer.json"):
        token_strings(files)
    with pytest.raises(BrokenFileError, match=r"folder: tokenizer.json cannot be read"):
        Tokenizer(files)


def test_a_tokenizer_json_on_which_the_library_panics(byte_level) -> None:
    layout = json.loads(whole(byte_level))
    layout["model"]["continuing_subword_prefix"] = "aaa"
    with pytest.raises(BrokenFileError, match=r"folder: tokenizer.json cannot be read"):
        Tokenizer(TokenizerFiles("folder", tokenizer=json.dumps(layout).encode()))


def test_no_tokenizer_and_an_unknown_decoder(byte_level) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer.json"):
        Tokenizer(TokenizerFiles("folder"))
    layout = json.loads(whole(byte_level)) | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    with pytest.raises(ModelError, match="decodes its tokens by 'WordPiece'"):
        Tokenizer(TokenizerFiles("folder", tokenizer=json.dumps(layout).encode()))


def test_a_broken_template_does_not_stop_the_rest(byte_level, build) -> None:
    tokenizer = build(byte_level, template="{% if %}")
    assert tokenizer.encode("a")
    with pytest.raises(ModelError, match="cannot be compiled"):
        _ = tokenizer.template
    assert build(byte_level).template is None


def test_lone_surrogates_do_not_raise(byte_level, build) -> None:
    tokenizer = build(byte_level)
    assert tokenizer.decode(tokenizer.encode("a\udc80b")) == "a?b"


@pytest.mark.real
def test_the_starter_against_reference_ids(starter: Tokenizer) -> None:
    for row in json.loads(GOLDEN.read_text("utf-8")):
        assert starter.encode(row["text"]) == row["ids"], row["text"]
        assert starter.decode(row["ids"], skip_special=False) == row["text"]
    assert starter.eos_ids == {0, 2} and starter.bos_id == 1 and not starter.adds_bos
    assert starter.vocab_size == 49152


@pytest.mark.real
def test_the_starter_decodes_as_the_library_does(starter: Tokenizer) -> None:
    rng = random.Random(5)
    for _ in range(500):
        ids = [rng.randrange(49152) for _ in range(rng.randrange(1, 30))]
        for keep in (False, True):
            assert starter.decode(ids, skip_special=keep) == starter._inner.decode(ids, skip_special_tokens=keep)
