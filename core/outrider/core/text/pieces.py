"""What bytes a token stands for, by the decoder of its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import tokenizers

from outrider.core.base.errors import ModelError
from outrider.core.text.signs import BYTES

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "▁"


class Pieces(dict[int, bytes]):
    """Token id -> bytes, worked out on first use; b"" for an id that no token has. Raises ModelError for an unknown decoder.

    Joined bytes are decoded by whoever uses them, so a character may be spread over tokens in any way.
    """

    def __init__(self, inner: tokenizers.Tokenizer, added: frozenset[int], origin: str) -> None:
        super().__init__()
        self._inner = inner
        self._added = added  # their text stands for itself
        self.leading_spaces = 0
        self._byte_level = False
        self._byte_fallback = False
        self._replace: list[tuple[str, str]] = []
        decoder = json.loads(inner.decoder.__getstate__()) if inner.decoder is not None else None
        for step in _steps(decoder):
            if not self._learn(step):
                raise ModelError(f"{origin} decodes its tokens by {step.get('type')!r}, which is not known.")

    def _learn(self, step: dict[str, Any]) -> bool:
        match step:
            case {"type": "ByteLevel"}:
                self._byte_level = True
            case {"type": "ByteFallback"}:
                self._byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replace.append((old, new))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if start <= 1:
                self.leading_spaces = start
            case {"type": "Metaspace", "replacement": str(mark)}:
                self._replace.append((mark, " "))
                self.leading_spaces = int(step.get("prepend_scheme", "always") != "never")
            case _:
                return False
        return True

    def __missing__(self, token: int) -> bytes:
        text = self._inner.id_to_token(token) if 0 <= token < 1 << 31 else None
        data = b"" if text is None else self._bytes(text, token in self._added)
        self[token] = data
        return data

    def _bytes(self, text: str, added: bool) -> bytes:
        if self._byte_fallback and (match := _BYTE.fullmatch(text)):
            return bytes([int(match[1], 16)])
        if self._byte_level and not added:
            mapped = [BYTES.get(sign) for sign in text]
            if None not in mapped:
                return bytes(byte for byte in mapped if byte is not None)
        for old, new in self._replace:
            text = text.replace(old, new)
        return text.encode("utf-8", "replace")


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is None:
        yield {"type": "none"}
    elif decoder.get("type") == "Sequence":
        for step in decoder.get("decoders", []):
            yield from _steps(step)
    else:
        yield decoder
