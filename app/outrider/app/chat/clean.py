"""Makes text from a model, a paste or an engine message harmless to a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PICTURES = 0x2400  # the block of visible signs for control characters


def _stand_in(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0D or code in (0x2028, 0x2029):
        return " "
    if code < 0x20:
        return chr(_PICTURES + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def harmless(text: str) -> str:
    """`text` with every control character and bidi override replaced by one visible character, so offsets stay."""
    return _UNSAFE.sub(_stand_in, text)
