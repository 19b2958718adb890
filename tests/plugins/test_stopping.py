"""How sure drafters are of their tokens, told before each is drawn, and chains that end where the engine says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import layers
import pytest
import torch
import toys
from goods import GOODS, target
from replay import Replay
from torch import Tensor

from outrider.core.drafting import Context, Draft, Drafter, registry
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings, certainty
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.layerskip import LayerSkipDrafter as Layerskip

PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
LOOPS = ("eagle1", "eagle3", "eagle31", "eagle3_speculators", "mtp_copy", "assistant", "draft_model", "layerskip")
BLOCKS = ("peagle", "dflash", "dspark", "dflash2", "dflash_speculators", "medusa", "hydra", "mtp_parallel")
OTHERWISE = ("dspark", "medusa", "hydra")  # its own head says, or all ranks of a tree have a chance
SAMPLED = Settings(temperature=0.8, top_p=0.95)
CASES = {"greedy": (toys.GREEDY, "match"), "sampled": (SAMPLED, "match"), "rejection": (SAMPLED, "rejection")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return layers.target(toys.checkpoint(tmp_path_factory.mktemp("target") / "toy"))


def load(name: str, on: TargetModel, folder: Path) -> Drafter:
    if name == "layerskip":
        return Layerskip(on, [1])
    chain = {"eagle": {"tree": "chain"}, "dflash": {"tree": False}}.get(GOODS[name].method, {})
    return registry.build(GOODS[name].method, on, {"weights": str(GOODS[name].make(folder / name)), **chain})


def home(name: str, model: TargetModel) -> TargetModel:
    return target("eagle1" if name == "layerskip" else name, model)


class Asked:
    """A drafter that is asked for each draft by `ask`, which gives the one that rides."""

    def __init__(self, inner: Drafter, ask: Callable[[Drafter, Context], Draft | None]) -> None:
        self.inner, self.ask, self.needs, self.shape = inner, ask, inner.needs, inner.shape
        self.reset, self.advance, self.rewind = inner.reset, inner.advance, inner.rewind
        self.fork, self.close = inner.fork, inner.close
        self.lengths: list[int] = []

    def propose(self, context: Context) -> Draft | None:
        draft = self.ask(self.inner, context)
        self.lengths.append(0 if draft is None else draft.tokens.shape[0])
        return draft


class Rows:
    """A context whose rows of logits are kept, in the order in which they were drawn from."""

    def __init__(self, context: Context) -> None:
        self.rows: list[Tensor] = []
        self.context = replace(context, sample=self.sample, to_probs=self.to_probs)
        self.inner = context

    def sample(self, logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
        self.rows.extend(logits.clone())
        return self.inner.sample(logits, position, path)

    def to_probs(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        self.rows.append(logits.clone())
        return self.inner.to_probs(logits, path)


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("name", LOOPS)
def test_a_chain_stops_where_it_is_told(name: str, case: str, model: TargetModel, tmp_path: Path) -> None:
    """It is the beginning of the whole one, with its `probs`; no token is drawn before it was asked for."""
    luck, on = random.Random(1), home(name, model)
    settings, rule = CASES[case]

    def ask(inner: Drafter, context: Context) -> Draft | None:
        seen, asked = Rows(context), list[tuple[int, float]]()
        whole = inner.propose(replace(seen.context, worth_drafting=lambda depth, held: not asked.append((depth, held))))
        end = luck.randrange(context.nodes + 1)

        def worth_drafting(depth: int, held: float) -> bool:
            assert len(again.rows) == depth, "the token was drawn before"
            return depth < end

        again = Rows(context)
        part = inner.propose(replace(again.context, worth_drafting=worth_drafting))
        if whole is None:
            assert part is None
            return None
        assert whole.confidence is not None
        torch.testing.assert_close(whole.confidence, torch.stack([certainty(row) for row in seen.rows]))
        assert asked == list(enumerate(whole.confidence.tolist()))
        end = min(end, whole.tokens.shape[0])
        assert (part is None) == (end == 0)
        if part is not None:
            assert part.tokens.tolist() == whole.tokens.tolist()[:end]
            near: dict[str, Any] = {"atol": 1e-6, "rtol": 1e-4}  # it was read anew
            torch.testing.assert_close(part.confidence, whole.confidence[:end], **near)
            assert (part.probs is None) == (whole.probs is None) == (rule == "match")
            torch.testing.assert_close(part.probs, None if whole.probs is None else whole.probs[:end], **near)
        return part

    drafter = Asked(load(name, on, tmp_path), ask)
    notes: list[str] = []
    report = toys.answer(
        ChatCache(on), PROMPT, toys.guard(drafter, notes=notes), settings=settings, rule=rule, limit=24, tokens=4
    )
    assert not notes and len(set(drafter.lengths)) > 2
    if rule == "match":
        assert (
            report.token_ids == toys.answer(ChatCache(home(name, model)), PROMPT, settings=settings, limit=24).token_ids
        )


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_says_how_sure_it_is_and_is_not_stopped(
    name: str, case: str, model: TargetModel, tmp_path: Path
) -> None:
    on = home(name, model)
    settings, rule = CASES[case]

    def refuse(depth: int, held: float) -> bool:
        raise AssertionError("a block was asked whether to go on")

    def ask(inner: Drafter, context: Context) -> Draft | None:
        seen = Rows(context)
        draft = inner.propose(replace(seen.context, worth_drafting=refuse))
        if draft is not None:
            assert draft.confidence is not None and draft.confidence.shape == draft.tokens.shape
            if name not in OTHERWISE:
                held = torch.stack([certainty(row) for row in seen.rows])[: draft.tokens.shape[0]]
                torch.testing.assert_close(draft.confidence, held)
        return draft

    drafter = Asked(load(name, on, tmp_path), ask)
    notes: list[str] = []
    toys.answer(
        ChatCache(on), PROMPT, toys.guard(drafter, notes=notes), settings=settings, rule=rule, limit=12, tokens=4
    )
    assert not notes and max(drafter.lengths) > 1


@pytest.mark.parametrize("name", [*LOOPS, *(name for name in BLOCKS if name != "hydra")])
def test_where_passes_are_captured_nothing_is_weighed(name: str, model: TargetModel, tmp_path: Path) -> None:
    """The device would be asked for it."""
    plain = home(name, model)
    on = TargetModel(plain.decoder, plain.info, plain.context, Replay())

    def refuse(depth: int, held: float) -> bool:
        raise AssertionError("asked where passes are captured")

    def ask(inner: Drafter, context: Context) -> Draft | None:
        draft = inner.propose(replace(context, worth_drafting=refuse))
        assert draft is None or draft.confidence is None
        return draft

    drafter = Asked(load(name, on, tmp_path), ask)
    notes: list[str] = []
    toys.answer(ChatCache(on), PROMPT, toys.guard(drafter, notes=notes), limit=6, tokens=3)
    assert not notes and max(drafter.lengths) > 1


def test_ranks_of_a_tree_have_a_chance_each(model: TargetModel, tmp_path: Path) -> None:
    """Siblings share what their head has to give, the best one first."""
    widest = 0

    def ask(inner: Drafter, context: Context) -> Draft | None:
        draft = inner.propose(context)
        assert draft is not None and draft.confidence is not None and draft.parents is not None
        nonlocal widest
        below: dict[int, list[float]] = {}
        for parent, held in zip(draft.parents.tolist(), draft.confidence.tolist(), strict=True):
            below.setdefault(parent, []).append(held)
        assert all(held == sorted(held, reverse=True) and sum(held) <= 1.001 for held in below.values())
        widest = max(widest, len(below[-1]))
        return draft

    on, notes = home("medusa", model), list[str]()
    drafter = toys.guard(Asked(load("medusa", on, tmp_path), ask), notes=notes)
    toys.answer(ChatCache(on), PROMPT, drafter, limit=6, tokens=12, settings=SAMPLED)
    assert not notes and widest > 1
