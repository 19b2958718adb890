"""What a round says of itself: the kinds of its tokens, and the row behind each of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from toys import tree

from outrider.core.decode.round_result import RoundResult
from outrider.core.sampling.draft_tree import DraftTree


def result(draft: DraftTree, path: list[int]) -> RoundResult:
    return RoundResult([*range(len(path) + 1)], path, draft, torch.zeros(1 + len(draft), 5))


@pytest.mark.parametrize(
    ("tokens", "parents", "path", "kinds"),
    [
        ([], None, [], "P"),
        ([7, 8], None, [], "C"),
        ([7, 8], None, [0], "AC"),
        ([7, 8], None, [0, 1], "AAB"),
        ([7, 8, 9], [-1, -1, 0], [1], "AB"),
        ([7, 8, 9], [-1, -1, 0], [0], "AC"),
        ([7, 8, 9], [-1, -1, 0], [0, 2], "AAB"),
    ],
)
def test_kinds_of_tokens(tokens: Sequence[int], parents: Sequence[int] | None, path: list[int], kinds: str) -> None:
    """A token behind a leaf is a bonus; one where the draft had another is a correction."""
    made = result(tree(tokens, parents), path)
    assert (made.kinds, made.proposed, made.accepted) == (kinds, len(tokens), len(path))
    assert made.rows == [0, *(node + 1 for node in path)] and len(made.rows) == len(made.tokens)
