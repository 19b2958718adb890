"""What a checkpoint knows about its text side, as it was stored, and the fingerprint of its tokens. Loads no torch."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outrider.core.errors import BrokenFileError

_FILLER = re.compile(r"\[PAD\d*\]|<unused\d+>")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """Raw material of a tokenizer; what the checkpoint does not have is None or empty."""

    origin: str  # how errors call it
    tokenizer: bytes | None = None  # a whole tokenizer.json
    settings: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    template: str | None = None  # source of the chat template
    metadata: Mapping[str, Any] = field(default_factory=dict)  # the `tokenizer.*` keys of a GGUF
    config: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Layout(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def token_strings(files: TokenizerFiles) -> list[str]:
    """Token strings in id order, gaps filled with [PADn]; empty without a tokenizer. Raises BrokenFileError."""
    if files.tokenizer is None:
        tokens = files.metadata.get("tokenizer.ggml.tokens", [])
        return tokens if isinstance(tokens, list) and all(isinstance(t, str) for t in tokens) else []
    try:
        layout = msgspec.json.decode(files.tokenizer, type=_Layout)
    except msgspec.MsgspecError as error:
        raise BrokenFileError(f"{files.origin}: tokenizer.json cannot be read ({error}).") from error
    vocab = layout.model.vocab
    table = (
        {i: text for text, i in vocab.items()} if isinstance(vocab, dict) else {i: t for i, (t, _) in enumerate(vocab)}
    )
    table.update((token.id, token.content) for token in layout.added_tokens)
    if not table:
        return []
    top = max(table)
    if min(table) < 0 or top > 1 << 24:
        raise BrokenFileError(f"{files.origin}: tokenizer.json holds token ids from {min(table)} to {top}.")
    return [table.get(i, f"[PAD{i}]") for i in range(top + 1)]


def fingerprint(files: TokenizerFiles) -> str:
    """SHA-256 of the token strings in id order without trailing filler; equal means shared token ids. Empty: no tokenizer."""
    tokens = token_strings(files)
    end = len(tokens)
    while end and _FILLER.fullmatch(tokens[end - 1]):
        end -= 1
    if not end:
        return ""
    digest = hashlib.sha256()
    for token in tokens[:end]:
        data = token.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
