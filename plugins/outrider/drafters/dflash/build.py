"""From a checkpoint to the network and its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider.core.drafting import Target
from outrider.core.drafting.files import DraftFiles
from outrider.core.drafting.layers import Part, ReducedHead, WeightReader, load_layers

from . import format
from .format import Plan
from .heads import Confidence, Markov, Selector
from .model import Conv, Convolved, Network


@dataclass(frozen=True, slots=True)
class Parts:
    """All that a checkpoint gives."""

    network: Network
    head: ReducedHead | None
    follower: Markov | Selector | None
    confidence: Confidence | None


@torch.inference_mode()
def build(files: DraftFiles, plan: Plan, target: Target, slack: int) -> Parts:
    """Read every tensor; `slack`: positions beyond the target's context. Raises ModelError, BrokenFileError."""
    return _Builder(files, plan, target).parts(slack)


class _Builder:
    def __init__(self, files: DraftFiles, plan: Plan, target: Target) -> None:
        self.plan, self.target = plan, target
        self.read = WeightReader(files, plan.spec, target, prefix=plan.prefix)
        self.read.apart = True  # context rows need keys and values only

    def parts(self, slack: int) -> Parts:
        plan, read, d = self.plan, self.read, self.plan.spec.width
        fc, fuse_norm = next(pair for pair in format.FUSED if read.has(pair[0]))
        layers = load_layers(read, slack=slack, change=self._convolve if plan.taps else None)
        network = Network(
            plan=plan,
            fuse=read.linear(fc.removesuffix(".weight"), d, len(plan.states) * d),
            fuse_norm=read.norm(fuse_norm.removesuffix(".weight")),
            layers=layers,
            norm=read.norm("norm"),
        )
        before = read.lookup(self._tensor(format.W1, self._vocab, plan.markov)) if plan.markov else None
        follower: Markov | Selector | None = self._selector() if plan.selector else None
        if before is not None:
            bias = self._tensor(format.W2, plan.reduced or self._vocab, plan.markov)
            follower = Markov(before, read.layer(bias))
        return Parts(network, self._head(), follower, self._confidence(before))

    @property
    def _vocab(self) -> int:
        return self.target.info.vocab

    def _tensor(self, names: tuple[str, ...], *shape: int) -> Tensor:
        return self.read.tensor(next((name for name in names if self.read.has(name)), names[0]), *shape)

    def _convolve(self, index: int, block: Any) -> None:
        """Put convolutions around both mixers of a layer."""
        block.mixer = Convolved(self._conv(f"layers.{index}.attention_conv."), block.mixer)
        block.channel = Convolved(self._conv(f"layers.{index}.mlp_conv."), block.channel)

    def _conv(self, at: str) -> Conv:
        plan, d = self.plan, self.plan.spec.width
        base = self.read.tensor(at + "base_kernel", 2, plan.taps, d)
        return Conv(base, self.read.linear(at + "kernel_projection", 2 * plan.taps * (d // plan.group), d))

    # ------------------------------------------------------------------ heads

    def _head(self) -> ReducedHead | None:
        plan = self.plan
        if not plan.reduced:
            return None
        return self.read.reduced_head(plan.reduced, tied=plan.tied, scale=plan.logit_scale, cap=plan.logit_cap)

    def _selector(self) -> Selector:
        rank = self.plan.selector
        before, after = (self._tensor(names, self._vocab, rank) for names in (format.BEFORE, format.AFTER))
        query = self.read.linear(format.QUERY.removesuffix(".weight"), rank, self.plan.spec.width)
        return Selector(before, after, query, self.plan.candidates)

    def _confidence(self, before: Part | None) -> Confidence | None:
        plan = self.plan
        if not plan.sure:
            return None
        name = next(name for name in format.SURE if self.read.has(name))
        bias = name.replace(".weight", ".bias")
        shift = self.read.tensor(bias, 1) if self.read.has(bias) else None
        looks = before if plan.sure > plan.spec.width else None
        return Confidence(self.read.tensor(name, 1, plan.sure)[0], shift, looks)
