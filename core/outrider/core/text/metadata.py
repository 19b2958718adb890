"""The tokenizer in the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text.splits import splitting
from outrider.core.text.vocabulary import CONTROL, NORMAL, USER, Spaces, Vocabulary, pairs

_NAMES = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token", "unknown": "unk_token"}
_PLAIN = {"gemma4", "sarvam-moe"}  # merges on plain text, not on signs for bytes
# By custom raw text begins with the bos token there.
_WITH_BOS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken"}
_NO_BLANKS_EATEN = {"<unk>", "<s>", "<|endoftext|>"}


def read(metadata: Mapping[str, Any], origin: str, model_type: str = "") -> Vocabulary:
    """The vocabulary of a GGUF's metadata. Raises ModelError for an unknown kind, BrokenFileError for inconsistent lists."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens, types = _lists(metadata, origin)
    names = named(metadata, lambda token: tokens[token] if token < len(tokens) else None)
    shared: dict[str, Any] = {"named": names, "adds_bos": adds_bos(metadata)}
    if kind == "gemma4" or (kind == "gpt2" and _rule(metadata) in _PLAIN):
        return Vocabulary(
            origin, tokens, types, Spaces(prefix="never"), merges=_merges(metadata, tokens, origin), **shared
        )
    if kind == "gpt2":
        splits = splitting(_rule(metadata))
        if splits is None:
            raise ModelError(
                f"{origin} splits text by the rule {_rule(metadata)!r}, which is not known.",
                "Take the safetensors form of the model, which brings its own tokenizer.json.",
            )
        return Vocabulary(origin, tokens, types, splits, merges=_merges(metadata, tokens, origin), **shared)
    if kind == "llama":
        scores = metadata.get("tokenizer.ggml.scores") or []
        if not isinstance(scores, list) or len(scores) != len(tokens) or not all(isinstance(s, float) for s in scores):
            raise BrokenFileError(f"{origin}: {len(tokens)} tokens, but scores for another number.")
        prefix = "always" if metadata.get("tokenizer.ggml.add_space_prefix", True) else "never"
        eats = _eaten(tokens, types) if model_type == "phi3" else {}
        squeeze = bool(metadata.get("tokenizer.ggml.remove_extra_whitespaces", False))
        return Vocabulary(origin, tokens, types, Spaces(prefix, squeeze), scores=scores, eats=eats, **shared)
    if kind is None:
        raise ModelError(f"{origin} holds no tokenizer.", "Take a file of the model that has one.")
    raise ModelError(
        f"{origin} has a tokenizer of kind {kind!r}, which is not read.", "The kinds gpt2, llama and gemma4 are."
    )


def adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether raw text begins with the bos token, as stored or by the custom of the tokenizer's kind."""
    told = metadata.get("tokenizer.ggml.add_bos_token")
    if isinstance(told, bool):
        return told
    return metadata.get("tokenizer.ggml.model") == "llama" or _rule(metadata) in _WITH_BOS


def remarks(metadata: Mapping[str, Any]) -> list[str]:
    """What a user should know of such a file."""
    if metadata.get("tokenizer.ggml.model") != "gpt2" or metadata.get("tokenizer.ggml.pre"):
        return []
    return [
        "This GGUF file does not name its pre-tokenizer, so text is split into words as for GPT-2. If the model was made for "
        "another way, its answers are worse than they could be: take a newer file of the model."
    ]


def named(metadata: Mapping[str, Any], text: Callable[[int], str | None]) -> dict[str, str]:
    """Tokens by the role (`bos_token`, …) that their id has; `text` gives the string of an id."""
    found = {}
    for key, name in _NAMES.items():
        token = metadata.get(f"tokenizer.ggml.{key}_token_id")
        string = text(token) if isinstance(token, int) and 0 <= token < 1 << 31 else None
        if string is not None:
            found[name] = string
    return found


def _rule(metadata: Mapping[str, Any]) -> str:
    return str(metadata.get("tokenizer.ggml.pre") or "default")


def _lists(metadata: Mapping[str, Any], origin: str) -> tuple[list[str], list[int]]:
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    types = metadata.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise BrokenFileError(f"{origin}: the token list holds other things than strings.")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise BrokenFileError(f"{origin}: {len(tokens)} tokens, but types for another number.")
    return tokens, types


def _merges(metadata: Mapping[str, Any], tokens: list[str], origin: str) -> list[tuple[str, str]]:
    lines = metadata.get("tokenizer.ggml.merges")
    if not isinstance(lines, list) or not lines:
        raise BrokenFileError(f"{origin} has a tokenizer without merges.")
    return pairs((str(line) for line in lines), set(tokens), origin)


def _eaten(tokens: list[str], types: list[int]) -> dict[int, tuple[bool, bool]]:
    """Phi-3's control tokens take the blanks after them, and no GGUF says so."""
    return {
        i: (False, True)
        for i, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if text == "</s>" or (kind in (CONTROL, USER) and text not in _NO_BLANKS_EATEN)
    }
