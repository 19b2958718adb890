"""What a checkpoint knows about its text side, as it was stored, and the fingerprint of its tokens. Loads no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text import gpt2, metadata, sentencepiece, tekken
from outrider.core.text.vocabulary import Spaces, Vocabulary, extended, in_order

_FILLER = re.compile(r"\[PAD\d*\]|<unused\d+>")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Raw material of a tokenizer; what the checkpoint does not have is None or empty. The first that is there counts."""

    origin: str  # how errors call it
    tokenizer: bytes | None = None  # a whole tokenizer.json
    tekken: bytes | None = None  # tekken.json
    sentencepiece: bytes | None = None  # tokenizer.model
    vocab: bytes | None = None  # vocab.json
    merges: bytes | None = None  # merges.txt
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the `tokenizer.*` keys of a GGUF
    settings: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    added: Mapping[str, Any] = field(default_factory=dict)  # added_tokens.json
    template: str | None = None  # source of the chat template
    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int | None:
        """How many ids the model has embeddings for; None if its config does not tell."""
        inner = self.config.get("text_config")
        value = {**self.config, **(inner if isinstance(inner, dict) else {})}.get("vocab_size")
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _AddedOnly(msgspec.Struct):
    added_tokens: list[_Added] = []


class _Layout(_AddedOnly, kw_only=True):
    model: _Model


def vocabulary(files: TokenizerFiles) -> Vocabulary:
    """The vocabulary of a checkpoint without a tokenizer.json. Raises ModelError, BrokenFileError."""
    origin, settings = files.origin, files.settings
    if files.tekken is not None:
        found = tekken.read(files.tekken, origin)
    elif files.sentencepiece is not None:
        found = _prefixed(sentencepiece.read(files.sentencepiece, origin), settings)
    elif files.vocab is not None and files.merges is not None:
        found = gpt2.read(files.vocab, files.merges, origin, settings, str(files.config.get("model_type")))
    elif files.metadata:
        return metadata.read(files.metadata, origin, str(files.config.get("model_type")))
    else:
        raise ModelError(f"{origin} has no tokenizer.json.", "Put the tokenizer.json of the model beside it.")
    return extended(found, settings, files.added)


def _prefixed(found: Vocabulary, settings: Mapping[str, Any]) -> Vocabulary:
    """Where a space is put in front, as the settings change it. Files older than the switch `legacy` behave as if it were on."""
    rule = found.rule
    if not isinstance(rule, Spaces) or rule.prefix == "never":
        return found
    if settings.get("add_prefix_space") is False:
        return replace(found, rule=replace(rule, prefix="never"))
    return replace(found, rule=replace(rule, prefix="first")) if settings.get("legacy") is False else found


def token_strings(files: TokenizerFiles) -> list[str]:
    """Token strings in id order, gaps filled with [PADn]; empty without a tokenizer of a kind that is read.

    Raises BrokenFileError.
    """
    if files.tokenizer is None:
        if files.tekken is None and files.sentencepiece is None and files.vocab is None:
            tokens = files.metadata.get("tokenizer.ggml.tokens", [])
            return tokens if isinstance(tokens, list) and all(isinstance(t, str) for t in tokens) else []
        try:
            return vocabulary(files).tokens
        except BrokenFileError:
            raise
        except ModelError:
            return []
    try:
        layout = msgspec.json.decode(files.tokenizer, type=_Layout)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BrokenFileError(f"{files.origin}: tokenizer.json cannot be read ({error}).") from error
    vocab = layout.model.vocab
    table = (
        {i: text for text, i in vocab.items()} if isinstance(vocab, dict) else {i: t for i, (t, _) in enumerate(vocab)}
    )
    table.update((token.id, token.content) for token in layout.added_tokens)
    return in_order(table, f"{files.origin}: tokenizer.json")


def trimmed(data: bytes, rows: int | None) -> bytes:
    """A tokenizer.json without the added tokens beyond the first `rows` ids. Raises MsgspecError."""
    if rows is None or all(token.id < rows for token in msgspec.json.decode(data, type=_AddedOnly).added_tokens):
        return data
    whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    added = msgspec.json.decode(whole["added_tokens"], type=list[dict[str, Any]])
    whole["added_tokens"] = msgspec.Raw(msgspec.json.encode([token for token in added if token["id"] < rows]))
    return msgspec.json.encode(whole)


def fingerprint(files: TokenizerFiles) -> str:
    """SHA-256 of the token strings in id order; equal means shared token ids. Empty: no tokenizer.

    Whatever file they came from: trailing filler and tokens beyond the embedding do not count, and ▁ is a space, as some
    files write it.
    """
    tokens = token_strings(files)[: files.rows]
    end = len(tokens)
    while end and _FILLER.fullmatch(tokens[end - 1]):
        end -= 1
    if not end:
        return ""
    digest = hashlib.sha256()
    for token in tokens[:end]:
        data = token.replace("▁", " ").encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
