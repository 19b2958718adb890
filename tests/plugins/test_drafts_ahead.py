"""Drafts that are made on the device, mostly before the last round is read: those of the host, and the text of plain decoding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ahead
import dflash_files
import eagles
import layers
import pairs
import peagles
import pytest
import toys
from ahead import Rides, rides

from outrider.core.decode.round_result import RoundResult
from outrider.core.drafting import Drafter, Fit, Match, Stateless
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.policy.decisions import Drafted, Judged, Outcome, SharedRound
from outrider.core.policy.policy import Policy
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite
from outrider.drafters.dflash import DFlash
from outrider.drafters.draft_model import ModelDrafter
from outrider.drafters.eagle import Eagle
from outrider.drafters.medusa import Medusa
from outrider.drafters.mtp import Mtp
from outrider.drafters.prompt_lookup import Lookup
from outrider.drafters.suffix import Suffix

__all__ = ["rides"]
METHODS = {
    "eagle3": (Eagle(), {"tree": "chain"}),
    "dflash": (DFlash(), {"tree": False}),
    "medusa": (Medusa(), {}),
    "mtp_mimo": (Mtp(), {}),
}


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
        return ModelDrafter(DecoderState(decoder, target.context + MAX_DRAFT_ROWS, target.graphs), 48)

    ahead.same(rides, toys.target(), make)


class Silent(Stateless):
    """Never proposes."""

    free = True


class Clocked(Policy):
    """Every pass takes the same time, a draft next to none, and the host a tenth of a pass."""

    def __init__(self) -> None:
        super().__init__()
        for rows in (1, 2, 4, 8, 17, 33):
            self.calibrate(rows, 0.01 + 1e-6 * rows)

    def learn(self, event: Outcome | Drafted | Judged | SharedRound) -> None:
        """As `Policy`."""
        if isinstance(event, Outcome):
            seconds = self.costs.of(1 + event.proposed)
            event = replace(event, drafting=1e-6 * event.proposed, rest=seconds, host=seconds / 10)
        elif isinstance(event, Drafted):
            event = replace(event, seconds=1e-6 * event.tokens, catching_up=0.0)
        super().learn(event)


def golden_pair(name: str) -> tuple[pairs.Pair, TargetModel, Drafter]:
    """A drafter of the goldens on its target, whose rounds are captured."""
    told, (method, options) = pairs.Pair(name), METHODS[name]
    if isinstance(method, Mtp):
        opened = open_checkpoint(told.folder)
        config, names = opened.config, frozenset(opened.names())
        opened.close()
        told.info = replace(told.info, architecture=config["model_type"], config=config, tensors=names)
    there = ahead.captured(told.target())
    match = method.matches(told.info) if isinstance(method, Mtp) else method.check(told.info, str(told.folder))
    return told, there, method.load(there, match, options)


@pytest.mark.parametrize("settings", [toys.GREEDY, Settings(temperature=0.7)], ids=["greedy", "T=0.7"])
@pytest.mark.parametrize("name", METHODS)
def test_auto_launches_drafted_rounds_ahead(rides: Rides, name: str, settings: Settings) -> None:
    """Nine in ten. What free drafters offer is looked at in every round; where that is worth more, rounds wait for it."""
    told, there, drafter = golden_pair(name)
    drafter.shape = replace(
        drafter.shape, nodes=min(12, drafter.shape.nodes)
    )  # wider rounds do not fit twice into the context
    free = {"suffix": Suffix().load(there, Suffix().matches(told.info), {}), "prompt_lookup": Lookup()}
    for parts, prompts in (
        ({name: drafter, **free}, told.prompts[:1]),
        ({name: drafter, "silent": Silent()}, told.prompts[:3]),
    ):
        riders, policy = [toys.guard(part, name=title) for title, part in parts.items()], Clocked()
        auto, cache = {"auto": Composite(riders, policy)}, ChatCache(there)
        seen = list[RoundResult]()
        for turn, prompt in enumerate(prompts):
            how: dict[str, Any] = {"settings": settings, "limit": 48}
            plain = toys.answer(ChatCache(told.target()), prompt, **how).token_ids
            done = rides.answer(cache, prompt, auto, policy=policy, tokens=None, **how)
            assert done.text == plain
            seen += done.rounds[1:] if turn else []
        assert not any(rider.failed for rider in riders)
    own = [done.ahead for done in seen if done.drafter == name]
    assert len(own) > 20 and sum(own) / len(own) >= 0.9
