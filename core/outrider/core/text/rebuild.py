"""A tokenizer rebuilt from GGUF metadata: byte-level BPE of every known splitting rule, and SentencePiece scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.core.errors import BrokenFileError, ModelError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # token types of the format

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _CONTRACTION
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LEAD, _UPPER, _LOWER = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = f"{_LEAD}{_UPPER}*{_LOWER}+{{0}}|{_LEAD}{_UPPER}+{_LOWER}*{{0}}"
_O200K = _WORDS.replace("{0}", _CONTRACTION + "?") + r"|\p{N}{1,3}" + _SLASHED
_TEKKEN = _WORDS.replace("{0}", "") + r"|\p{N}" + _SLASHED
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_MINICPM5 = (r"\p{N}{1,3}", _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+" + _TAIL)
_LAGUNA = (r"\n+", _QWEN2)

_SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama-bpe", "llama3", "falcon3", "lfm2", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    "qwen35": (_QWEN35,),
    **dict.fromkeys(("gpt-4o", "llama4"), (_O200K,)),
    "tekken": (_TEKKEN,),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "minicpm5": _MINICPM5,
    "laguna": _LAGUNA,
}
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r", "exaone", "mellum2"}  # then the GPT-2 rule
_GPT2 = {"gpt-2", "mpt", "olmo", "phi-2", "jais", "default"}
# A word that is a token stays whole, whatever the merges would make of it.
_WHOLE_WORDS = {name for name, rules in _SPLITS.items() if rules in ((_LLAMA3,), (_O200K,), (_TEKKEN,))}
_COMPOSED = {"qwen2", "qwen35", "deepseek-r1-qwen"}  # their original tokenizers compose accents first
_WITH_BOS = {"llama-bpe", "tekken"}


def rebuild(metadata: Mapping[str, Any], origin: str) -> Tokenizer:
    """The tokenizer of a GGUF's metadata. Raises ModelError for an unknown kind, BrokenFileError for inconsistent lists."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens, types = _lists(metadata, origin)
    vocab: dict[str, int] = {}
    for i, token in enumerate(tokens):
        vocab.setdefault(token, i)
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, vocab, origin)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, vocab, (tokens, types), origin)
    elif kind is None:
        raise ModelError(f"{origin} holds no tokenizer.", "Take a file of the model that has one.")
    else:
        raise ModelError(f"{origin} has a tokenizer of kind {kind!r}, which is not read.", "gpt2 and llama are.")
    kinds = list(zip(tokens, types, strict=True))
    special = [text for text, kind in kinds if kind in (CONTROL, UNKNOWN) and text]
    plain = [text for text, kind in kinds if kind == USER and text]
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return tokenizer


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether raw text begins with the bos token, as stored or by the custom of the tokenizer's kind."""
    told = metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(told, bool):
        return told
    return metadata.get("tokenizer.ggml.model") == "llama" or str(metadata.get("tokenizer.ggml.pre")) in _WITH_BOS


def _lists(metadata: Mapping[str, Any], origin: str) -> tuple[list[str], list[int]]:
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BrokenFileError(f"{origin}: the token list holds other things than strings.")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise BrokenFileError(f"{origin}: {len(tokens)} tokens, but types for another number.")
    return tokens, types


def _byte_level(metadata: Mapping[str, Any], vocab: dict[str, int], origin: str) -> Tokenizer:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    merges = []
    lines = metadata.get("tokenizer.ggml.merges")
    for line in lines if isinstance(lines, list) else ():
        left, space, right = str(line).partition(" ")
        if not space or left not in vocab or right not in vocab or left + right not in vocab:
            raise BrokenFileError(f"{origin}: the merge {str(line)[:40]!r} does not fit the tokens.")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=pre in _WHOLE_WORDS))
    steps: list[Any]
    if pre in _SPLITS:
        steps = [pre_tokenizers.Split(Regex(rule), behavior="isolated") for rule in _SPLITS[pre]]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    elif pre in _DIGITS_FIRST or pre in _GPT2:
        steps = [pre_tokenizers.Digits(individual_digits=True)] if pre in _DIGITS_FIRST else []
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    else:
        raise ModelError(
            f"{origin} splits text by the rule {pre!r}, which is not known.",
            "Take the safetensors form of the model, which brings its own tokenizer.json.",
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if pre in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    metadata: Mapping[str, Any], vocab: dict[str, int], lists: tuple[list[str], list[int]], origin: str
) -> Tokenizer:
    tokens, types = lists
    scores = metadata.get("tokenizer.ggml.scores") or []
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(s, float) for s in scores):
        raise BrokenFileError(f"{origin}: {len(tokens)} tokens, but scores for another number.")
    unknown = next((t for t, k in zip(tokens, types, strict=True) if k == UNKNOWN), None)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=_merges(vocab, tokens, types, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix else [spaces])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges(vocab: dict[str, int], tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a normal one, best score first, as the merges that the file does not store."""
    found: list[tuple[float, int, int, int, tuple[str, str]]] = []
    for place, (token, kind, score) in enumerate(zip(tokens, types, scores, strict=True)):
        if kind != NORMAL:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                found.append((-score, place, vocab[left], vocab[right], (left, right)))
    found.sort()
    return [merge for *_, merge in found]
