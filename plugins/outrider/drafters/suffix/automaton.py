"""The suffix automaton of a growing and shrinking token sequence, with the number of occurrences of every substring.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985). A state stands for the substrings
that end at the same places; following its link drops tokens from the front until the string occurs at more places. States
are in the order of their creation, so the last token can be taken back exactly: at most two states go, and the transitions
that led to them are found by the same walk that made them.
"""

from __future__ import annotations

ROOT, NONE = 0, -1
CHAIN = 64  # links that one token is counted along; only text that repeats itself over and over has longer chains


class Automaton:
    """Amortised O(1) for a token added or taken back, at most two states a token. Cursors are states."""

    def __init__(self) -> None:
        self._next: list[dict[int, int]] = [{}]  # by state: token -> state
        self._link = [NONE]
        self._length = [0]  # tokens of the longest string of a state
        self._count = [0]  # places where its strings end
        self._last = ROOT  # the state of the whole sequence
        self._undo: list[tuple[int, int, int]] = []  # each token, the state before it, the state it split or NONE

    @property
    def size(self) -> int:
        """Tokens held."""
        return len(self._undo)

    def add(self, token: int) -> None:
        """The sequence grows by one token."""
        state, fresh = self._last, self._new(self._length[self._last] + 1, {}, ROOT, 0)
        while state != NONE and token not in self._next[state]:
            self._next[state][token] = fresh
            state = self._link[state]
        split = NONE
        if state != NONE:
            known = self._next[state][token]
            if self._length[known] == self._length[state] + 1:
                self._link[fresh] = known
            else:
                split = known
                self._link[fresh] = self._split(known, state, token)
        self._undo.append((token, self._last, split))
        self._last = fresh
        for suffix in self._chain(fresh):
            self._count[suffix] += 1

    def undo(self) -> None:
        """The sequence loses its last token; everything is as it was before that token came."""
        fresh = self._last
        for suffix in self._chain(fresh):
            self._count[suffix] -= 1
        token, before, split = self._undo.pop()
        shorter, states, state = self._link[fresh], self._next, before
        if split != NONE:
            self._link[split] = self._link[shorter]
        while state != NONE and states[state].get(token) == fresh:
            del states[state][token]
            state = self._link[state]
        while split != NONE and state != NONE and states[state].get(token) == shorter:
            states[state][token] = split
            state = self._link[state]
        self._last = before
        for rows in (self._next, self._link, self._length, self._count):
            del rows[fresh:]

    def matches(self) -> list[tuple[int, int]]:
        """Every suffix of the sequence that occurred before, longest first: (tokens that match, cursor)."""
        return [(self._length[state], state) for state in self._chain(self._link[self._last])]

    def follow(self, cursor: int) -> list[tuple[int, int, int]]:
        """What came behind a cursor: (token, how often, cursor after it). At the sequence's end its shorter suffixes go on."""
        while cursor > ROOT and not self._next[cursor]:
            cursor = self._link[cursor]
        if cursor <= ROOT:
            return []
        return [(token, self._count[state], state) for token, state in self._next[cursor].items()]

    def _chain(self, state: int) -> list[int]:
        """`state` and what its links lead to, without the root."""
        chain = list[int]()
        while state > ROOT and len(chain) < CHAIN:
            chain.append(state)
            state = self._link[state]
        return chain

    def _new(self, length: int, following: dict[int, int], link: int, count: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._count.append(count)
        return len(self._next) - 1

    def _split(self, known: int, state: int, token: int) -> int:
        """The shorter strings of `known`, which from now on end at one more place, get a state of their own."""
        shorter = self._new(self._length[state] + 1, dict(self._next[known]), self._link[known], self._count[known])
        while state != NONE and self._next[state].get(token) == known:
            self._next[state][token] = shorter
            state = self._link[state]
        self._link[known] = shorter
        return shorter
