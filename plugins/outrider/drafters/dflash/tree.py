"""DDTree (arXiv 2604.12989): the most probable prefixes of a block's laws, best first, as one tree.

A node's weight is the log-probability of the path to it. Whoever is taken from the heap puts two there: its next sibling and
its first child, so that the first `budget` taken are the `budget` best.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

Ranked = Callable[[int, int], tuple[Sequence[float], Sequence[int]]]
"""(depth, id before it) -> log-probabilities, best first, and their ids."""


def best_first(ranked: Ranked, root: int, depth: int, budget: int) -> tuple[list[int], list[int]]:
    """Tokens and parents (-1 = root) of at most `budget` nodes no deeper than `depth`; parents and better siblings first."""
    tokens: list[int] = []
    parents: list[int] = []
    heap: list[tuple[float, int, tuple[int, int, int, int]]] = []  # cost, order of arrival, place
    arrived = 0

    def offer(above: float, level: int, parent: int, previous: int, rank: int) -> None:
        nonlocal arrived
        weights = ranked(level, previous)[0] if level < depth else ()
        if rank < len(weights) and weights[rank] > -float("inf"):
            arrived += 1
            heapq.heappush(heap, (above - weights[rank], arrived, (level, parent, previous, rank)))

    offer(0.0, 0, -1, root, 0)
    while heap and len(tokens) < budget:
        cost, _, (level, parent, previous, rank) = heapq.heappop(heap)
        weights, ids = ranked(level, previous)
        tokens.append(ids[rank])
        parents.append(parent)
        offer(cost + weights[rank], level, parent, previous, rank + 1)
        offer(cost, level + 1, len(tokens) - 1, ids[rank], 0)
    return tokens, parents
