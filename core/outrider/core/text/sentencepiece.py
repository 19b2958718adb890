"""tokenizer.model: the protobuf file of a SentencePiece tokenizer."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.text.vocabulary import BYTE, NORMAL, USER, Spaces, Vocabulary

_BPE = 2  # kind of model; others: 1 unigram, 3 words, 4 characters
_KINDS = {1: "unigram", 3: "word", 4: "character"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_ROLES = {"bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1), "unk_token": (40, 0)}  # field, default id
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_BESIDE = "Put the tokenizer.json of the model beside it."


@dataclass(frozen=True, slots=True)
class _Settings:
    """Fields of one message that are numbers or bytes; the last one of a number counts."""

    values: dict[int, int | bytes]

    def number(self, field: int, default: int) -> int:
        value = self.values.get(field, default)
        if not isinstance(value, int):
            raise ValueError(f"field {field} is no number")
        return value - (1 << 64) if value >> 63 else value

    def data(self, field: int) -> bytes:
        value = self.values.get(field, b"")
        if not isinstance(value, bytes):
            raise ValueError(f"field {field} holds no bytes")
        return value


def read(data: bytes, origin: str) -> Vocabulary:
    """The vocabulary of a tokenizer.model. Raises BrokenFileError, ModelError for a kind that is not read."""
    name = f"{origin}: tokenizer.model"
    if _TIKTOKEN.match(data):
        raise ModelError(f"{name} is a tiktoken file, which does not say how text is split.", _BESIDE)
    try:
        return _vocabulary(data, name)
    except (ValueError, IndexError, struct.error) as error:
        raise BrokenFileError(f"{name} cannot be read ({error}).") from error


def _vocabulary(data: bytes, name: str) -> Vocabulary:
    pieces: list[tuple[str, float, int]] = []
    trainer = normaliser = None
    for field, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            pieces.append(_piece(value))
        elif field == 2:
            trainer = _Settings(dict(_fields(value)))
        elif field == 3:
            normaliser = _Settings(dict(_fields(value)))
    if not pieces or trainer is None or normaliser is None:
        raise ValueError("it lacks its tokens or its settings")
    _check(trainer, name)
    tokens = [text for text, _, _ in pieces]
    return Vocabulary(
        name,
        tokens,
        [kind for _, _, kind in pieces],
        Spaces(
            prefix="always" if normaliser.number(3, 1) else "never",
            squeeze=bool(normaliser.number(4, 1)),
            marked=bool(normaliser.number(5, 1)),
            charsmap=normaliser.data(2),
        ),
        scores=[score for _, score, _ in pieces],
        named={
            role: tokens[token]
            for role, (field, default) in _ROLES.items()
            if 0 <= (token := trainer.number(field, default)) < len(tokens)
        },
        adds_bos=True,
    )


def _check(trainer: _Settings, name: str) -> None:
    kind = trainer.number(3, 1)
    how = _KINDS.get(kind, str(kind)) if kind != _BPE else "suffixed" if trainer.number(24, 0) else ""
    if how:
        raise ModelError(f"{name} is of the {how} kind, which is not read.", _BESIDE)


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            text = value.decode("utf-8")
        elif field == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif field == 3 and isinstance(value, int):
            kind = value
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"token {text[:40]!r} is of type {kind}")
    # Elsewhere tokens of users are written as they stand in a text, and so they are here.
    return text.replace("▁", " ") if kind == USER else text, score, kind


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field: an int, or the bytes of anything else. Raises ValueError, IndexError."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        wire = key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            length, place = _varint(data, place)
        elif wire in (_FIXED32, _FIXED64):
            length = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {place}")
        if length > end - place:
            raise ValueError(f"it ends inside a field, at byte {place}")
        yield key >> 3, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    byte = data[place]
    if byte < 0x80:
        return byte, place + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        place += 1
        byte = data[place]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError(f"a number without end at byte {place}")
    return value, place + 1
