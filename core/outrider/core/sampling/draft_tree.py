"""One draft, from the drafter that proposes it to the frame that reports it. Importing this module loads no torch.

Letters: `n` draft nodes, `V` vocabulary, `W` = 1 + n rows of the pass that verifies it: the root, then the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.core.model.cache.layout import TreeLayout


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A chain or tree of guesses under the last committed token (the root).

    Everything below the four fields is derived from them when it is first asked for. Node -1 is the root.
    """

    tokens: Tensor  # [n] int64, ids of the target
    parents: Tensor | None = None  # [n], parents[i] < i, -1 = root; None = chain
    probs: Tensor | None = None  # [n, V] law token i was really drawn from, given parent and earlier siblings
    confidence: Tensor | None = None
    """[n] float, 0 to 1: what the drafter itself held of each node, the chance that its own law gave to its best token (in a
    tree: to the token of that node's rank), before the token was drawn. It may depend on the tokens before a node and never on
    the node's own. Any scale will do; the engine learns what it means."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @cached_property
    def ids(self) -> list[int]:
        """The tokens on the host."""
        return self.tokens.tolist()

    @cached_property
    def above(self) -> Sequence[int]:
        """The parent of each node, for chains too."""
        return range(-1, len(self) - 1) if self.parents is None else self.parents.tolist()

    @cached_property
    def confidences(self) -> list[float] | None:
        """`confidence` on the host."""
        return None if self.confidence is None else self.confidence.tolist()

    @cached_property
    def chain(self) -> bool:
        """Whether each node is the child of the one before it."""
        return self.parents is None or self.above == list(range(-1, len(self) - 1))

    @cached_property
    def depths(self) -> Sequence[int]:
        """Levels of each node below the root's children, which have depth 0."""
        from outrider.core.model.cache.layout import depths_of

        return range(len(self)) if self.parents is None else depths_of(self.above)

    @property
    def depth(self) -> int:
        """Levels below the root: of a chain as many as nodes."""
        return max(self.depths, default=-1) + 1

    @cached_property
    def children(self) -> list[list[int]]:
        """Nodes by 1 + parent: first the root's."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.above):
            children[parent + 1].append(node)
        return children

    @cached_property
    def first_children(self) -> list[int]:
        """The nodes of the line root, first child, first child of that, …"""
        line: list[int] = []
        for node, parent in enumerate(self.above):
            if parent == (line[-1] if line else -1):
                line.append(node)
        return line

    @cached_property
    def layout(self) -> TreeLayout | None:
        """Depths, parents and ancestors of the rows of its pass as tensors; None for a chain."""
        from outrider.core.model.cache.layout import layout_of

        return None if self.chain else layout_of(tuple(self.above))

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; none for the root."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.above[node]
        return path[::-1]

    def first(self, count: int) -> DraftTree:
        """Its first nodes. Not for one with `probs` that is cut by the values of its tokens."""
        if count >= len(self):
            return self
        parts = (self.tokens, self.parents, self.probs, self.confidence)
        return DraftTree(*(part if part is None else part[:count] for part in parts))  # type: ignore[arg-type]

    def line(self) -> DraftTree:
        """Its `first_children` as a chain. They have no earlier sibling, so `probs` hold as they are and the law stays exact."""
        if self.chain:
            return self
        nodes = self.first_children
        probs = None if self.probs is None else self.probs[nodes]
        return DraftTree(self.tokens[nodes], None, probs, None if self.confidence is None else self.confidence[nodes])
