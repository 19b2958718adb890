"""Tokens and the rules that make ids of a text, whichever file they were read from. Loads no torch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from outrider.core.base.errors import BrokenFileError

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # token types of SentencePiece and of GGUF
NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
HIGHEST = 1 << 22  # no id is larger


@dataclass(frozen=True, slots=True)
class Splitting:
    """Byte-level BPE: a text is split by expressions, one after the other, then every byte is written as a sign."""

    rules: tuple[str, ...]
    whole: bool = False  # a word that is a token stays whole, whatever the merges would make of it
    composed: bool = False  # accents are composed first (NFC)


@dataclass(frozen=True, slots=True)
class Spaces:
    """BPE on plain text in which ▁ stands for a space; bytes that no token has get tokens of their own."""

    prefix: str = "always"  # where a space is put in front: `always` before every stretch of text, `first`, `never`
    squeeze: bool = False  # runs of spaces become one, those at the ends go
    marked: bool = True  # spaces are written as ▁
    charsmap: bytes = b""  # a compiled table of characters to replace


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything that `rebuild` needs. Without `merges` the scores say which tokens are joined first."""

    origin: str  # the file, as errors call it
    tokens: list[str]  # by id
    types: list[int]  # by id
    rule: Splitting | Spaces
    merges: list[tuple[str, str]] | None = None  # best first
    scores: list[float] = field(default_factory=list)  # by id
    named: Mapping[str, str] = field(default_factory=dict)  # roles that the file itself gives: bos_token, …
    adds_bos: bool = False  # raw text begins with the bos token
    eats: Mapping[int, tuple[bool, bool]] = field(default_factory=dict)  # id -> takes the blanks left, right of it


def pairs(lines: Iterable[str], tokens: Container[str], origin: str) -> list[tuple[str, str]]:
    """Merges written `left right`. Raises BrokenFileError for one that does not join two tokens into a third."""
    found = []
    for line in lines:
        left, space, right = line.partition(" ")
        if not space or left not in tokens or right not in tokens or left + right not in tokens:
            raise BrokenFileError(f"{origin}: the merge {line[:40]!r} does not fit the tokens.")
        found.append((left, right))
    return found


def filler(token: int) -> str:
    """The name of an id that no token has."""
    return f"[PAD{token}]"


def in_order(table: Mapping[int, str], origin: str) -> list[str]:
    """Strings by id, gaps filled. Raises BrokenFileError for ids that cannot be."""
    if not table:
        return []
    low, top = min(table), max(table)
    if low < 0 or top > HIGHEST:
        raise BrokenFileError(f"{origin} holds token ids from {low} to {top}.")
    return [table.get(i, filler(i)) for i in range(top + 1)]


def extended(vocabulary: Vocabulary, settings: Mapping[str, Any], added: Mapping[str, Any]) -> Vocabulary:
    """With the tokens that tokenizer_config.json (`settings`) and added_tokens.json (`added`) put on top.

    Raises BrokenFileError for ids that cannot be.
    """
    tokens, types = dict(enumerate(vocabulary.tokens)), dict(enumerate(vocabulary.types))
    eats = dict(vocabulary.eats)
    special = set(_named(settings))
    for token, text, entry in _listed(settings, added):
        tokens[token] = text
        control = bool(entry.get("special")) or text in special or types.get(token) == CONTROL
        types[token] = UNKNOWN if types.get(token) == UNKNOWN else CONTROL if control else USER
        if entry.get("lstrip") or entry.get("rstrip"):
            eats[token] = (bool(entry.get("lstrip")), bool(entry.get("rstrip")))
    ordered = in_order(tokens, vocabulary.origin)
    for token, text in enumerate(ordered):
        if text in special and types.get(token, UNUSED) != UNKNOWN:
            types[token] = CONTROL
    scores = vocabulary.scores + [0.0] * (len(ordered) - len(vocabulary.scores)) if vocabulary.scores else []
    return replace(
        vocabulary,
        tokens=ordered,
        types=[types.get(i, UNUSED) for i in range(len(ordered))],
        scores=scores,
        eats=eats,
    )


def cut(vocabulary: Vocabulary, rows: int | None) -> Vocabulary:
    """Without what is beyond the first `rows` ids, if nothing there is an ordinary token; else the same."""
    if rows is None or {NORMAL, BYTE} & set(vocabulary.types[rows:]):
        return vocabulary
    return replace(
        vocabulary,
        tokens=vocabulary.tokens[:rows],
        types=vocabulary.types[:rows],
        scores=vocabulary.scores[:rows],
    )


def _listed(settings: Mapping[str, Any], added: Mapping[str, Any]) -> Iterable[tuple[int, str, Mapping[str, Any]]]:
    for text, token in added.items():
        if isinstance(token, int):
            yield token, text, {}
    decoder = settings.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if key.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str):
            yield int(key), entry["content"], entry


def _named(settings: Mapping[str, Any]) -> Iterable[str]:
    others = settings.get("additional_special_tokens")
    for value in [*(settings.get(name) for name in NAMES), *(others if isinstance(others, list) else ())]:
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text:
            yield text
