"""A tokenizer built from a vocabulary: byte-level BPE by splitting rules, and BPE on text with ▁ for spaces."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outrider.core.base.errors import BrokenFileError
from outrider.core.text.vocabulary import CONTROL, NORMAL, UNKNOWN, UNUSED, USER, Spaces, Splitting, Vocabulary, filler


def rebuild(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of a vocabulary. Raises BrokenFileError if one of its expressions or tables cannot be used."""
    kinds = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    ids: dict[str, int] = {}
    for i, (text, kind) in enumerate(kinds):
        if kind != UNUSED or text != filler(i):  # fillers stand for rows that no token has
            ids.setdefault(text, i)
    merges = _by_score(vocabulary, ids) if vocabulary.merges is None else vocabulary.merges
    try:
        if isinstance(vocabulary.rule, Splitting):
            tokenizer = _byte_level(ids, merges, vocabulary.rule)
        else:
            unknown = next((text for text, kind in kinds if kind == UNKNOWN), None)
            tokenizer = _marked(ids, merges, vocabulary.rule, unknown)
    except Exception as error:
        raise BrokenFileError(f"{vocabulary.origin} makes no tokenizer ({error}).") from error
    tokenizer.add_special_tokens(
        [_added(vocabulary, i, True) for i, (_, kind) in enumerate(kinds) if kind in (CONTROL, UNKNOWN)]
    )
    tokenizer.add_tokens([_added(vocabulary, i, False) for i, (_, kind) in enumerate(kinds) if kind == USER])
    return tokenizer


def _added(vocabulary: Vocabulary, token: int, special: bool) -> AddedToken:
    left, right = vocabulary.eats.get(token, (False, False))
    return AddedToken(vocabulary.tokens[token], lstrip=left, rstrip=right, normalized=False, special=special)


def _byte_level(ids: dict[str, int], merges: list[tuple[str, str]], rule: Splitting) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, fuse_unk=False, ignore_merges=rule.whole))
    steps: list[Any] = [pre_tokenizers.Split(Regex(expression), behavior="isolated") for expression in rule.rules]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _marked(ids: dict[str, int], merges: list[tuple[str, str]], rule: Spaces, unknown: str | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    mark = "▁" if rule.marked else " "
    steps: list[Any] = [normalizers.Precompiled(rule.charsmap)] if rule.charsmap else []
    if rule.squeeze:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if rule.prefix == "always":
        steps.append(normalizers.Prepend(mark))
    if rule.marked:
        steps.append(normalizers.Replace(" ", mark))
    tokenizer.normalizer = normalizers.Sequence(steps)
    if rule.prefix == "first":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=mark, prepend_scheme="first", split=False)
    steps = [decoders.Replace(mark, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps if rule.prefix == "never" else [*steps, decoders.Strip(" ", 1, 0)])
    return tokenizer


def _by_score(vocabulary: Vocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to join two tokens into a normal one, best score first, as the merges that the file does not store."""
    tokens, scores = vocabulary.tokens, vocabulary.scores
    normal = (place for place, kind in enumerate(vocabulary.types) if kind == NORMAL)
    found: list[tuple[str, str]] = []
    for place in sorted(normal, key=lambda place: -scores[place]):
        token = tokens[place]
        cuts = range(1, len(token))
        joins = [(left, right) for cut in cuts if (left := token[:cut]) in ids and (right := token[cut:]) in ids]
        found += joins if len(joins) < 2 else sorted(joins, key=lambda join: (ids[join[0]], ids[join[1]]))
    return found
