"""Names of chats and messages: ULIDs, which sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time

_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM = 80  # bits after the milliseconds
_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """26 letters, later than all that this process made before."""
    global _last
    fresh = (int(time.time() * 1000) << _RANDOM) | int.from_bytes(os.urandom(_RANDOM // 8), "big")
    with _lock:
        _last = fresh if fresh > _last else _last + 1
        number = _last
    return "".join(_LETTERS[number >> shift & 31] for shift in range(125, -1, -5))
