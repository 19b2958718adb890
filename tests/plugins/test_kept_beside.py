"""A drafter keeps its own matrices as its target keeps those it has: a draft must cost little of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import layers
import pytest
import torch
import toys
from goods import CONTEXT, GOODS

from outrider.core.drafting.active import GuardedDrafter
from outrider.core.drafting.registry import load
from outrider.core.formats.quantized import GROUP, Grouped
from outrider.core.model.kernels.forms import WeightFormat, kept, rounded
from outrider.core.model.kernels.linear import Linear
from outrider.core.model.model import TargetModel
from outrider.core.session.chat_cache import ChatCache

PROMPT = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
MODELS = {"llama": {}, "gemma4": {"architecture": "gemma4"}}


def matrices(root: object, target: TargetModel) -> Iterator[Linear]:
    """All that can be reached from a drafter without going through its target."""
    seen, open_ = {id(target), id(target.decoder)}, [root]
    while open_:
        one = open_.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Linear):
            yield one
        if isinstance(one, (list, tuple)):
            open_ += one
        elif isinstance(one, dict):
            open_ += one.values()
        elif type(one).__module__.startswith("outrider."):
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            open_ += [getattr(one, name, None) for name in slots]
            open_ += vars(one).values() if hasattr(one, "__dict__") else []


def plain(some: list[Linear]) -> list[Linear]:
    """Those of them that are kept as they were written, and could be rounded; few rows are filled up, which hides it."""
    could = [one for one in some if one.features[0] >= 16 and one.features[1] % GROUP == 0]
    return [one for one in could if one.nbytes >= 4 * one.features.numel()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.checkpoint(tmp_path_factory.mktemp("target"))


def ride(name: str, model: TargetModel, path: Path) -> GuardedDrafter:
    told: list[str] = []
    drafter = load(GOODS[name].method, model, {"weights": str(path)}, told.append)
    assert not told
    return drafter


@pytest.mark.parametrize("name", [name for name in GOODS if name not in ("mtp_copy", "mtp_parallel")])
def test_rounded_beside_a_rounded_target(name: str, folder: Path, tmp_path: Path) -> None:
    """All of its matrices, and the text stays the target's own. (MTP layers are part of the target: see their own tests.)"""
    path = GOODS[name].make(tmp_path / "drafter")
    told = MODELS[GOODS[name].family]
    target = {bits: layers.target(folder, CONTEXT, bits) for bits in (8, None)}
    target = {bits: TargetModel(one.decoder, replace(one.info, **told), CONTEXT) for bits, one in target.items()}
    for bits, model in target.items():
        drafter = ride(name, model, path)
        own = [one for one in matrices(drafter._drafter, model) if one not in list(matrices(model.decoder, model))]
        assert own
        assert not plain(own) if bits else plain(own)
        if GOODS[name].family == "llama":
            want = toys.answer(ChatCache(layers.target(folder, CONTEXT, bits)), PROMPT, None, limit=24).token_ids
            got = toys.answer(ChatCache(model), PROMPT, drafter, tokens=3, limit=24)
            assert got.token_ids == want and got.proposed > 0


def test_the_form_beside_a_target(folder: Path) -> None:
    """By what a parameter of its blocks takes, in bytes; the toy itself has long norms for its size."""
    model = layers.target(folder)
    assert model.decoder.weights.each == 4 and layers.target(folder, quantize=8).decoder.weights.each < 2
    for each, bits in ((0.63, 4), (1.1, 8), (2.0, 8), (4.0, None), (0.0, None)):
        model.decoder.weights = replace(model.decoder.weights, each=each)
        assert model.beside == WeightFormat(torch.float32, torch.device("cpu"), bits)


def test_what_cannot_be_rounded_stays_plain() -> None:
    g = torch.Generator().manual_seed(1)
    odd, even = torch.randn(8, GROUP + 1, generator=g), torch.randn(8, 2 * GROUP, generator=g)
    assert rounded(odd, 8, torch.bfloat16) is not odd and isinstance(rounded(even, 8, torch.bfloat16), Grouped)
    torch.testing.assert_close(rounded(odd, 8, torch.float32), odd, atol=0, rtol=0)
    x, shift = torch.randn(3, 2 * GROUP, generator=g), torch.randn(8, generator=g)
    near = kept(even, shift, WeightFormat(torch.float32, torch.device("cpu"), 8))(x)
    torch.testing.assert_close(near, x @ even.T + shift, atol=0.15, rtol=0.02)
    assert not torch.equal(near, x @ even.T + shift)
