"""Lookahead: the target's own choices behind guesses, right or wrong, become the n-grams of later drafts.

Source: lookahead decoding (Fu et al., arXiv 2402.02057). A draft is a tree with two parts: *candidates*, n-grams of the
pool that begin with the root, and the *window*, one line of Jacobi guesses for the positions ahead. Where the target read
the window it says what it would have put next (`Committed.choices`); these are the window's next guesses and, with the tokens
before them, new n-grams.

What differs from the paper: its window is W lines of N - 1 levels under a mask of its own, a guess seeing older levels
along its diagonal; here a pass is one tree, so there is one line, every guess sees the whole line before it, and an n-gram
comes from one pass and not from N - 1. Window and candidates share the budget of a draft, so the window is as wide as what
the candidates leave of it and not 5 to 60 positions whatever that costs; and the window's tokens can be accepted as they
are. Choices at candidates feed the pool too, and so does the text itself.

Letters: `n` draft nodes, `m` accepted nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.core.drafting import Committed, Context, Draft, Fit, Match, ModelInfo, Needs, Shape, Target

if TYPE_CHECKING:
    from torch import Tensor

LEVEL = 5  # tokens of an n-gram, the first one included
SET = 8  # n-grams kept behind one token
KEYS = 1 << 13  # tokens with n-grams; then the one that was used longest ago goes
MOST = 60  # nodes of a draft


class Lookahead:
    """The method; it fits every model."""

    api = 1
    options: Mapping[str, str] = {}

    def matches(self, model: ModelInfo) -> Match:
        """Always fits."""
        return Match(
            Fit.ANY, "drafts from what the model itself chose behind earlier guesses; needs no weights", gain=1.1
        )

    def load(self, target: Target, match: Match, options: Mapping[str, object]) -> LookaheadDrafter:
        """A drafter without weights."""
        return LookaheadDrafter()


class Pool:
    """N-grams by their first token, the newest last."""

    def __init__(self) -> None:
        self._sets: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, gram: Sequence[int]) -> None:
        """Make an n-gram of at least two tokens the newest of its set."""
        first, rest = gram[0], tuple(gram[1:])
        grams = self._sets.pop(first, {})
        grams.pop(rest, None)
        grams[rest] = None
        if len(grams) > SET:
            del grams[next(iter(grams))]
        self._sets[first] = grams
        if len(self._sets) > KEYS:
            del self._sets[next(iter(self._sets))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What the n-grams that begin with `token` continue with, newest first."""
        return list(reversed(self._sets.get(token, {})))

    def copy(self) -> Pool:
        """The same n-grams."""
        other = Pool()
        other._sets = {first: dict(grams) for first, grams in self._sets.items()}
        return other


@dataclass(slots=True)
class Tree:
    """A draft in the making, under the root -1. `window`: the nodes of the window, from the root down."""

    nodes: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    window: list[int] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def line(self, tokens: Sequence[int], nodes: int) -> list[int]:
        """Nodes of a line under the root, shared where there are such; it ends where it would need more than `nodes` in all."""
        parent, line = -1, []
        for token in tokens:
            node = self._known.get((parent, token))
            if node is None:
                if len(self.tokens) >= nodes:
                    break
                node = self._known[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
            line.append(node)
            parent = node
        return line

    def path(self, node: int) -> list[int]:
        """Tokens from the root's child down to `node`."""
        path: list[int] = []
        while node >= 0:
            path.append(self.tokens[node])
            node = self.parents[node]
        return path[::-1]


class LookaheadDrafter:
    """Follows one conversation with a pool and a window of guesses for the positions after the root."""

    needs = Needs(choices=True)
    shape = Shape(nodes=MOST, depth=MOST)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the conversation and all that was learnt from it."""
        self._pool = Pool()
        self._tokens: list[int] = []
        self._window: list[int] = []
        self._tree: Tree | None = None  # the last draft, until its outcome is known

    def advance(self, step: Committed) -> None:
        """Learn from what the target chose, accepted or not, and from the text."""
        if self._tree is not None and step.start == len(self._tokens):
            self._learn(self._tree, step)
        else:
            self._window = []
        self._tree = None
        for token in step.tokens.tolist():
            self._tokens.append(token)
            self._add(self._tokens[-LEVEL:])

    def rewind(self, length: int) -> None:
        """Cut the text; n-grams from what was cut stay, since they are no more than guesses."""
        del self._tokens[length:]
        self._window, self._tree = [], None

    def propose(self, context: Context) -> Draft | None:
        """Candidates in up to half of the nodes, the window in the others."""
        if not self._tokens:
            return None
        nodes = min(context.nodes, MOST)
        tree = Tree(nodes)
        for gram in self._pool.after(self._tokens[-1]):
            tree.line(gram, nodes - nodes // 2)
        tree.window = tree.line(self._ahead(nodes), nodes)
        self._tree = tree
        tokens = _tensor(tree.tokens)
        if tree.parents == list(range(-1, len(tree.tokens) - 1)):
            return Draft(tokens)
        return Draft(tokens, _tensor(tree.parents))

    def fork(self) -> LookaheadDrafter:
        """A copy with the same conversation and pool."""
        copy = LookaheadDrafter()
        copy._pool, copy._tokens, copy._window = self._pool.copy(), list(self._tokens), list(self._window)
        return copy

    def close(self) -> None:
        """Free the pool."""
        self.reset()

    def _learn(self, tree: Tree, step: Committed) -> None:
        """New n-grams from every choice, and the window's next guesses: one Jacobi step."""
        choices = [] if step.choices is None else step.choices.tolist()
        choices += [-1] * (1 + len(tree.tokens) - len(choices))  # -1: not known
        for node, choice in enumerate(choices, -1):
            if choice >= 0:
                self._add([*self._tokens[-LEVEL:], *tree.path(node), choice][-LEVEL:])
        guesses = []  # from the position behind the old root on
        for node in (-1, *tree.window):
            if choices[node + 1] < 0:
                break
            guesses.append(choices[node + 1])
        self._window = guesses[step.tokens.shape[0] :]

    def _ahead(self, count: int) -> list[int]:
        """`count` guesses: the window, then what the pool or else the text offers as a first guess."""
        guesses = list(self._window)
        while len(guesses) < count:
            known = self._pool.after(guesses[-1] if guesses else self._tokens[-1])
            if known:
                guesses += known[0]
            else:
                middle = len(self._tokens) // 2  # anything does for a first guess; this moves with the text
                guesses.append(self._tokens[(middle + len(guesses)) % len(self._tokens)])
        return guesses[:count]

    def _add(self, gram: Sequence[int]) -> None:
        if len(gram) == LEVEL:
            self._pool.add(gram)


def _tensor(ids: list[int]) -> Tensor:
    import torch  # not at the top: asking whether a method fits must not load it

    return torch.tensor(ids, dtype=torch.int64)
