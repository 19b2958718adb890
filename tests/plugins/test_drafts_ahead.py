"""Drafts that are made on the device, mostly before the last round is read: those of the host, and the text of plain decoding."""

from __future__ import annotations

from pathlib import Path

import ahead
import dflash_files
import eagles
import layers
import peagles
import pytest
import toys
from ahead import Rides, rides

from outrider.core.drafting import Drafter, Fit, Match
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.drafters.dflash import DFlash
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.mtp import Mtp

__all__ = ["rides"]


@pytest.mark.parametrize("kind", ["eagle3", "eagle1"])
def test_eagle_chains(rides: Rides, kind: str, tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, kind)
    ahead.same(rides, toys.target(layers=4), lambda target: eagles.load(folder, target, tree="chain"))


def test_eagle_trees(rides: Rides, tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, "eagle3")

    def make(target: TargetModel) -> Drafter:
        return eagles.load(folder, target, tree="tree", depth=4, top_k=3)

    ahead.same(rides, toys.target(layers=4), make, 12)


def test_p_eagle(rides: Rides, tmp_path: Path) -> None:
    folder = peagles.folder(tmp_path, "specforge")
    ahead.same(rides, toys.target(layers=4), lambda target: eagles.load(folder, target))


@pytest.mark.parametrize("count", [1, 3])
def test_mtp(rides: Rides, count: int, tmp_path: Path) -> None:
    """One layer, and several that each run over the newest rows once more."""
    target = layers.target(layers.checkpoint(tmp_path, count))
    ahead.same(rides, target, lambda target: Mtp().load(target, Mtp().matches(target.info), {}), 3)


def test_parallel_heads(rides: Rides, tmp_path: Path) -> None:
    folder = layers.parallel_heads(tmp_path / "heads")

    def make(target: TargetModel) -> Drafter:
        return Mtp().load(target, Match(Fit.EXACT, "", weights=str(folder)), {})

    ahead.same(rides, layers.target(toys.checkpoint(tmp_path / "target")), make, 3)


@pytest.mark.parametrize("kind", dflash_files.KINDS)
def test_dflash(rides: Rides, kind: str, tmp_path: Path) -> None:
    folder = dflash_files.write(tmp_path, dflash_files.config(kind), dflash_files.tensors(kind))

    def make(target: TargetModel) -> Drafter:
        options = {"tree": False, "confidence": 0.4 if kind == "dspark" else 0.0}
        return DFlash().load(target, DFlash().check(target.info, str(folder)), options)

    ahead.same(rides, toys.target(), make, 3)


def test_draft_model(rides: Rides) -> None:
    def make(target: TargetModel) -> Drafter:
        decoder = toys.decoder(1, context=target.context, sharp=0.8)
        return ModelDrafter(decoder, target.context + MAX_DRAFT_ROWS, 48, graphs=target.graphs)

    ahead.same(rides, toys.target(), make)
