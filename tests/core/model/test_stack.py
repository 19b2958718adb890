"""Blocks in one call of C: the bits of the blocks' own steps whatever the pass, in any form of weights and on any threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.core.drafting import ModelInfo
from outrider.core.formats.quantized import Grouped, pack_nibbles, quantise
from outrider.core.model import stack
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block, Weights
from outrider.core.model.blocks.mlp import Dense, Ungated
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.cache.layout import PassLayout, tree_of
from outrider.core.model.cache.states import Cache, KVCache
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder, Pass
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, LayerSpec, RopeSpec, TargetSpec
from outrider.core.model.graph_runner import GraphRunner
from outrider.core.model.kernels import compiled, native, ops, packed_linear
from outrider.core.model.kernels.linear import Linear, Stacked, Table
from outrider.core.model.kernels.native import Native
from outrider.core.model.kernels.packed_linear import Packed, Plain
from outrider.core.model.load import tables
from outrider.core.model.model import TargetModel

CPU = torch.device("cpu")
BF16, FP32 = torch.bfloat16, torch.float32
TREE = (-1, 0, 0, 1, -1, 4, 4, 6, 2)
WIDTH, WIDE, VOCAB = 64, 96, 40
SPEC = AttentionSpec(heads=6, kv_heads=2, head_dim=16, rope=RopeSpec(10_000.0, 16), scale=0.25)


@pytest.fixture(scope="module", autouse=True)
def fast() -> Native:
    try:
        compiled.compiler()
    except compiled.UnbuiltError as error:
        pytest.skip(str(error))
    found = native.find()
    assert isinstance(found, Native), found
    return found


class Maker:
    """Decoders of random weights; `form`: how their matrices are kept."""

    def __init__(self, dtype: torch.dtype, form: str = "int4", width: int = WIDTH, wide: int = WIDE) -> None:
        self.dtype, self.form, self.width, self.wide = dtype, form, width, wide
        self.generator = torch.Generator().manual_seed(len(form))

    def some(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def linear(self, rows: int, columns: int, *, bias: bool = False) -> Linear:
        weight = self.some(rows, columns) / columns**0.5
        shift = self.some(rows).to(self.dtype) if bias else None
        if self.form == "plain":
            return Plain(weight.to(BF16), shift)
        if self.form == "offsets":
            codes = torch.randint(0, 16, (rows, columns), generator=self.generator, dtype=torch.uint8)
            scale = torch.rand(rows, columns // 16, generator=self.generator) / columns**0.5
            return Packed(Grouped(pack_nibbles(codes, 16), scale, -7 * scale, bits=4), shift, self.dtype)
        return Packed(quantise(weight, int(self.form[3:])), shift, self.dtype)

    def norm(self, width: int) -> Norm:
        return Norm(width, (torch.rand(width, generator=self.generator) + 0.5).to(self.dtype), 1e-5)

    def block(self, index: int, spec: AttentionSpec, *, after: bool = False) -> Block:
        h, bias = spec.head_dim, spec.bias
        mix = self.linear(
            (spec.heads + (0 if spec.source is not None else 2 * spec.kv_heads)) * h, self.width, bias=bias
        )
        mixer = Attention(spec, mix, self.linear(self.width, spec.heads * h, bias=bias))
        if spec.qk_norm:
            mixer = replace(mixer, q_norm=self.norm(h), k_norm=self.norm(h))
        if spec.sinks:
            mixer = replace(mixer, sinks=self.some(spec.heads))
        dense = Dense(self.linear(2 * self.wide, self.width), self.linear(self.width, self.wide), "silu")
        norms = [self.norm(self.width) for _ in range(4)]
        before, after_mixer, again, after_channel = norms
        source = index if spec.source is None else spec.source
        return Block(
            mixer, dense, source, before, after_mixer if after else None, again, after_channel if after else None
        )

    def decoder(self, layers: Sequence[AttentionSpec], *, after: bool = False, scale: float = 1.0) -> Decoder:
        every = tuple(LayerSpec(layer, DenseSpec(self.wide)) for layer in layers)
        spec = TargetSpec("toy", self.width, VOCAB, 640, 1e-5, every, tied=False, residual_scale=scale)
        blocks = tuple(self.block(index, layer, after=after) for index, layer in enumerate(layers))
        ropes = tables(spec, 640, self.dtype, CPU)
        table = Table(self.some(VOCAB, self.width).to(self.dtype), self.dtype)
        head = Linear(self.some(VOCAB, self.width).to(self.dtype))
        return Decoder(spec, Weights(table, blocks, self.norm(self.width), head, ropes, 640))


@contextmanager
def by_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "_stacks", lambda self, x: {})
        yield


def ids(rows: int) -> Tensor:
    return torch.arange(rows) * 7 % VOCAB


def filled(decoder: Decoder, length: int, **room: Any) -> Cache:
    cache = decoder.new_cache(600, **room)
    for start in range(0, length, 50):
        stop = min(length, start + 50)
        decoder.run(ids(stop)[start:], cache, last=True)
        cache.commit(stop)
    return cache


def stacked(decoder: Decoder) -> list[tuple[int, int]]:
    return list(dict.fromkeys((one.first, one.stop) for one in decoder._stacks(decoder._scale).values()))


def same(decoder: Decoder, length: int, widths: Sequence[int], *, parents: Sequence[int] = (), **room: Any) -> None:
    """Passes from `length` on: logits, every residual, and what is written."""
    cache = filled(decoder, length, **room)
    parts = [state.parts[0] for state in cache.states if isinstance(state, KVCache)]
    before = [part.clone() for part in parts]
    states = range(len(decoder.weights.blocks) + 1)

    def run(rows: int) -> tuple[Pass, list[Tensor]]:
        for part, old in zip(parts, before, strict=True):
            part.copy_(old)
        tree = tree_of(parents, length, CPU) if parents else None
        return decoder.run(ids(rows), cache, states=states, tree=tree), [part.clone() for part in parts]

    for rows in widths:
        got, held = run(rows)
        with by_steps():
            want, kept = run(rows)
        assert got.hidden is not None and want.hidden is not None
        assert torch.equal(got.logits, want.logits) and torch.equal(got.hidden, want.hidden)
        assert all(torch.equal(one, other) for one, other in zip(held, kept, strict=True))


FORMS = ["int4", "int8", "offsets"]
LAYERS: dict[str, list[AttentionSpec]] = {
    "plain": [SPEC] * 3,
    "biases": [replace(SPEC, bias=True)] * 2,
    "norms of queries and keys": [replace(SPEC, qk_norm="head")] * 2,
    "no rope": [replace(SPEC, rope=None), SPEC],
    "sinks": [replace(SPEC, sinks=True)] * 2,
    "two sizes of heads": [SPEC, replace(SPEC, heads=2, kv_heads=1, head_dim=48, rope=RopeSpec(100.0, 48)), SPEC],
    "keys of another layer": [SPEC, replace(SPEC, source=0), SPEC],
    "windows": [replace(SPEC, window=20), SPEC, replace(SPEC, window=20)],
}


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("form", [*FORMS, "plain"])
def test_rows(form: str, dtype: torch.dtype) -> None:
    products = packed_linear.there()
    if form == "plain" and (dtype == FP32 or products is None or not products.dense):
        pytest.skip("plain weights are not multiplied in C there")
    decoder = Maker(dtype, form).decoder([SPEC] * 3)
    assert stacked(decoder) == [(0, 3)]
    same(decoder, 40, [*range(1, 18), 33, 64])


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("name", list(LAYERS))
def test_layers(name: str, dtype: torch.dtype) -> None:
    decoder = Maker(dtype).decoder(LAYERS[name])
    assert stacked(decoder) == [(0, len(LAYERS[name]))]
    same(decoder, 250, [1, 3, 10])
    same(decoder, 250, [10], parents=TREE)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("after", "scale"), [(True, 1.0), (False, 0.22), (True, 0.22)])
def test_what_happens_to_outputs_before_they_are_added(after: bool, scale: float, dtype: torch.dtype) -> None:
    decoder = Maker(dtype).decoder([SPEC] * 3, after=after, scale=scale)
    assert stacked(decoder) == [(0, 3)]
    same(decoder, 30, [1, 5, 17])


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_matrices_of_several_forms(dtype: torch.dtype) -> None:
    """As queries and keys of 4 bits beside values of 8."""
    made, four, eight = Maker(dtype).decoder([SPEC] * 3), Maker(dtype), Maker(dtype, "int8")
    blocks = list(made.weights.blocks)
    for index, block in enumerate(blocks[:2]):
        assert isinstance(block.mixer, Attention) and isinstance(block.channel, Dense)
        parts = [four.linear(96, WIDTH, bias=True), Maker(dtype, "offsets").linear(32, WIDTH), eight.linear(32, WIDTH)]
        gates = Stacked([eight.linear(WIDE, WIDTH), four.linear(WIDE, WIDTH)])
        mixer = replace(block.mixer, mix=Stacked(parts[: 2 + index] + [four.linear(32, WIDTH)] * (1 - index)))
        blocks[index] = replace(block, mixer=mixer, channel=replace(block.channel, gate_up=gates))
    decoder = Decoder(made.spec, replace(made.weights, blocks=tuple(blocks)))
    assert stacked(decoder) == [(0, 3)]
    same(decoder, 30, [1, 2, 5, 17])


def test_norms_that_are_not_there() -> None:
    made = Maker(BF16).decoder([SPEC] * 2, after=True).weights
    blocks = tuple(replace(block, before_mixer=None, before_channel=None) for block in made.blocks)
    decoder = Decoder(Maker(BF16).decoder([SPEC] * 2).spec, replace(made, blocks=blocks))
    assert stacked(decoder) == [(0, 2)]
    same(decoder, 30, [1, 5])


@pytest.mark.parametrize("length", [10, 150, 333])
def test_rings(length: int) -> None:
    decoder = Maker(BF16).decoder([replace(SPEC, window=50), SPEC])
    same(decoder, length, [1, 9, 16], slack=16, rings=0)
    same(decoder, length, [10], slack=16, rings=0, parents=TREE)
    same(decoder, length, [17], slack=16, rings=0)  # wider than its slack: by steps


WIDER = {
    "plain": ([SPEC] * 2, {}),
    "windows": ([replace(SPEC, window=20), SPEC], {}),
    "rings": ([replace(SPEC, window=50), SPEC], {"rings": 0}),
    "sinks": ([replace(SPEC, sinks=True)] * 2, {}),
    "keys of another layer": ([SPEC, replace(SPEC, source=0)], {}),
}


@pytest.mark.parametrize("stacks", [True, False])
@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("name", list(WIDER))
def test_a_wide_pass_leaves_what_narrow_ones_leave(name: str, dtype: torch.dtype, *, stacks: bool) -> None:
    """Residuals, keys and values of a prompt, bit for bit, however it is cut; blocks in one go or by steps."""
    layers, room = WIDER[name]
    decoder = Maker(dtype).decoder(layers)

    def read(*widths: int) -> tuple[Tensor, list[Tensor]]:
        cache, hidden, start = decoder.new_cache(600, **room), list[Tensor](), 0
        for width in widths:
            made = decoder.run(ids(start + width)[start:], cache, states=(1, 2), last=True)
            assert made.hidden is not None
            hidden.append(made.hidden)
            cache.commit(start := start + width)
        return torch.cat(hidden), [state.ordered(300)[0][:300] for state in cache.states if isinstance(state, KVCache)]

    with nullcontext() if stacks else by_steps():
        want, kept = read(*[50] * 6)
        for widths in ((300,), (7, 293), (128, 1, 171)):
            got, held = read(*widths)
            assert torch.equal(got, want)
            assert all(torch.equal(one, other) for one, other in zip(held, kept, strict=True))


def test_a_ring_forgets() -> None:
    decoder = Maker(BF16).decoder([replace(SPEC, window=50)])
    cache = filled(decoder, 300, slack=16, rings=0)
    decoder.run(ids(16), cache)
    cache.commit(305)
    with pytest.raises(ValueError, match="no state is known"):
        cache.commit(150)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads: int) -> None:
    """Enough work for a parallel region, again and again."""
    decoder = Maker(BF16, width=256, wide=512).decoder([SPEC] * 4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for _ in range(5):
            same(decoder, 260, [1, 2, 16])
            same(decoder, 0, [65, 200])
    finally:
        torch.set_num_threads(before)


def test_blocks_of_other_kinds_between() -> None:
    maker = Maker(BF16)
    made = maker.decoder([SPEC] * 6)
    blocks = list(made.weights.blocks)
    blocks[1] = replace(blocks[1], channel=Ungated(maker.linear(WIDE, WIDTH), maker.linear(WIDTH, WIDE)))
    blocks[2] = replace(blocks[2], scalar=torch.tensor(0.5, dtype=BF16))
    unpacked = Dense(Linear(maker.some(2 * WIDE, WIDTH).to(BF16)), maker.linear(WIDTH, WIDE), "silu")
    blocks[4] = replace(blocks[4], channel=unpacked)
    decoder = Decoder(made.spec, replace(made.weights, blocks=tuple(blocks)))
    assert stacked(decoder) == [(0, 1), (3, 4), (5, 6)]
    same(decoder, 30, [1, 6])
    assert stacked(Decoder(replace(made.spec, parallel=True), made.weights)) == []


@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_the_first_layers_alone(layers: int) -> None:
    decoder = Maker(BF16).decoder([SPEC] * 3)
    cache = filled(decoder, 30)
    got = decoder.early(ids(4), cache, 28, layers)[layers]
    with by_steps():
        assert torch.equal(decoder.early(ids(4), cache, 28, layers)[layers], got)


@pytest.mark.parametrize("exact", [None, 4])
@pytest.mark.parametrize("form", ["int4", "int8", "offsets"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_pass_that_a_draft_has_begun(form: str, layers: int, exact: int | None) -> None:
    """Early steps of one row and a pass from there on leave the bits of a whole pass; its early part would be a wide one."""
    made = Maker(BF16, form)
    plain = made.decoder([SPEC, replace(SPEC, window=50), SPEC, SPEC])
    decoder = Decoder(plain.spec, replace(plain.weights, head=made.linear(VOCAB, WIDTH)))
    info, text = ModelInfo("toy", "toy", VOCAB, WIDTH, 4, "toy"), ids(25).tolist()

    def run(begin: bool) -> list[Tensor]:
        target = TargetModel(decoder, info, 128, exact=exact)
        target.forward(text[:20], last=True, states=(1, 3))
        target.commit(20)
        for step in range(4 if begin else 0):
            target.early(torch.tensor(text[20 + step : 21 + step]), 20 + step, layers)
        result = target.forward(text[20:], states=(1, 3))
        assert result.from_exit == begin and target.width == 0 and result.hidden is not None
        kept = [state.parts[0][:25] for state in target.cache.states if isinstance(state, KVCache)]
        return [result.logits, result.hidden, *kept]

    assert all(torch.equal(one, other) for one, other in zip(run(True), run(False), strict=True))


@pytest.mark.parametrize("window", [0, 50])
def test_still_passes(window: int) -> None:
    """From a row on that a tensor tells, as a line and as a tree."""
    decoder = Maker(BF16).decoder([SPEC, replace(SPEC, window=window)])

    def run(parents: tuple[int, ...] | None) -> list[Tensor]:
        cache = filled(decoder, 100, slack=16, rings=0)
        runner = GraphRunner(decoder, cache, Capture())
        found = []
        for length in (100, 103):
            cache.commit(length)
            result = runner.forward(ids(5).tolist(), parents, (1, 2))
            assert result.hidden is not None
            found += [result.logits.clone(), result.hidden.clone(), runner.early(ids(3), length, 1).clone()]
        return found

    for parents in (None, (-1, 0, 0, -1)):
        got = run(parents)
        with by_steps():
            want = run(parents)
        assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_a_pass_leaves_its_inputs_as_they_are() -> None:
    decoder = Maker(BF16).decoder([SPEC] * 2)
    result = decoder.run(ids(3), decoder.new_cache(100), states=(0, 1))
    assert result.hidden is not None
    assert torch.equal(result.hidden[:, 0], decoder.embed(ids(3)))
    assert not torch.equal(result.hidden[:, 1], result.hidden[:, 0])


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9, 64])
def test_a_first_mixer_that_reads_something_else_than_the_residual(layers: int, rows: int, dtype: torch.dtype) -> None:
    maker = Maker(dtype)
    decoder = maker.decoder([SPEC] * layers)
    blocks = list(decoder.weights.blocks)
    mixer = blocks[0].mixer
    assert isinstance(mixer, Attention)
    blocks[0] = replace(
        blocks[0], mixer=replace(mixer, mix=maker.linear(mixer.mix.features[0], 2 * WIDTH)), before_mixer=None
    )
    made = stack.stack_of(blocks, decoder.weights.tables, torch.empty(0, dtype=dtype))
    assert made is not None
    entry, x = maker.some(rows, 2 * WIDTH).to(dtype), maker.some(rows, WIDTH).to(dtype)
    kept = list[list[Tensor]]()
    found = list[Tensor]()
    for by_stack in (True, False):
        states = [state for state in filled(decoder, 20).states if isinstance(state, KVCache)]
        parents = [-1, *range(-1, rows - 3)][: rows - 1]  # a fork at the root, where there are rows for it
        where = PassLayout(20, rows, decoder.weights.tables, dtype, CPU, tree_of(parents, 20, CPU))
        y = made.through(x, where, states, entry) if by_stack else None
        if y is None:
            y = x
            for block, state in zip(blocks, states, strict=True):
                assert block.before_channel is not None
                mixed = entry if block.before_mixer is None else block.before_mixer(y)
                y = block.mixer(mixed, where, state, y)
                y = block.channel(block.before_channel(y), y)
        found.append(y)
        kept.append([state.parts[0] for state in states])
    assert torch.equal(*found)
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))


def test_blocks_that_c_does_not_run_make_no_stack() -> None:
    decoder = Maker(FP32).decoder([SPEC] * 2)
    like = torch.empty(0)
    blocks = [decoder.weights.blocks[0], replace(decoder.weights.blocks[1], scalar=torch.ones(()))]
    assert stack.stack_of(blocks, decoder.weights.tables, like) is None
    with ops.only("cpu", None):
        assert stack.stack_of(blocks[:1], decoder.weights.tables, like) is None


def test_without_c_blocks_run_by_their_own_steps() -> None:
    decoder = Maker(BF16).decoder([SPEC] * 2)
    with ops.only("cpu", None):
        assert stacked(decoder) == []
        apart = decoder.run(ids(3), decoder.new_cache(100)).logits
    torch.testing.assert_close(decoder.run(ids(3), decoder.new_cache(100)).logits, apart, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_a_library_that_stacks_wrongly_is_found_out(dtype: torch.dtype, fast: Native) -> None:
    assert not stack.failing(fast, dtype)
    with pytest.MonkeyPatch.context() as patch:
        right = fast.stack
        patch.setattr(fast, "stack", lambda *told: right(*told[:-3], 0.5, *told[-2:]))  # the scale of what is added
        assert stack.failing(fast, dtype)
