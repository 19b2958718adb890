"""The golden drafters: tiny drafters in their published formats, each with its target and what the reference drafted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import golden
import torch
import toys
from safetensors.torch import load_file
from torch import Tensor

from outrider.core.base.protocol import Report
from outrider.core.drafting import Context, Draft, Drafter, ModelInfo
from outrider.core.drafting.active import GuardedDrafter
from outrider.core.drafting.state import DraftState
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache

FOLDER = golden.FOLDER.parent / "golden_drafters"
CONTEXT = 160


class Pair:
    """A drafter's folder and its target, whose weights are loaded once for all conversations."""

    def __init__(self, name: str) -> None:
        self.folder = FOLDER / name
        home = (self.folder / json.loads((self.folder / "pair.json").read_text())["target_path"]).resolve()
        self.notes: Mapping[str, Any] = json.loads((self.folder / "golden.json").read_text())
        self.tensors: Mapping[str, Tensor] = load_file(self.folder / "golden.safetensors")
        self.decoder = golden.decoder(home, torch.float32, CONTEXT + MAX_DRAFT_ROWS)
        self.info = ModelInfo(home.name, "llama", 256, 64, len(self.decoder.weights.blocks), "bytes", path=str(home))
        self.prompts = [self.tensors[f"p{i}.prompt_ids"][0].tolist() for i in range(len(self.notes["prompts"]))]
        self.texts = [self.tensors[f"p{i}.greedy_ids"][0].tolist() for i in range(len(self.prompts))]

    def target(self, context: int = CONTEXT) -> TargetModel:
        """The target with an empty cache."""
        return TargetModel(self.decoder, self.info, context)


class Watch:
    """A drafter that writes down what another one proposed and what became of it."""

    def __init__(self, inner: Drafter) -> None:
        self.inner, self.needs, self.shape = inner, inner.needs, inner.shape
        self.rows: list[tuple[int, Draft | None, int]] = []  # the root's position, the draft, tokens accepted
        self.reset, self.rewind, self.close, self.fork = inner.reset, inner.rewind, inner.close, inner.fork

    def propose(self, context: Context) -> Draft | None:
        """As the inner one."""
        draft = self.inner.propose(context)
        self.rows.append((len(context.tokens) - 1, draft, -1))
        return draft

    def advance(self, step: Any) -> None:
        """As the inner one."""
        if self.rows and self.rows[-1][2] < 0:
            self.rows[-1] = (*self.rows[-1][:2], step.path.shape[0])
        self.inner.advance(step)


def context(tokens: Sequence[int], nodes: int, settings: Settings = toys.GREEDY, *, probs: bool = False) -> Context:
    """What a drafter sees."""
    sampler = Sampler(settings, Noise(1))
    return Context(tokens, nodes, probs, sampler.chain, sampler.distribution, sampler.noise.draft_stream)


def positions(state: DraftState) -> list[int]:
    """Of all true rows."""
    return [first + at for _, first, count in state.passes(0, state.count) for at in range(count)]


def ride(
    pair: Pair, drafter: Drafter, prompt: int, nodes: int, target: TargetModel | None = None, **more: Any
) -> tuple[Report, Watch]:
    """One whole answer to a golden prompt through the engine's own loop; `target`: the one that the drafter reads."""
    watch, notes = Watch(drafter), list[str]()
    guarded: GuardedDrafter = toys.guard(watch, notes=notes)
    limit = more.pop("limit", len(pair.texts[prompt]))
    report = toys.answer(
        ChatCache(target or pair.target()), pair.prompts[prompt], guarded, tokens=nodes, limit=limit, **more
    )
    assert not notes, notes
    return report, watch
