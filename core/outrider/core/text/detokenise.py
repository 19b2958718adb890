"""Tokens to text while they arrive, whole characters only."""

from __future__ import annotations

import codecs

from outrider.core.text.tokenizer import Tokenizer


class Detokeniser:
    """Follows one answer. The pieces, joined, are `tokenizer.decode(ids)`, whatever the ids; at most 3 bytes are held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._special, self._pieces = tokenizer, tokenizer.special, tokenizer.pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._spaces = tokenizer.leading_spaces  # still to be dropped in front

    def push(self, token: int) -> str:
        """The text that this token completes; empty for a control token and while a character is incomplete."""
        if token in self._special:
            return ""
        text = self._decoder.decode(self._pieces[token])
        return self._trim(text) if self._spaces else text

    def flush(self) -> str:
        """What is left at the end: bytes that never became a character, as U+FFFD."""
        return self._trim(self._decoder.decode(b"", True))

    def _trim(self, text: str) -> str:
        if not self._spaces or not text:
            return text
        kept = self._tokenizer.strip(text)
        self._spaces = 0
        return kept
