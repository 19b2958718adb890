"""Channel mixers: the gated MLP, and a mixture of experts behind one router with a few settings.

Letters: `S` tokens, `d` width, `I` inner width, `E` experts, `k` chosen experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.families.spec import Activation, ExpertsSpec
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.activations import ACTIVATIONS
from outrider.core.model.kernels.interface import Fused, Mixture
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS, Linear

from .norm import Norm
from .rowwise import rowwise


def _gated(both: Tensor, activation: Activation) -> Tensor:
    return rowwise(ACTIVATIONS[activation], *both.chunk(2, -1))


@dataclass(slots=True)
class Dense:
    """`down(act(gate x) * up x)`."""

    gate_up: Linear  # d -> 2 I
    down: Linear  # I -> d
    activation: Activation

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        both = self.gate_up(x)
        fast = ops.fused(both)
        y = _gated(both, self.activation) if fast is None else fast.gated(both, self.activation)
        return self.down(y) if residual is None else self.down.plus(y, residual)


@dataclass(slots=True)
class Ungated:
    """`down(relu(up x) ^ 2)`."""

    up: Linear  # d -> I
    down: Linear  # I -> d

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        y = F.relu(self.up(x)).square_()
        return self.down(y) if residual is None else self.down.plus(y, residual)


@dataclass(slots=True)
class Router:
    """Chooses experts: score function, groups, where the top-k sits, renormalisation, scale."""

    spec: ExpertsSpec
    linear: Linear  # d -> E
    correction: Tensor | None = None  # [E], only for choosing
    norm: Norm | None = None  # Gemma 4 routes on a norm of its own
    per_expert: Tensor | None = None  # [E]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[S, d] -> weights [S, k] and experts [S, k]."""
        spec = self.spec
        logits = self.linear(x if self.norm is None else self.norm(x)).to(torch.promote_types(x.dtype, torch.float32))
        if spec.score == "after":
            weights, chosen = logits.topk(spec.top, -1)
            return weights.softmax(-1), chosen
        scores = rowwise(torch.sigmoid, logits) if spec.score == "sigmoid" else logits.softmax(-1)
        ranked = scores if self.correction is None else scores + self.correction
        chosen = (self._grouped(ranked) if spec.groups > 1 else ranked).topk(spec.top, -1).indices
        weights = scores.gather(-1, chosen)
        if spec.renormalise:
            total = weights.sum(-1, keepdim=True)
            weights = weights / (total + 1e-20 if spec.score == "sigmoid" else total)
        weights = weights * spec.factor
        return (weights if self.per_expert is None else weights * self.per_expert[chosen]), chosen

    def _grouped(self, ranked: Tensor) -> Tensor:
        """All but the best groups are out; a group is worth its two best experts."""
        spec = self.spec
        groups = ranked.view(ranked.shape[0], spec.groups, -1)  # [S, groups, E / groups]
        worth = groups.topk(2, -1).values.sum(-1)
        best = worth.topk(spec.top_groups, -1).indices
        out = torch.ones_like(worth, dtype=torch.bool).scatter_(-1, best, False)
        return groups.masked_fill(out[..., None], float("-inf")).reshape(ranked.shape)


@dataclass(slots=True)
class Experts:
    """The chosen experts of each token, weighted and added up; then the shared branch."""

    router: Router
    experts: Sequence[Dense | Ungated]
    shared: Dense | Ungated | None = None
    shared_gate: Linear | None = None  # d -> 1
    _known: dict[Fused, Mixture | None] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, x: Tensor, residual: Tensor | None = None, *, still: bool = False, real: int = 0) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        y = self.routed(x, x, still=still, real=real)
        if self.shared is not None:
            extra = self.shared(x)
            y = y + (extra if self.shared_gate is None else rowwise(torch.sigmoid, self.shared_gate(x)) * extra)
        return y if residual is None else residual + y

    def routed(self, x: Tensor, routing: Tensor, *, still: bool = False, real: int = 0) -> Tensor:
        """The experts of `x`, chosen by `routing`, both [S, d].

        A still pass cannot ask which ones: where the device has no step of its own for that, all run on all rows. In a fixed
        pass those run on all rows that one of the first `real` has chosen, so that nobody's sums depend on who else chose them.
        """
        weights, chosen = self.router(routing)
        mixture = self._mixture(x)
        if mixture is not None:
            return mixture(x, weights, chosen)
        y = torch.zeros_like(x)
        if still or real:
            for number in range(len(self.experts)) if still else chosen[:real].unique().tolist():
                share = (weights * (chosen == number)).sum(-1, keepdim=True)  # [S, 1]
                y = y + torch.where(share == 0, 0, self.experts[number](x) * share.to(x.dtype))
            return y
        for expert in chosen.unique().tolist():
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            part = self.experts[expert](x[rows]) * weights[rows, slots, None].to(x.dtype)
            y.index_add_(0, rows, part)
        return y

    def _mixture(self, x: Tensor) -> Mixture | None:
        fast = ops.fused(x)
        if fast is None or x.shape[0] > MAX_DECODE_ROWS:
            return None
        if fast not in self._known:
            found = matrices(self.experts)
            self._known[fast] = None if found is None else fast.mixture(*found, x.dtype)
        return self._known[fast]


def matrices(experts: Sequence[Dense | Ungated]) -> tuple[list[Linear], list[Linear], Activation] | None:
    """The upper and the lower matrix of each expert, and their activation; None unless all are of one kind."""
    gated = [expert for expert in experts if isinstance(expert, Dense)]
    plain = [expert for expert in experts if isinstance(expert, Ungated)]
    if len(experts) not in (len(gated), len(plain)) or len({expert.activation for expert in gated}) > 1:
        return None
    upper = [expert.gate_up for expert in gated] or [expert.up for expert in plain]
    return upper, [expert.down for expert in experts], gated[0].activation if gated else "relu2"
