"""Grouped-query attention with every switch that a family needs.

Letters: `S` tokens of the pass, `d` width, `H` query heads, `K` key/value heads, `G` = H / K, `h` head size, `C` rows read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.layout import KVSlots, PassLayout, TreeMask, fitting
from outrider.core.model.cache.states import CacheConfig, KVCache, State, new_rows
from outrider.core.model.families.spec import AttentionSpec
from outrider.core.model.kernels import ops
from outrider.core.model.kernels.interface import Fused, Heads
from outrider.core.model.kernels.linear import Linear, missing

from .norm import Norm
from .rope import rotate_
from .rowwise import rowwise


@dataclass(slots=True)
class Attention:
    """Weights of one attention layer; `mix` fuses queries, keys, values and gate, in this order, as far as they exist."""

    spec: AttentionSpec
    mix: Linear  # d -> (H + K + K + H) h
    out: Linear  # H h -> d
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    sinks: Tensor | None = None  # [H]
    plain: bool = field(init=False)  # nothing but rope happens to queries and keys: the fewest steps will do
    _odd: bool = field(init=False)  # more than norms over each head happens to them
    _heads: Heads | None = field(init=False, default=None)
    _attends: dict[tuple[Fused, torch.dtype], bool] = field(init=False, default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self._odd = bool(spec.value_norm or spec.value_is_key or spec.temperature or spec.qk_factor != 1.0)
        self.plain = not self._odd and not spec.qk_norm and spec.source is None

    @property
    def heads(self) -> Heads | None:
        """What a fused kernel has to know to do all from `mix` to `out`; None where it does not."""
        if self._heads is None and not self._odd and self.spec.qk_norm != "whole":
            self._heads = Heads(self.spec, self.q_norm, self.k_norm, self.sinks)
        return self._heads

    def fused(self, mixed: Tensor) -> Fused | None:
        """What takes `mixed` from `mix` to `out` in one kernel; None where nothing does."""
        fast = ops.fused(mixed)
        if fast is None:
            return None
        attends = self._attends.get((fast, mixed.dtype))
        if attends is None:
            attends = self.heads is not None and fast.attends(self.heads, mixed.dtype)
            self._attends[fast, mixed.dtype] = attends
        return fast if attends else None

    def new_state(self, room: CacheConfig) -> State | None:
        """Keys, then values of each token; None where another layer's are used."""
        if self.spec.source is not None:
            return None
        return new_rows(room, (2 * self.spec.kv_heads, self.spec.head_dim), window=self.spec.window)

    def __call__(self, x: Tensor, where: PassLayout, state: State | None, residual: Tensor | None = None) -> Tensor:
        """[S, d] -> [S, d], plus the residual if there is one."""
        parts = self.project(x)
        return self.output(self.along(parts, where, state), parts, residual)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """As `batched.Parted`: [S, heads of all parts, h]."""
        return (self.mix(x).view(x.shape[0], -1, self.spec.head_dim),)

    def along(self, parts: tuple[Tensor, ...], where: PassLayout, state: State | None) -> Tensor:
        """As `batched.Parted`: [S, H h]."""
        assert isinstance(state, KVCache)
        fast = self.fused(parts[0])
        y = None if fast is None else self._fused(fast, parts[0], where, state)
        return self._by_steps(parts[0], where, state) if y is None else y

    def output(self, y: Tensor, parts: tuple[Tensor, ...], residual: Tensor | None) -> Tensor:
        """As `batched.Parted`."""
        if self.spec.gate:
            y = y * rowwise(torch.sigmoid, parts[0][:, -self.spec.heads :].reshape(y.shape[0], -1))
        return self.out(y) if residual is None else self.out.plus(y, residual)

    def _fused(self, fast: Fused, mixed: Tensor, where: PassLayout, state: KVCache) -> Tensor | None:
        """[S, H h] by one fused kernel; None where it does not take this pass."""
        if where.sight is not None:
            return self._fused_pass(fast, mixed, where, state, where.sight)
        parts = where.parts if mixed.device.type == "cpu" and state.takes_parts(self.spec.source is not None) else ()
        made = list[Tensor]()
        for rows, part in parts:
            assert part.sight is not None
            y = self._fused_pass(fast, mixed[rows], part, state, part.sight)
            if y is None:
                return None
            made.append(y)
        return torch.cat(made) if made else None

    def _fused_pass(
        self, fast: Fused, mixed: Tensor, where: PassLayout, state: KVCache, sight: TreeMask
    ) -> Tensor | None:
        heads, spec, place = self.heads, self.spec, state.place(where)
        assert heads is not None
        if place is None:
            return None
        cos, sin = (None, None) if spec.rope is None else where.rope(spec.rope, spec.head_dim)
        return fast.attend(mixed, state.parts[0], heads, KVSlots(*place, cos, sin, sight))

    def _by_steps(self, mixed: Tensor, where: PassLayout, state: KVCache) -> Tensor:
        spec = self.spec
        if self.plain:
            if spec.rope is not None:
                rotate_(mixed[:, : spec.heads + spec.kv_heads], *where.rope(spec.rope, spec.head_dim))
            q, kv = mixed[:, : spec.heads], mixed[:, spec.heads : spec.heads + 2 * spec.kv_heads]
        else:
            q = self._queries(mixed[:, : spec.heads], where)
            kv = None if spec.source is not None else self._keys_values(mixed, where)
        seen = state.take(where) if kv is None else state.take(where, kv)
        return self._attend(q, seen[0], state, where)

    def _queries(self, q: Tensor, where: PassLayout) -> Tensor:
        spec = self.spec
        if self.q_norm is not None:
            q = _normed(q, self.q_norm, whole=spec.qk_norm == "whole")
        if spec.qk_factor != 1.0:
            q = q * spec.qk_factor
        if spec.rope is not None:
            rotate_(q, *where.rope(spec.rope, spec.head_dim))
        if spec.temperature is not None:
            beta, original = spec.temperature
            heat = 1 + beta * torch.log1p(torch.floor(where.positions.to(torch.float64) / original))
            q = q * heat[:, None, None].to(q.dtype)
        return q

    def _keys_values(self, mixed: Tensor, where: PassLayout) -> Tensor:
        spec = self.spec
        k = mixed[:, spec.heads : spec.heads + spec.kv_heads]
        v = k.clone() if spec.value_is_key else mixed[:, spec.heads + spec.kv_heads : spec.heads + 2 * spec.kv_heads]
        if self.k_norm is not None:
            k = _normed(k, self.k_norm, whole=spec.qk_norm == "whole")
        if spec.rope is not None:
            rotate_(k, *where.rope(spec.rope, spec.head_dim))
        return torch.cat((k, v if self.v_norm is None else self.v_norm(v)), 1)  # [S, 2K, h]

    def _attend(self, q: Tensor, seen: Tensor, state: KVCache, where: PassLayout) -> Tensor:
        spec, rows = self.spec, where.rows
        groups = spec.heads // spec.kv_heads
        both = seen.transpose(0, 1)[None]  # [1, 2K, C, h]
        keys, values = both[:, : spec.kv_heads], both[:, spec.kv_heads :]
        mask = state.mask(where, groups)
        if not where.folds:
            q = q.transpose(0, 1)[None]  # [1, H, S, h]
            if self.sinks is not None:
                keys, values = (part.repeat_interleave(groups, 1) for part in (keys, values))
                y = _with_sinks(q, keys, values, mask, self.sinks[:, None], spec.scale)
            else:
                more = (0, 0, 0, missing(rows, q))  # of queries that see all
                q, mask = (F.pad(part, more) if more[-1] else part for part in (q, mask))
                y = F.scaled_dot_product_attention(q, keys, values, mask, scale=spec.scale, enable_gqa=True)[
                    :, :, :rows
                ]
            return y[0].transpose(0, 1).reshape(rows, -1)
        if rows == 1:  # a group's queries are its rows as they stand
            q = q.view(1, spec.kv_heads, groups, spec.head_dim)
        else:
            q = q.view(rows, spec.kv_heads, groups, spec.head_dim).permute(1, 2, 0, 3)  # [K, G, S, h]
            q = q.reshape(1, spec.kv_heads, groups * rows, spec.head_dim)
        if self.sinks is not None:
            sinks = self.sinks.view(spec.kv_heads, groups, 1).expand(-1, -1, rows).reshape(spec.kv_heads, -1)
            y = _with_sinks(q, keys, values, mask, sinks, spec.scale)
        else:
            y = F.scaled_dot_product_attention(q, keys, values, mask, scale=spec.scale)
        if rows == 1:
            return y.reshape(1, -1)
        y = y.view(spec.kv_heads, groups, rows, spec.head_dim).permute(2, 0, 1, 3)  # [S, K, G, h]
        return y.reshape(rows, -1)


def _normed(x: Tensor, norm: Norm, *, whole: bool) -> Tensor:
    """Norm over each head of [S, heads, h], or over all of them together."""
    return norm(x.reshape(x.shape[0], -1)).view(x.shape) if whole else norm(x)


def _with_sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sinks: Tensor, scale: float) -> Tensor:
    """Attention with one more score for each row of queries, whose probability goes nowhere; `sinks` [heads, 1 or rows]."""
    heads, rows = q.shape[1:3]
    extra = sinks.expand(heads, rows)[None, :, :, None].to(q.dtype)
    step, parts = fitting(heads * k.shape[2]), []
    for start in range(0, rows, step):
        some = slice(start, start + step)
        scores = q[:, :, some] @ k.transpose(-1, -2) * scale + mask[some]  # [1, heads, rows, C]
        parts.append(torch.cat((scores, extra[:, :, some]), -1).softmax(-1)[..., :-1] @ v)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)
