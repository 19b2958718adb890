"""The 256 signs in which byte-level vocabularies write bytes."""

from __future__ import annotations

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}  # these bytes stand for themselves
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]  # the others follow from U+0100 on
BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(_HIDDEN)}
"""Sign -> byte."""
_SIGNS = {byte: sign for sign, byte in BYTES.items()}


def written(data: bytes) -> str:
    """The bytes as signs."""
    return data.decode("latin-1").translate(_SIGNS)
