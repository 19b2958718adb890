"""From counted continuations to a draft, as in SuffixDecoding: every match is scored by the tokens it promises.

A match of L tokens may draft REACH * L deep. The likeliest nodes under it come first (a heap over the product of the shares of
every step), until the budget is used or nothing is likely enough; the score is the sum of their probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Protocol

from outrider.core.drafting import Draft

REACH = 2  # levels of a draft for each token that matched
LEAST = 0.2  # a node less likely than this is not drafted


class Index(Protocol):
    """Where continuations are counted; a cursor is a place behind some tokens."""

    def follow(self, cursor: Any) -> list[tuple[int, int, Any]]:
        """(token, how often, cursor after it) for all that came behind `cursor`."""
        ...


@dataclass(slots=True)
class Guess:
    """A tree of nodes, likeliest first. `score`: tokens it is expected to give."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # -1 = root
    score: float = 0.0
    sure: list[float] = field(default_factory=list)  # of each node, once its parent is right


def best(index: Index, matches: Iterable[tuple[int, Any]], nodes: int) -> Guess:
    """The guess of the best score over `matches` (length, cursor), longest first; of equal ones that of the longest."""
    chosen = Guess()
    for length, cursor in matches:
        depth = REACH * length
        if min(depth, nodes) <= chosen.score:  # it promises at most one token for each of its levels
            break
        guess = grow(index, cursor, nodes, length)
        if guess.score > chosen.score:
            chosen = guess
    return chosen


def grow(index: Index, cursor: Any, nodes: int, length: int) -> Guess:
    """The `nodes` likeliest nodes under `cursor`, where `length` tokens matched; the longer, the deeper and the surer."""
    guess, depth = Guess(), REACH * length
    heap: list[
        tuple[float, int, int, int, int, Any, float]
    ] = []  # (-probability, order, token, parent, level, cursor, sure)
    made = 0

    def push(cursor: Any, parent: int, level: int, probability: float) -> None:
        nonlocal made
        following = index.follow(cursor)
        total = sum(count for _, count, _ in following)
        for token, count, behind in following:
            share = probability * count / total
            if share >= LEAST:
                sure = count / total * (length + level - 1) / (length + level + 1)
                heappush(heap, (-share, made, token, parent, level, behind, sure))
                made += 1

    push(cursor, -1, 1, 1.0)
    while heap and len(guess.tokens) < nodes:
        share, _, token, parent, level, behind, sure = heappop(heap)
        guess.tokens.append(token)
        guess.parents.append(parent)
        guess.sure.append(sure)
        guess.score -= share
        if level < depth:
            push(behind, len(guess.tokens) - 1, level + 1, -share)
    return guess


def draft(guess: Guess) -> Draft | None:
    """The guess as the engine takes it: a chain where it does not branch, None where it is empty."""
    import torch

    count = len(guess.tokens)
    if count == 0:
        return None
    tokens, sure = torch.tensor(guess.tokens, dtype=torch.int64), torch.tensor(guess.sure)
    chain = guess.parents == list(range(-1, count - 1))
    return Draft(tokens, None if chain else torch.tensor(guess.parents, dtype=torch.int64), confidence=sure)
