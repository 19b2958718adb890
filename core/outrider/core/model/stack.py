"""Whole blocks of a CPU's pass in one call of C: no Python between their steps, and one parallel region for all of them.

A stack takes the plain blocks that follow each other: attention that the fused kernel knows, a gated MLP, matrices that C
multiplies by, RMS norms. Its results have the bits of the blocks' own steps.

Letters: `S` rows, `d` width.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from ctypes import byref, c_float, c_int, c_long, c_void_p, sizeof
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.formats.quantized import quantise
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block, Weights
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import PassLayout, Tables
from outrider.core.model.cache.states import Cache, CacheConfig, KVCache, SlidingKVCache, State, new_rows
from outrider.core.model.families.spec import AttentionSpec, TargetSpec
from outrider.core.model.kernels.interface import KINDS
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS, Linear, Stacked
from outrider.core.model.kernels.native import Native, known
from outrider.core.model.kernels.packed_linear import Packed, there

from .kernels import ops

TOGETHER = 256  # rows of one call: what they leave for the next step stays in a core's own cache
_PARTS = 3  # matrices of different forms whose outputs are side by side, at most


class _Normed(ctypes.Structure):
    """`struct normed` of the source."""

    _fields_ = (("weight", c_void_p), ("eps", c_float), ("there", c_int))


class _Block(ctypes.Structure):
    """`struct block` of the source."""

    _fields_ = (
        *((name, _Normed) for name in ("before_mixer", "after_mixer", "before_channel", "after_channel")),
        ("layer", c_void_p),
        *((name, c_void_p * _PARTS) for name in ("mix", "gate_up", "out", "down")),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("activation", c_long),
    )


class _Held(ctypes.Structure):
    """`struct held` of the source."""

    _fields_ = (("kv", c_void_p), ("ring", c_long))


class _Memory(NamedTuple):
    """The states of a conversation as a stack reads them."""

    held: ctypes.Array[_Held]
    rings: list[SlidingKVCache]
    widest: int  # rows of a pass in one line that all of them take


class Stack:
    """Some blocks of a decoder that follow each other, the first of them number `first`."""

    def __init__(
        self,
        native: Native,
        blocks: Sequence[Block],
        tables: Tables,
        dtype: torch.dtype,
        *,
        first: int = 0,
        scale: float = 1.0,
    ) -> None:
        """`scale`: of what is added to the residual."""
        self.first, self.stop = first, first + len(blocks)
        self._native, self._scale = native, scale
        self._sources = [block.source for block in blocks]
        self._held = blocks, tables  # what the pointers lead to
        self._blocks = (_Block * len(blocks))(*(_block(block, tables, dtype) for block in blocks))
        self._memories: WeakKeyDictionary[Cache | KVCache, _Memory] = WeakKeyDictionary()

    def run(
        self, x: Tensor, where: PassLayout, cache: Cache, blocks: range, keep: tuple[Sequence[int], dict[int, Tensor]]
    ) -> Tensor | None:
        """[S, d] -> [S, d] through some of the blocks; residuals between them are kept as `Decoder` keeps them.

        None where the pass is too wide.
        """
        memory = self._memories.get(cache)
        if memory is None:
            memory = self._memories[cache] = _memory([cache.states[source] for source in self._sources])
        return self._run(x, None, where, memory, blocks, self._exports(x, blocks, *keep))

    def through(
        self, x: Tensor, where: PassLayout, states: Sequence[KVCache], entry: Tensor | None = None
    ) -> Tensor | None:
        """[S, d] -> [S, d] through all blocks of a drafter, whose `states` are always the same ones together.

        `entry` [S, n]: what the first mixer reads in place of the normed `x`. None where the pass is too wide.
        """
        memory = self._memories.get(states[0])
        if memory is None:
            memory = self._memories[states[0]] = _memory(states)
        blocks = range(self.first, self.stop)
        return self._run(x, None if entry is None else entry.contiguous(), where, memory, blocks, None)

    def _run(
        self,
        x: Tensor,
        entry: Tensor | None,
        where: PassLayout,
        memory: _Memory,
        blocks: range,
        exports: ctypes.Array | None,
    ) -> Tensor | None:
        sight = None if where.tree is None else where.sight
        if where.rows > memory.widest or (where.tree is not None and (sight is None or where.rows > MAX_DECODE_ROWS)):
            return None
        for ring in memory.rings:
            ring.wrote(where.stop)
        x, start = x.contiguous(), int(where.base) if where.still else where.start
        out, size, skipped = torch.empty_like(x), x.itemsize, blocks.start - self.first
        base, positions, loose, bits = (None,) * 4 if sight is None else (part.data_ptr() for part in sight)
        for first in range(0, where.rows, TOGETHER):
            past = first * x.shape[1] * size
            failed = self._native.stack(
                byref(self._blocks, skipped * sizeof(_Block)),
                byref(memory.held, skipped * sizeof(_Held)),
                len(blocks),
                x.data_ptr() + past,
                None if entry is None else entry.data_ptr() + first * entry.shape[1] * size,
                out.data_ptr() + past,
                None if exports is None else (c_void_p * len(exports))(*(at and at + past for at in exports)),
                min(TOGETHER, where.rows - first),
                x.shape[1],
                start + first,
                base,
                positions,
                loose,
                0 if sight is None else sight.loose.shape[0],
                bits,
                self._scale,
                x.dtype == torch.bfloat16,
                torch.get_num_threads(),
            )
            if failed:
                raise MemoryError(f"no memory for a pass of {where.rows} rows")
        return out

    def _exports(self, x: Tensor, blocks: range, states: Sequence[int], kept: dict[int, Tensor]) -> ctypes.Array | None:
        between = [number for number in states if number in blocks[1:]]
        if not between:
            return None
        exports = (c_void_p * len(blocks))()
        for number in between:
            kept[number] = torch.empty_like(x)
            exports[number - blocks.start] = kept[number].data_ptr()
        return exports


def _memory(states: Sequence[State | None]) -> _Memory:
    rows = [state for state in states if isinstance(state, KVCache)]
    rings = [state for state in rows if isinstance(state, SlidingKVCache)]
    shared = len({id(ring) for ring in rings}) < len(rings)  # a wide pass would leave its end alone to the next reader
    assert len(rows) == len(states)
    held = (_Held * len(rows))(
        *((state.parts[0].data_ptr(), state.rows if isinstance(state, SlidingKVCache) else 0) for state in rows)
    )
    slack = min((ring.slack for ring in rings), default=MAX_DECODE_ROWS)
    return _Memory(held, rings, sys.maxsize if slack >= MAX_DECODE_ROWS and not shared else min(MAX_DECODE_ROWS, slack))


def stacks(native: object, weights: Weights, spec: TargetSpec) -> Mapping[int, Stack]:
    """Blocks of a decoder that run in one go where a pass allows, by the number of the first; none unless C runs them."""
    by_layer: dict[int, Stack] = {}
    blocks, first = weights.blocks, 0
    if not isinstance(native, Native) or not _works(native, weights.embedding.dtype):
        return by_layer
    while first < len(blocks):
        stop = first
        while stop < len(blocks) and not spec.parallel and _takes(native, blocks[stop], weights.embedding.dtype):
            stop += 1
        if stop > first:
            some, dtype = blocks[first:stop], weights.embedding.dtype
            stack = Stack(native, some, weights.tables, dtype, first=first, scale=spec.residual_scale)
            by_layer |= dict.fromkeys(range(first, stop), stack)
        first = max(stop, first + 1)
    return by_layer


def stack_of(blocks: Sequence[Block], tables: Tables, like: Tensor) -> Stack | None:
    """The blocks of a drafter, in order; None unless C runs all of them. `like` has their dtype and is on their device."""
    native = ops.fused(like)
    if not isinstance(native, Native) or not _works(native, like.dtype):
        return None
    if not all(_takes(native, block, like.dtype) for block in blocks):
        return None
    return Stack(native, blocks, tables, like.dtype)


def _takes(native: Native, block: Block, dtype: torch.dtype) -> bool:
    """Whether C runs such a block."""
    mixer, channel = block.mixer, block.channel
    if not (block.beside is None and block.per_layer is None and block.scalar is None):
        return False
    if not isinstance(mixer, Attention) or not isinstance(channel, Dense) or mixer.spec.gate or mixer.heads is None:
        return False
    matrices = _matrices(mixer, channel)
    return (
        native.attends(mixer.heads, dtype)
        and all(len(parts) <= _PARTS for parts in matrices)
        and all(isinstance(part, Packed) and part.few(dtype) for parts in matrices for part in parts)
        and all(norm is None or _plain(norm, dtype) for norm in _norms(block))
    )


def _matrices(mixer: Attention, channel: Dense) -> list[Sequence[Linear]]:
    """Parts of the matrices, as in a `_Block`; what is added to the residual has only one."""
    stacked = [matrix.parts if isinstance(matrix, Stacked) else (matrix,) for matrix in (mixer.mix, channel.gate_up)]
    return [*stacked, (mixer.out,), (channel.down,)]


def _norms(block: Block) -> tuple[Norm | None, ...]:
    return block.before_mixer, block.after_mixer, block.before_channel, block.after_channel


def _plain(norm: Norm, dtype: torch.dtype) -> bool:
    return not norm.centred and (norm.weight is None or (norm.weight.dtype == dtype and norm.weight.is_contiguous()))


def _block(block: Block, tables: Tables, dtype: torch.dtype) -> _Block:
    mixer, channel = block.mixer, block.channel
    assert isinstance(mixer, Attention) and isinstance(channel, Dense) and mixer.heads is not None
    addresses = [
        (c_void_p * _PARTS)(*(part.address for part in parts if isinstance(part, Packed)))
        for parts in _matrices(mixer, channel)
    ]
    rope = mixer.spec.rope
    turns = (None, None) if rope is None else (part.data_ptr() for part in tables[rope, mixer.spec.head_dim])
    return _Block(
        *(_normed(norm) for norm in _norms(block)),
        known(mixer.heads, dtype).address,
        *addresses,
        *turns,
        KINDS[channel.activation],
    )


def _normed(norm: Norm | None) -> _Normed:
    if norm is None:
        return _Normed(None, 0.0, 0)
    return _Normed(None if norm.weight is None else norm.weight.data_ptr(), norm.eps, 1)


@cache
def _works(native: Native, dtype: torch.dtype) -> bool:
    with torch.autocast("cpu", enabled=False):  # a training may be the first to ask
        return not failing(native, dtype)


@torch.inference_mode()
def failing(native: Native, dtype: torch.dtype) -> bool:
    """Whether a small block does not give what torch's steps give."""
    if there() is None:
        return False
    generator = torch.Generator().manual_seed(0)
    spec, wide, rows = AttentionSpec(2, 1, 16, None, 0.25), 64, 3
    width = spec.heads * spec.head_dim

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    codes = [
        quantise(some(*shape), 4) for shape in ((2 * width, width), (width, width), (2 * wide, width), (width, wide))
    ]
    mix, out, gate_up, down = (Packed(weight, None, dtype) for weight in codes)
    norm = Norm(width, some(width).to(dtype), 1e-6)
    block = Block(Attention(spec, mix, out), Dense(gate_up, down, "silu"), 0, norm, None, norm, None)
    state, x = new_rows(CacheConfig(rows, dtype, mix.weight.device), (2, spec.head_dim)), some(rows, width).to(dtype)
    stack = Stack(native, (block,), {}, dtype)
    got = stack.run(x, PassLayout(0, rows, {}, dtype, x.device), Cache([state], rows), range(1), ((), {}))
    assert norm.weight is not None and got is not None

    mixed, projected, gates, lowered = (weight.expand().T for weight in codes)
    want, scale = x.float(), norm.weight.float()
    q, k, v = (F.rms_norm(want, (width,), scale, norm.eps) @ mixed).split([width, spec.head_dim, spec.head_dim], 1)
    q = q.view(rows, spec.heads, -1).transpose(0, 1)
    seen = F.scaled_dot_product_attention(q, k[None], v[None], is_causal=True, scale=spec.scale)
    want = want + seen.transpose(0, 1).flatten(1) @ projected
    gate, up = (F.rms_norm(want, (width,), scale, norm.eps) @ gates).chunk(2, 1)
    want = want + (F.silu(gate) * up) @ lowered
    return bool(not ((got.float() - want).abs().amax() / want.std() < (0.05 if dtype == torch.bfloat16 else 1e-4)))
