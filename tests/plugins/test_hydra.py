"""Hydra: seeded heads in the published format against the formulas written out in float64, node by node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ahead
import pairs
import pytest
import torch
import toys
from ahead import Rides, rides
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.drafting import Committed, Draft, Fit, ModelInfo, Needs
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.medusa import Medusa
from outrider.drafters.medusa.draft import MedusaDrafter

__all__ = ["rides"]

PROMPT = [5, 9, 13, 9, 5, 9, 13]
NONE = torch.empty(0, dtype=torch.int64)
HEADS, VOCAB, WIDTH = 3, 48, 32


def tensors(layers: int = 1) -> dict[str, Tensor]:
    """Random heads."""
    g = torch.Generator().manual_seed(3)

    def block(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        weight = torch.randn(rows, columns, generator=g) / columns**0.5
        return {f"{name}.weight": weight, f"{name}.bias": torch.randn(rows, generator=g) / 4}

    made: dict[str, Tensor] = {}
    for head in range(HEADS):
        for part in ("linear", "res_connection"):
            made |= block(f"hydra_mlp.{head}.0.{part}", WIDTH, (head + 2) * WIDTH)
        for layer in range(1, layers):
            made |= block(f"hydra_mlp.{head}.{layer}.linear", WIDTH, WIDTH)
        made |= block(f"hydra_lm_head.{head}", VOCAB, WIDTH)
    return made


def folder(path: Path, weights: dict[str, Tensor], **config: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "hydra_lm_head.safetensors")
    (path / "config.json").write_text(json.dumps({"hydra_num_heads": 4, "grounded_heads": True, **config}))
    return path


def loaded(path: Path, target: TargetModel) -> MedusaDrafter:
    match = Medusa().check(target.info, str(path))
    assert match.fit == Fit.EXACT
    return Medusa().load(target, match, {})


def expected(weights: dict[str, Tensor], layers: int, state: Tensor, embedding: Tensor, path: list[int]) -> Tensor:
    """What follows the ids of `path`, the root first: logits [V] in float64, every product written out."""
    head = len(path) - 1

    def affine(name: str, x: Tensor) -> Tensor:
        return (weights[f"{name}.weight"].double() * x).sum(1) + weights[f"{name}.bias"].double()

    seen = torch.cat([state.double(), *(embedding[token].double() for token in path)])
    y = affine(f"hydra_mlp.{head}.0.linear", seen)
    y = affine(f"hydra_mlp.{head}.0.res_connection", seen) + y / (1 + torch.exp(-y))
    for layer in range(1, layers):
        more = affine(f"hydra_mlp.{head}.{layer}.linear", y)
        y = y + more / (1 + torch.exp(-more))
    return affine(f"hydra_lm_head.{head}", y)


def paths_of(draft: Draft, root: int) -> list[tuple[list[int], list[int]]]:
    """For the root and every node, in order: the ids down to it, and those of its children."""
    assert draft.parents is not None
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    down = {-1: [root]}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        down[node] = [*down[parent], token]
    children = {node: [tokens[i] for i, parent in enumerate(parents) if parent == node] for node in down}
    return [(down[node], children[node]) for node in down]


@pytest.mark.parametrize(("layers", "offset"), [(1, 0), (2, 0), (1, 1)])
def test_every_node_is_what_the_formulas_give(tmp_path: Path, layers: int, offset: int) -> None:
    target, weights = toys.target(layers=3), tensors(layers)
    drafter = loaded(folder(tmp_path, weights, hidden_state_offset=offset), target)
    assert drafter.needs == Needs(hidden=(3 - offset,))
    told = target.forward(PROMPT, states=drafter.needs.hidden).hidden
    assert told is not None
    drafter.advance(Committed(0, torch.tensor([*PROMPT, 7]), NONE, told))
    draft = drafter.propose(pairs.context([*PROMPT, 7], 63))
    assert draft is not None and draft.tokens.shape == (61,)  # the published tree has two nodes below a third head
    state = told[-1, 0]
    if not offset:
        state = (
            state.double() / (state.double().square().mean() + 1e-5).sqrt()
        )  # the toy's last norm has no weights but ones
    embedding = target.embed_raw(torch.arange(VOCAB))
    deep = 0
    for path, children in paths_of(draft, 7):
        if children:
            logits = expected(weights, layers, state, embedding, path)
            assert children == logits.topk(len(children)).indices.tolist()
            deep = max(deep, len(path))
    assert deep == HEADS


@pytest.mark.parametrize(
    "settings", [toys.GREEDY, toys.SAMPLED, Settings(temperature=0.8, top_p=0.9, repeat_penalty=1.2)]
)
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_text_is_the_targets(tmp_path: Path, settings: Settings, rule: str) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, limit=60)
    target = toys.target()
    drafter = loaded(folder(tmp_path, tensors()), target)
    got = toys.answer(ChatCache(target), PROMPT, toys.guard(drafter), settings=settings, limit=60, tokens=30, rule=rule)
    assert 0 < got.accepted < got.proposed
    if rule == "match" or settings.temperature == 0:
        assert got.token_ids == want.token_ids


def test_first_guesses_share_the_targets_noise(tmp_path: Path) -> None:
    target = toys.target()
    drafter = loaded(folder(tmp_path, tensors()), target)
    drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.randn(1, 1, WIDTH)))
    ask = pairs.context([4], 20, Settings(temperature=1.5, top_p=1.0))
    draft = drafter.propose(ask)
    state = drafter._state.feed()
    assert draft is not None
    voice: Any = drafter._heads
    for path, children in paths_of(draft, 4):
        if children:
            logits = voice.logits(state, [path])
            assert children[0] == int(ask.sample(logits, len(path), path[1:])[0])


def test_the_meter_follows_the_accepted_path(tmp_path: Path) -> None:
    drafter = loaded(folder(tmp_path, tensors()), toys.target())
    drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.randn(1, 1, WIDTH)))
    draft = drafter.propose(pairs.context([4], 63))
    assert draft is not None and drafter._guessed is not None
    _, nodes, guesses = drafter._guessed
    node = nodes.index((1, 0))
    first = nodes.index((1,))
    after = guesses[1, 0].ids[1]
    before = drafter._meter.accuracy()
    tokens = torch.tensor([*draft.tokens[[first, node]].tolist(), after])
    drafter.advance(Committed(1, tokens, torch.tensor([first, node])))
    now = drafter._meter.accuracy()
    for head, rank in enumerate((1, 0, 1)):
        assert now[head][rank] > before[head][rank]
        assert sum(now[head][r] < before[head][r] for r in range(10)) == 9


def test_output_that_is_no_number_gives_no_draft(tmp_path: Path) -> None:
    drafter = loaded(folder(tmp_path, tensors()), toys.target())
    drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.full((1, 1, WIDTH), torch.nan)))
    assert drafter.propose(pairs.context([4], 8)) is None


class TestFiles:
    info = ModelInfo("toy", "llama", VOCAB, WIDTH, 2, "toy-48")

    def test_what_fits(self, tmp_path: Path) -> None:
        match = Medusa().check(self.info, str(folder(tmp_path / "heads", tensors())))
        assert (match.fit, match.reason) == (Fit.EXACT, "heads: 3 Hydra heads")
        assert match.nbytes == 2 * sum(tensor.numel() for tensor in tensors().values())

    @pytest.mark.parametrize(
        ("config", "why"),
        [
            ({"hydra_head_arch": "cross-attn"}, "kind cross-attn, which is not read"),
            ({"hydra_head_arch": "eagle-attn"}, "kind eagle-attn, which is not read"),
            ({"grounded_heads": False}, "without grounded_heads, which is not read"),
        ],
    )
    def test_other_kinds_are_refused(self, tmp_path: Path, config: dict[str, Any], why: str) -> None:
        match = Medusa().check(self.info, str(folder(tmp_path, tensors(), **config)))
        assert match.fit == Fit.NO
        assert why in match.reason

    def test_strange_tensors(self, tmp_path: Path) -> None:
        path = folder(tmp_path, tensors() | {"hydra_norm.weight": torch.zeros(2)})
        match = Medusa().check(self.info, str(path))
        assert match.fit == Fit.NO
        assert "hydra_norm.weight, which no Hydra head has" in match.reason

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"hydra_mlp.2.0.res_connection.bias": None}, "lacks the tensor hydra_mlp.2.0.res_connection.bias"),
            ({"hydra_mlp.1.0.linear.weight": torch.zeros(32, 64)}, r"has the shape \[32, 64\], not \[32, 96\]"),
            ({"hydra_lm_head.0.weight": None}, "hydra_lm_head.0.weight is missing"),
            ({"hydra_lm_head.5.bias": torch.zeros(48)}, "holds beside its heads the tensor hydra_lm_head.5.bias"),
        ],
    )
    def test_broken_sets_are_named(self, tmp_path: Path, change: dict[str, Tensor | None], why: str) -> None:
        weights = {name: part for name, part in (tensors() | change).items() if part is not None}
        with pytest.raises(BrokenFileError, match=why):
            Medusa().check(self.info, str(folder(tmp_path, weights)))

    @pytest.mark.parametrize("offset", [-1, "0", 3])
    def test_a_state_that_is_not_there(self, tmp_path: Path, offset: object) -> None:
        with pytest.raises(ModelError):
            loaded(folder(tmp_path, tensors(), hidden_state_offset=offset), toys.target())

    def test_pickled(self, tmp_path: Path) -> None:
        """As its authors save it, with the target's embedding beside the heads."""
        torch.save({"input_embed_fn.weight": torch.full((2, 2), torch.nan), **tensors()}, tmp_path / "hydra_lm_head.pt")
        assert loaded(tmp_path, toys.target()).shape.depth == HEADS


def test_drafts_on_the_device(rides: Rides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "outrider.drafters.medusa.draft.MEASURED", 1000
    )  # when a tree is grown anew is a round later there
    path = folder(tmp_path, tensors())
    ahead.same(rides, toys.target(), lambda target: loaded(path, target), 12)
