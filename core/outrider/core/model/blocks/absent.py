"""What stands in the place of a mixer that a block does not have (Nemotron-H has one mixer a block): it adds nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout
from outrider.core.model.cache.states import CacheConfig, State


class NoMixer:
    """No token mixer."""

    def new_state(self, room: CacheConfig) -> State | None:
        """Nothing to remember."""
        return None

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """The residual alone."""
        return torch.zeros_like(x) if residual is None else residual


class NoChannel:
    """No channel mixer."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The residual alone."""
        return torch.zeros_like(x) if residual is None else residual
