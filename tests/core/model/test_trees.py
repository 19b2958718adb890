"""A tree of drafts in one pass: every node is computed as if its path stood alone, and an accepted path stays as if it had."""

from __future__ import annotations

import copy

import golden
import pytest
import torch

from outrider.core.model.cache.layout import tree_of
from outrider.core.model.cache.states import Cache
from outrider.core.model.decoder import Decoder

PARENTS = (-1, 0, 0, 1, -1, 4, 4, 6, 2)  # two children of the root, three levels below
BEFORE = 37  # tokens, more than any window
CPU = torch.device("cpu")
TREES = [name for name in golden.WEIGHTS if name not in golden.RECURRENT]
CASES = [*((name, float("inf")) for name in TREES), *((name, 0) for name in TREES if name in golden.SLIDING)]


def path_to(node: int) -> list[int]:
    """Nodes from the root's child down to this one."""
    return [] if node < 0 else [*path_to(PARENTS[node]), node]


def primed(model: Decoder, ids: torch.Tensor, rings: float) -> Cache:
    cache = model.new_cache(96, slack=16, rings=rings)
    for start in range(0, BEFORE, 10):
        chunk = ids[start : min(start + 10, BEFORE)]
        model.run(chunk, cache)
        cache.commit(start + len(chunk))
    return cache


@pytest.mark.parametrize(("name", "rings"), CASES)
def test_every_node_is_what_its_path_alone_gives(name: str, rings: float) -> None:
    model = golden.decoder(golden.FOLDER / name, torch.float64, 96)
    g = torch.Generator().manual_seed(1)
    ids, tokens = torch.randint(0, 256, (BEFORE,), generator=g), torch.randint(0, 256, (1 + len(PARENTS),), generator=g)
    cache = primed(model, ids, rings)
    before = copy.deepcopy(cache)
    assert cache.trees
    found = model.run(tokens, cache, tree=tree_of(PARENTS, BEFORE, CPU)).logits
    for node in (3, 5, 7, 8):
        rows = [0, *(n + 1 for n in path_to(node))]
        want = model.run(tokens[rows], copy.deepcopy(before)).logits
        torch.testing.assert_close(found[rows], want, atol=1e-9, rtol=1e-9)
    rows = [0, *(n + 1 for n in path_to(7))]
    cache.commit(BEFORE + len(rows), rows)
    alone = copy.deepcopy(before)
    model.run(tokens[rows], alone)
    alone.commit(BEFORE + len(rows))
    more = torch.randint(0, 256, (5,), generator=g)
    torch.testing.assert_close(model.run(more, cache).logits, model.run(more, alone).logits, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", golden.RECURRENT)
def test_states_that_know_one_line_take_no_trees(name: str) -> None:
    model = golden.decoder(golden.FOLDER / name, torch.float32, 96)
    assert not model.new_cache(96).trees
