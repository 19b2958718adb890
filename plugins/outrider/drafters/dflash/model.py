"""The block diffusion drafter: one pass over the anchor and mask tokens, with the target's states as its context.

Sources: DFlash (arXiv 2602.06036), DFlash2 (z-lab, 2026: a convolution around each mixer).

Every layer takes keys and values of the context straight from one fused target state for each committed token; they never
change, so they are computed once. Those of the block are provisional.

Letters: `d` width, `P` target states of a row, `B` slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from outrider.core.drafting import Target
from outrider.core.drafting.layers import DraftLayers, Layout, Part, Rows, block_layout
from outrider.core.drafting.state import DraftState, Scratch

from .format import Plan, Sight


@dataclass(frozen=True, slots=True)
class Conv:
    """Two short convolutions over the block, one before and one behind a mixer; both kernels come from what goes in."""

    base: Tensor  # [2, taps, d]
    projection: Part  # d -> 2 taps groups

    def around(self, u: Tensor, mixer: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, d] -> [B, d]."""
        rows, (_, taps, width) = u.shape[0], self.base.shape
        extra = self.projection(u).view(rows, 2, taps, -1)  # [B, 2, taps, groups]
        kernels = self.base + extra.repeat_interleave(width // extra.shape[-1], -1)  # [B, 2, taps, d]
        return _convolved(kernels[:, 1], mixer(_convolved(kernels[:, 0], u)))


def _convolved(kernel: Tensor, x: Tensor) -> Tensor:
    """Tap s of the kernel [B, taps, d] weighs the slot s places earlier of `x` [B, d]; nothing stands before the block."""
    y = kernel[:, 0] * x
    for tap in range(1, kernel.shape[1]):
        y[tap:] += kernel[tap:, tap] * x[:-tap]
    return y


@dataclass(frozen=True, slots=True)
class Convolved:
    """A mixer with its convolutions, in the mixer's place."""

    conv: Conv
    mixer: Callable[..., Tensor]

    def __call__(self, u: Tensor, *passed: Any) -> Tensor:
        """[B, d] -> [B, d]; the residual is passed last."""
        *rest, residual = passed
        return residual + self.conv.around(u, lambda v: self.mixer(v, *rest))


@dataclass(frozen=True, slots=True)
class Network:
    """The weights, and how they run."""

    plan: Plan
    fuse: Part  # P d -> d
    fuse_norm: Part
    layers: DraftLayers
    norm: Part

    @property
    def loose(self) -> bool:
        """Whether a layer's window ends at the anchor, which takes loose rows."""
        return any(sight.window and sight.reading != "slot" for sight in self.plan.sights)

    def new_state(self, target: Target) -> DraftState:
        """Of a new conversation: context rows from the target's states [S, P, d]."""
        layers = self.layers
        return DraftState(target, layers.mixers, layers.tables, lambda states: states, self._keep)

    def _keep(self, memory: Rows, ids: Tensor, states: Tensor, where: Layout, newest: Tensor | slice) -> None:
        """Target states [n, P, d] of committed tokens become context rows."""
        self.layers.keep(self.fuse_norm(self.fuse(states.flatten(1))), where, memory)

    def block(self, x: Tensor, scratch: Scratch, memory: Rows) -> Tensor:
        """Slots [B, d], embedded, behind the context rows -> their states [B, d] after the last norm."""
        places = {sight: _place(sight, scratch, x.shape[0]) for sight in self.plan.sights}
        layouts = [places[sight] for sight in self.plan.sights]
        return self.norm(self.layers(x, layouts[0] if len(places) == 1 else layouts, memory))


def _place(sight: Sight, scratch: Scratch, slots: int) -> Layout:
    """Whom slots see; a block is never longer than a window, so its slots see each other."""
    window = sight.window if sight.reading == "anchor" else 0  # the layers have those that end at each slot
    return block_layout(scratch, slots, causal=sight.causal, window=window)
