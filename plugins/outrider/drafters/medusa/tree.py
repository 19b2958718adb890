"""Which guesses are tried together: the shape of the tree.

A node is named by its choice, the rank at each head on the way to it: (0, 2) is the third best of head 1 under the best of
head 0. A tree is grown from the root by adding, again and again, the node that is most likely to be accepted.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any

from outrider.core.base.errors import ModelError

Choice = tuple[int, ...]
Accuracy = Sequence[Sequence[float]]  # [heads][ranks] chance that this rank of a head is right once its parent is

RANKS = 10  # best guesses of a head that are looked at
PRIOR_ROUNDS = 8.0  # measured rounds that the prior weighs as much as
NODES = 63  # of the largest tree; with its root one pass of 64 rows

# The published tree of 63 nodes that is used where a checkpoint names none (mc_sim_7b_63): how many children a node has,
# always the best ranks of the next head.
_CHILDREN: dict[Choice, int] = {(): 10, (0,): 10, (1,): 7, (2,): 3, (3,): 2, (0, 0): 10, (0, 1): 3, (0, 2): 2}
_CHILDREN |= {(rank,): 1 for rank in range(4, 10)} | {(0, rank): 1 for rank in range(3, 8)}
_CHILDREN |= {(1, 0): 2, (2, 0): 1, (0, 0, 0): 2}
PUBLISHED: frozenset[Choice] = frozenset((*node, rank) for node, count in _CHILDREN.items() for rank in range(count))


def prior(heads: int, ranks: int) -> list[list[float]]:
    """What is assumed before anything was measured: half of the first guesses are right, later heads a little less often."""
    return [[0.5 * 0.9**head / (rank + 1) ** 1.5 for rank in range(ranks)] for head in range(heads)]


def grow(nodes: int, accuracy: Accuracy, allowed: Collection[Choice] | None = None) -> list[Choice]:
    """The `nodes` most likely choices, likeliest first and every parent before its children; all of `allowed`, or any.

    Asked for fewer nodes, the same accuracy gives the beginning of the same list.
    """
    grown: list[Choice] = []
    edge: list[tuple[float, Choice]] = []

    def open_below(choice: Choice, chance: float) -> None:
        if len(choice) < len(accuracy):
            for rank, right in enumerate(accuracy[len(choice)]):
                child = (*choice, rank)
                if allowed is None or child in allowed:
                    heapq.heappush(edge, (-chance * right, child))

    open_below((), 1.0)
    while edge and len(grown) < nodes:
        chance, choice = heapq.heappop(edge)
        grown.append(choice)
        open_below(choice, -chance)
    return grown


def parents_of(choices: Sequence[Choice]) -> list[int]:
    """Index of each node's parent in the same list, -1 for the root."""
    at = {choice: index for index, choice in enumerate(choices)}
    return [at[choice[:-1]] if len(choice) > 1 else -1 for choice in choices]


def checked(listed: Any, key: str, heads: int, vocab: int) -> list[Choice]:
    """The list under `key` of a config as choices, those below the last head left out. Raises ModelError if it is no tree."""
    try:
        choices = {tuple(choice) for choice in listed}
    except TypeError:
        choices = {()}
    if not all(choices) or not all(_is_rank(rank, vocab) for choice in choices for rank in choice):
        raise ModelError(f"The config's {key} is no list of lists of ranks.", "Correct it, or take it out.")
    orphans = sorted(choice for choice in choices if len(choice) > 1 and choice[:-1] not in choices)
    if orphans or not choices:
        what = f"names {list(orphans[0])} without its parent" if orphans else "is empty"
        raise ModelError(f"The config's {key} {what}.", "Correct it, or take it out.")
    return sorted(choice for choice in choices if len(choice) <= heads)


def _is_rank(rank: object, vocab: int) -> bool:
    return isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < vocab


class Meter:
    """Counts how often each rank of each head was right, given that the draft was right so far."""

    def __init__(self, heads: int, ranks: int) -> None:
        self.rounds = 0
        self._hits = [[right * PRIOR_ROUNDS for right in row] for row in prior(heads, ranks)]
        self._seen = [PRIOR_ROUNDS] * heads

    def learn(self, guesses: Sequence[Sequence[int]], tokens: Sequence[int]) -> None:
        """`guesses[k]`: ids of head k, best first; `tokens`: what came, the last one the target's own."""
        self.rounds += 1
        for head, (ids, token) in enumerate(zip(guesses, tokens, strict=False)):
            self._seen[head] += 1
            if token in ids:
                self._hits[head][ids.index(token)] += 1

    def accuracy(self) -> list[list[float]]:
        """Measured so far, [heads][ranks]."""
        return [[hit / seen for hit in row] for row, seen in zip(self._hits, self._seen, strict=True)]
