"""Multi-head latent attention: keys and values are made from a small latent, which is all that is kept.

Source: DeepSeek-V2 (arXiv 2405.04434). For few rows the expansion is folded into queries and outputs, so that the latents
are read once and never expanded.

Letters: `S` tokens of the pass, `H` heads, `n` unrotated and `r` rotated dims of a head, `c` latent size, `v` value size,
`C` rows read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.model.cache.layout import PassLayout, fitting
from outrider.core.model.cache.states import CacheConfig, KVCache, State, new_rows
from outrider.core.model.families.spec import LatentSpec
from outrider.core.model.kernels.linear import Linear

from .norm import Norm
from .rope import rotate_


@dataclass(slots=True)
class LatentAttention:
    """Weights of one layer. `k_up` and `v_up` are the halves of the stored expansion."""

    spec: LatentSpec
    q_down: Linear | None  # d -> q rank
    q_norm: Norm | None
    q_up: Linear  # q rank or d -> H (n + r)
    kv_down: Linear  # d -> c + r
    kv_norm: Norm
    k_up: Tensor  # [H, n, c]
    v_up: Tensor  # [H, c, v]
    out: Linear  # H v -> d

    def new_state(self, room: CacheConfig) -> State | None:
        """Latent and rotated key of each token."""
        return new_rows(room, (self.spec.kv_rank,), (self.spec.rope_dim,))

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        parts = self.project(x)
        return self.output(self.along(parts, where, state), parts, residual)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `batched.Parted`: queries [S, H, n + r], latents [S, c], keys [S, r]."""
        spec = self.spec
        down = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        latent, k_turned = self.kv_down(x).split([spec.kv_rank, spec.rope_dim], -1)
        return self.q_up(down).view(x.shape[0], spec.heads, -1), self.kv_norm(latent), k_turned

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """As `batched.Parted`: [S, H v]."""
        assert isinstance(state, KVCache)
        spec, rows = self.spec, where.rows
        q, latent, k_turned = parts
        q_still, q_turned = q.split([spec.nope_dim, spec.rope_dim], -1)
        rope = where.rope(spec.rope, spec.rope_dim)
        q_turned, k_turned = q_turned.contiguous(), k_turned[:, None].contiguous()
        rotate_(q_turned, *rope)
        rotate_(k_turned, *rope)
        latents, keys = state.take(where, latent, k_turned[:, 0])  # [C, c], [C, r]
        q_latent = torch.einsum("shn,hnc->hsc", q_still, self.k_up)  # [H, S, c]
        q_turned, mask = q_turned.transpose(0, 1), state.mask(where, 1)
        step, read = fitting(spec.heads * latents.shape[0]), []
        for start in range(0, rows, step):
            some = slice(start, start + step)
            scores = q_latent[:, some] @ latents.T + q_turned[:, some] @ keys.T  # [H, S, C]
            read.append((scores * spec.scale + mask[some]).softmax(-1) @ latents)
        y = torch.cat(read, 1) @ self.v_up  # [H, S, v]
        return y.transpose(0, 1).reshape(rows, -1)

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """As `batched.Parted`."""
        return self.out(y) if residual is None else self.out.plus(y, residual)
