"""What is derived from a draft: parents, depths, lines and cuts, with the values that go with each node."""

from __future__ import annotations

import torch
from toys import tree

from outrider.core.sampling.draft_tree import DraftTree

PARENTS = [-1, -1, 0, 1, 0, 2]  # root: 0, 1; node 0: 2, 4; node 1: 3; node 2: 5
PROBS = torch.arange(18.0).view(6, 3)
SURE = [0.9, 0.1, 0.8, 0.2, 0.3, 0.7]


def test_a_tree() -> None:
    made = tree([9, 8, 7, 6, 5, 4], PARENTS, PROBS, SURE)
    assert not made.chain and made.layout is not None
    assert list(made.depths) == [0, 0, 1, 1, 1, 2] and made.depth == 3
    assert made.children == [[0, 1], [2, 4], [3], [5], [], [], []]
    assert made.first_children == [0, 2, 5]
    assert [made.path(node) for node in (-1, 1, 3, 5)] == [[], [1], [1, 3], [0, 2, 5]]
    assert made.confidences == SURE


def test_its_line_is_a_chain_with_the_values_of_its_nodes() -> None:
    line = tree([9, 8, 7, 6, 5, 4], PARENTS, PROBS, SURE).line()
    assert line.chain and line.ids == [9, 7, 4] and line.confidences == [0.9, 0.8, 0.7]
    assert line.probs is not None and line.probs.tolist() == PROBS[[0, 2, 5]].tolist()
    bare = tree([9, 8, 7, 6, 5, 4], PARENTS).line()
    assert (bare.ids, bare.probs, bare.confidence) == ([9, 7, 4], None, None)


def test_a_line_begins_at_the_first_child_wherever_that_is() -> None:
    assert tree([9, 8, 7, 6], [-1, -1, 1, 0]).first_children == [0, 3]
    assert tree([], []).first_children == []


def test_a_chain() -> None:
    for made in (tree([5, 6, 7], None, None, SURE[:3]), tree([5, 6, 7], [-1, 0, 1], None, SURE[:3])):
        assert made.chain and made.layout is None and made.line() is made
        assert list(made.above) == [-1, 0, 1] and list(made.depths) == [0, 1, 2] and made.depth == 3
        assert made.children == [[0], [1], [2], []] and made.first_children == [0, 1, 2]
    assert not tree([5, 6, 7], [-1, 0, 0]).chain
    assert not tree([5, 6], [-1, -1]).chain


def test_no_draft() -> None:
    made = DraftTree(torch.empty(0, dtype=torch.int64))
    assert (len(made), made.depth, made.children, made.chain, made.confidences) == (0, 0, [[]], True, None)


def test_the_first_nodes_keep_their_values() -> None:
    made = tree([9, 8, 7, 6, 5, 4], PARENTS, PROBS, SURE)
    cut = made.first(4)
    assert cut.ids == [9, 8, 7, 6] and cut.above == PARENTS[:4] and cut.confidences == SURE[:4]
    assert cut.probs is not None and cut.probs.tolist() == PROBS[:4].tolist()
    assert made.first(6) is made and made.first(5) is not made
    assert tree([1, 2]).first(1).parents is None
