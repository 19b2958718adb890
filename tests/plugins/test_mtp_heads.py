"""Parallel heads: logits of every head are the paper's formula; the text is the target's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import layers
import pairs
import pytest
import torch
import toys
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.drafting import Committed, Fit
from outrider.core.drafting.chain import ChainSampler
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.mtp import Mtp
from outrider.drafters.mtp.layout import META
from outrider.drafters.mtp.parallel import ParallelDrafter

PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
NONE = torch.empty(0, dtype=torch.int64)
COUNT = 3
PARAMS = {"dim": 32, "n_layers": 5, "n_heads": 4, "n_future_tokens": 4, "vocab_size": -1, "norm_eps": 1e-5}


def blocks() -> list[dict[str, Tensor]]:
    g = torch.Generator().manual_seed(11)
    return [layers.block(g, kv=4) for _ in range(COUNT)]


def save(folder: Path, form: str = "pth", params: dict | None = None, extra: dict[str, Tensor] | None = None) -> Path:
    """The heads as Meta stores them, beside a trunk that is not read."""
    theirs = {ours: name for name, ours in META.items()}
    tensors = {f"extra_heads.{k}.{theirs[n]}": t for k, block in enumerate(blocks()) for n, t in block.items()}
    tensors |= {"norm.weight": torch.ones(32), **(extra or {})}
    folder.mkdir(exist_ok=True)
    (folder / "params.json").write_text(json.dumps({**PARAMS, **(params or {})}))
    if form == "pth":
        torch.save(tensors, folder / "consolidated.pth")
    else:
        save_file(tensors, folder / "consolidated.safetensors")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> TargetModel:
    return layers.target(toys.checkpoint(tmp_path / "target"))


def load(model: TargetModel, path: Path) -> ParallelDrafter:
    drafter = Mtp().load(model, Mtp().check(model.info, str(path)), {})
    assert isinstance(drafter, ParallelDrafter)
    return drafter


def formula(model: TargetModel, states: Tensor) -> Tensor:
    """Logits [heads, V] of the last row, in float64."""
    weights = model.decoder.weights
    assert weights.norm.weight is not None and weights.head.weight is not None
    rows = [layers.run(states.double(), block, neighbours=True)[-1] for block in blocks()]
    return layers.norm(torch.stack(rows), weights.norm.weight) @ weights.head.weight.double().T


@pytest.mark.parametrize("form", ["pth", "safetensors"])
def test_logits_are_the_formula(model: TargetModel, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a prompt, after a cut, and after a run without drafts."""
    seen: list[Tensor] = []
    add = ChainSampler.add
    monkeypatch.setattr(ChainSampler, "add", lambda self, row: seen.append(row) or add(self, row))
    drafter = load(model, save(tmp_path / "heads", form))
    assert drafter.shape.nodes == COUNT and drafter.needs.hidden == (1,)
    tokens: list[int] = []
    for cut, more in [(0, PROMPT), (len(PROMPT), [7]), (len(PROMPT) - 3, [8, 9, 1, 2, 3, 4])]:
        drafter.rewind(cut)
        tokens = [*tokens[:cut], *more]
        states = model.forward(tokens[:-1], states=(1,)).hidden
        assert states is not None
        drafter.advance(Committed(cut, torch.tensor(more), NONE, states[max(0, cut - 1) :]))
        seen.clear()
        want = formula(model, states[:, 0])
        for nodes in (3, 2):
            draft = drafter.propose(pairs.context(tokens, nodes))
            assert draft is not None and draft.tokens.tolist() == want.argmax(-1).tolist()[:nodes]
        torch.testing.assert_close(torch.stack(seen[:3]).double(), want, atol=2e-4, rtol=1e-4)
    other = drafter.fork()
    drafter.reset()
    assert drafter.propose(pairs.context(tokens, 3)) is None
    assert other.propose(pairs.context(tokens, 3)) is not None


@pytest.mark.parametrize("settings", [toys.GREEDY, Settings(temperature=0.8, top_p=0.95)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_text_is_the_targets(model: TargetModel, tmp_path: Path, settings: Settings, rule: str) -> None:
    cache, plain = ChatCache(model), ChatCache(TargetModel(model.decoder, model.info, 200))
    guarded, ids = toys.guard(load(model, save(tmp_path / "heads"))), PROMPT
    for _ in range(2):
        got = toys.answer(cache, ids, guarded, settings=settings, rule=rule, limit=20)
        if rule == "match" or settings is toys.GREEDY:
            assert got.token_ids == toys.answer(plain, ids, settings=settings, limit=20).token_ids
        assert got.proposed and not guarded.failed
        ids = [*ids, *got.token_ids, 8]


def test_what_fits(model: TargetModel, tmp_path: Path) -> None:
    path = save(tmp_path / "heads")
    assert Mtp().check(model.info, str(path)).fit == Fit.EXACT
    for change, reason in (
        ({"width": 64}, "made for a width of 32, this model has 64"),
        ({"layers": 5}, "a number of layers of 2, this model has 5"),
    ):
        refused = Mtp().check(replace(model.info, **change), str(path))
        assert refused.fit == Fit.NO and reason in refused.reason
    for params, reason in (
        ({"vocab_size": 7}, "vocabulary of 7"),
        ({"n_layers": 2, "n_future_tokens": 1}, "no parallel"),
    ):
        assert reason in Mtp().check(model.info, str(save(tmp_path / "other", params=params))).reason


def test_broken_files_are_told(model: TargetModel, tmp_path: Path) -> None:
    for params, extra, told in (
        ({"n_future_tokens": 3, "n_layers": 4}, {}, "has 3 heads, its params.json says 2"),
        ({}, {"extra_heads.0.attention.wq.weight": torch.zeros(8, 32)}, "q_proj.weight is 8x32, the config says 32x32"),
        ({}, {"extra_heads.0.gate.weight": torch.zeros(8)}, "nothing is known of its tensor extra_heads.0.gate.weight"),
    ):
        with pytest.raises(ModelError) as caught:
            load(model, save(tmp_path / "heads", params=params, extra=extra))
        assert told in caught.value.message and caught.value.hint
    with pytest.raises(BrokenFileError, match="no usable n_future_tokens"):
        Mtp().check(model.info, str(save(tmp_path / "heads", params={"n_future_tokens": "4"})))
    (tmp_path / "heads" / "params.json").write_text(json.dumps(PARAMS))
    file = tmp_path / "heads" / "consolidated.pth"
    for content, told in ((b"PK\3\4 cut short", "cannot be read as a table"), ([1, 2], "holds a list")):
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        with pytest.raises(BrokenFileError, match=told):
            load(model, tmp_path / "heads")
    file.unlink()
    with pytest.raises(ModelError, match="holds 0 files of weights"):
        load(model, tmp_path / "heads")


def test_heads_are_kept_as_the_layers_of_the_target(tmp_path: Path) -> None:
    target, heads = toys.checkpoint(tmp_path / "target"), save(tmp_path / "heads")
    models = [layers.target(target, quantize=bits) for bits in (8, None)]
    rounded, plain = ([layers.forms(block) for block in load(model, heads)._blocks] for model in models)
    assert rounded == [layers.forms(models[0].decoder.weights.blocks[0])] * COUNT
    assert plain[0] != rounded[0]
