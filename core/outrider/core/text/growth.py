"""How much longer or shorter a text can become before it is cut into tokens: the steps of a tokenizer.json that rewrite it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LONGER = 32  # characters that a tokenizer may make of one
SHORTER = 10  # bytes of which one is left, where that could be any number
_SHORTER = {"NFD": 1, "Prepend": 1, "NFC": 3, "Lowercase": 3, "NFKC": 4, "NFKD": 4}


def longer(*steps: Any) -> int:
    """How many characters become of one by what these steps, normalisers or decoders of a tokenizer.json, put in its place.

    Unicode's own forms are not counted: they are bounded, and the same when they are applied again.
    """
    made = 1
    for part in _each(steps):
        if part.get("type") == "Replace":
            literal = _literal(part)
            made *= max(1, -(-len(str(part.get("content", ""))) // len(literal or " ")))
        elif part.get("type") == "Prepend":
            made *= max(1, len(str(part.get("prepend", ""))))
    return made


def shorter(step: Any) -> int:
    """Of how many bytes at least one is left by a normaliser."""
    made = 1
    for part in _each(step):
        literal = _literal(part)
        if part.get("type") == "Replace" and literal is not None:
            content = str(part.get("content", "")).encode("utf-8", "replace")
            made *= -(-len(literal.encode("utf-8", "replace")) // len(content)) if content else SHORTER
        else:
            made *= _SHORTER.get(str(part.get("type")), SHORTER)
    return min(made, SHORTER)


def _literal(part: dict[str, Any]) -> str | None:
    """The text that is replaced, None where it is an expression or nothing."""
    pattern = part.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) and found else None


def _each(step: Any) -> Iterator[dict[str, Any]]:
    """The single steps of one, of several, or of a sequence."""
    if isinstance(step, list | tuple):
        for part in step:
            yield from _each(part)
    elif isinstance(step, dict) and step:
        inner = [step[key] for key in ("normalizers", "decoders") if key in step]
        yield from _each(inner) if inner else [step]
