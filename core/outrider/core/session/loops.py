"""Whether an answer runs in circles: small models repeat one passage until something stops them.

Drafters guess such text almost perfectly, so its figures say nothing about other answers.
"""

from __future__ import annotations

from collections.abc import Sequence

SIZE, TIMES = 20, 4  # tokens of a passage, and how often it has to occur


def loops(ids: Sequence[int], size: int = SIZE, times: int = TIMES) -> bool:
    """Whether some `size` tokens in a row occur `times` times without overlap, anywhere in `ids`. Time is linear."""
    ends: dict[tuple[int, ...], int] = {}  # where the last occurrence that was counted ends
    counts: dict[tuple[int, ...], int] = {}
    for at in range(len(ids) - size + 1):
        passage = tuple(ids[at : at + size])
        if ends.get(passage, 0) > at:
            continue
        ends[passage] = at + size
        counts[passage] = counts.get(passage, 0) + 1
        if counts[passage] >= times:
            return True
    return False
