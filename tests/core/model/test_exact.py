"""Exact mode: every decode row has the same bits whoever drafts, whatever is accepted, and however the cache was filled."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import golden
import pytest
import torch
import toys
from replay import Replay
from torch import Tensor

from outrider.core.decode.round_result import RoundResult
from outrider.core.drafting import Drafter
from outrider.core.formats.checkpoint import describe
from outrider.core.model import exact
from outrider.core.model.blocks.mlp import Experts
from outrider.core.model.cache import states
from outrider.core.model.cache.layout import PassLayout, padded
from outrider.core.model.capture import Capture
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels import ops
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.sampling.sample import Sampler
from outrider.core.session import answer, chat_cache
from outrider.core.session.chat_cache import ChatCache

KINDS = {
    "full": "qwen3",
    "sliding": "gemma3",
    "sinks": "gpt_oss",  # and experts
    "latent": "deepseek_v3",  # and experts
    "delta": "qwen3_5",
    "mamba": "nemotron_h",
    "conv": "lfm2",
    "experts": "qwen3_moe",
}
MORE = ("sinks", "mamba", "conv")  # of which the others have something
MANY = [pytest.param(kind, marks=pytest.mark.thorough) if kind in MORE else kind for kind in KINDS]
CHUNK = 16  # tokens of a prefill pass here
TOKENS = 20

Rows = dict[int, Tensor]  # logits [V] by the position that they decide


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (answer, chat_cache):
        monkeypatch.setattr(module, "CHUNK", CHUNK)


def without_c(torch_only: bool) -> AbstractContextManager[object]:
    return ops.only("cpu", None) if torch_only else nullcontext()


def prompt_of(kind: str) -> list[int]:
    return golden.tensors(KINDS[kind])["greedy.prompt_ids"][0].tolist()


def target_of(kind: str, dtype: torch.dtype, room: int, tokens: int | None = 7, capture: Capture | None = None):
    """A golden target in exact mode, with so much room behind its prompt."""
    context = len(prompt_of(kind)) + room
    folder = golden.FOLDER / KINDS[kind]
    decoder = golden.decoder(folder, dtype, context + MAX_DRAFT_ROWS)
    return TargetModel(decoder, describe(folder), context, capture, exact=tokens)


def tight(target: TargetModel) -> TargetModel:
    """With rings on sliding layers and little slack."""
    target.cache = target.decoder.new_cache(target.context + MAX_DRAFT_ROWS, slack=8, rings=0)
    return target


def drafters(truth: list[int], start: int, vocab: int) -> dict[str, Callable[[], Drafter]]:
    """Drafts of all lengths, accepted whole, in part and not at all."""

    def knows(right: int) -> toys.Knows:
        return toys.Knows(start, truth, right, vocab)

    return {
        "right": lambda: knows(99),
        "right for two": lambda: knows(2),
        "wrong": lambda: knows(0),
        "anything": lambda: toys.Anything(vocab),
        "tree": lambda: toys.Bushy(knows(3)),
    }


def answered(cache: ChatCache, ids: list[int], drafter: Drafter | None, **more: Any) -> tuple[list[int], Rows]:
    """The text of an answer, and the rows behind it."""
    rows: Rows = {}

    def watch(done: RoundResult, sampler: Sampler) -> None:
        first = len(cache.tokens) - len(done.tokens)
        rows.update({first + index: done.logits[row].clone() for index, row in enumerate(done.rows)})

    guarded = None if drafter is None else toys.guard(drafter)
    report = toys.answer(cache, ids, guarded, watch=watch, **more)
    assert guarded is None or not guarded.failed
    return report.token_ids, rows


def assert_same(got: tuple[list[int], Rows], want: tuple[list[int], Rows], what: str) -> None:
    assert got[0] == want[0], what
    assert len(got[1]) >= len(want[0])
    for at in set(got[1]) & set(want[1]):
        assert torch.equal(got[1][at], want[1][at]), f"{what}: the row of position {at}"


def differs(got: tuple[list[int], Rows], want: tuple[list[int], Rows]) -> bool:
    return any(not torch.equal(got[1][at], want[1][at]) for at in set(got[1]) & set(want[1]))


@pytest.mark.parametrize("torch_only", [False, True], ids=["c", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", MANY)
def test_bits_of_every_kind(kind: str, dtype: torch.dtype, torch_only: bool) -> None:
    """To the end of the context, each answer behind what is left of the one before."""
    with without_c(torch_only):
        target, prompt = target_of(kind, dtype, TOKENS), prompt_of(kind)
        plain = answered(ChatCache(target), prompt, None, limit=None)
        assert len(plain[0]) == TOKENS
        target.rewind(0)
        cache = ChatCache(target)
        for length, (name, make) in enumerate(drafters(plain[0], len(prompt), target.vocab).items(), 3):
            assert_same(answered(cache, prompt, make(), limit=None, tokens=length), plain, name)


@pytest.mark.parametrize("kind", ["sliding", "delta"])
def test_rings_and_states_behind_a_rewind(kind: str) -> None:
    """A second turn finds the first one's chunks: it is as if it came alone, and drafted or not."""
    with without_c(True):
        prompt = prompt_of(kind) * 3
        target = tight(target_of(kind, torch.float32, 4 * len(prompt) + TOKENS))
        cache = ChatCache(target)
        first = answered(cache, prompt, None, limit=TOKENS)
        assert cache.whole == len(prompt) // CHUNK * CHUNK
        turn = [*prompt, *first[0], *prompt[:9]]
        reused: list[int] = []
        guess = toys.Knows(len(turn), [3, 5, 8], vocab=target.vocab)
        second = answered(cache, turn, guess, limit=TOKENS)
        assert cache.whole == len(turn) // CHUNK * CHUNK
        assert_same(answered(cache, turn[: len(prompt)], None, limit=TOKENS), first, "back to the first turn")
        cache.reuse([])
        reused.append(target.length)
        alone = answered(cache, turn, None, limit=TOKENS)
        assert reused == [0]
        assert_same(second, alone, "the second turn")


def test_chunks_begin_at_fixed_places_whatever_the_next_turn_shares() -> None:
    with without_c(True):
        prompt = prompt_of("delta") * 2
        target = target_of("delta", torch.float32, len(prompt) + TOKENS)
        first = answered(ChatCache(target), prompt, None, limit=6)
        for stable in (3, len(prompt) - 5):
            target.rewind(0)
            assert_same(answered(ChatCache(target), prompt, None, limit=6, stable=stable), first, f"{stable} stable")


def test_reuse_keeps_whole_chunks_alone() -> None:
    toy = toys.target()
    target = TargetModel(toy.decoder, toy.info, toy.context, exact=7)
    cache = ChatCache(target)
    prompt = list(range(2, 2 + 2 * CHUNK + 5))
    toys.answer(cache, prompt, limit=20)
    assert cache.whole == 2 * CHUNK
    assert cache.reuse([*prompt, 7, 7]) == 2 * CHUNK
    assert cache.reuse([*prompt[: 2 * CHUNK], 7]) == 2 * CHUNK
    assert cache.reuse(prompt[: 2 * CHUNK]) == CHUNK  # one token at least is left to prefill
    assert cache.reuse([*prompt[: CHUNK - 1], 7, 7]) == 0 == target.length


def test_eos_within_a_draft() -> None:
    toy = toys.target()
    target = TargetModel(toy.decoder, toy.info, toy.context, exact=7)
    prompt = [5, 9, 13, 9, 5, 9, 13]
    plain = answered(ChatCache(target), prompt, None, limit=30)
    end = plain[0][8]
    cut = plain[0].index(end)
    target.rewind(0)
    cache = ChatCache(target)
    ended = answered(cache, prompt, toys.Knows(len(prompt), plain[0]), eos=[end], tokens=7)
    assert ended[0] == plain[0][:cut]
    for at in range(len(prompt), len(prompt) + cut):
        assert torch.equal(ended[1][at], plain[1][at])
    turn = [*prompt, *ended[0], 3]
    second = answered(cache, turn, None, limit=9)
    target.rewind(0)
    assert_same(answered(ChatCache(target), turn, toys.Anything(), limit=9), second, "the turn behind")


@pytest.mark.parametrize(
    "kind", ["full", *(pytest.param(kind, marks=pytest.mark.thorough) for kind in ("latent", "delta"))]
)
def test_the_lane_has_one_width(kind: str) -> None:
    """Passes of a device, recorded once: all have one shape, whoever drafts."""
    target, prompt = target_of(kind, torch.float32, 60, capture=Replay()), prompt_of(kind)
    assert target.width == 8
    plain = answered(ChatCache(target), prompt, None, limit=12)
    many = drafters(plain[0], len(prompt), target.vocab) | {"device": lambda: toys.Bigram(target.vocab, device=True)}
    for name, make in ((name, many[name]) for name in ("right for two", "tree", "device")):
        target.rewind(0)
        assert_same(answered(ChatCache(target), prompt, make(), tokens=5, limit=12), plain, name)
    assert target.graph_runner is not None
    assert {key[2:4] for key in target.graph_runner._passes} == {(8, padded(target.context + MAX_DRAFT_ROWS))}


@pytest.mark.parametrize("exact", [None, 7])
@pytest.mark.parametrize("kind", ["full", "experts"])
def test_bits_that_depend_on_the_number_of_rows_are_seen(
    kind: str, exact: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bits of logits are made to depend on it: seen without exact mode, where all passes have one width not."""
    head = Decoder.head
    monkeypatch.setattr(Decoder, "head", lambda self, rows: head(self, rows) * (1 + 2**-23 * (rows.shape[0] % 7)))
    with without_c(True):
        target, prompt = target_of(kind, torch.float32, TOKENS, exact), prompt_of(kind)
        plain = answered(ChatCache(target), prompt, None, limit=None)
        drafted = answered(ChatCache(target), prompt, toys.Knows(len(prompt), plain[0]), limit=None)
        assert differs(drafted, plain) is (exact is None)


def test_a_fixed_pass_reads_the_whole_buffer_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = toys.target(context=150)
    shapes: set[tuple[int, int]] = set()
    take = states.KVCache.take

    def spying(self: states.KVCache, where: PassLayout, *new: Tensor) -> list[Tensor]:
        seen = take(self, where, *new)
        shapes.add((new[0].shape[0], seen[0].shape[0]))
        return seen

    monkeypatch.setattr(states.KVCache, "take", spying)
    with without_c(True):
        target = TargetModel(toy.decoder, toy.info, toy.context, exact=3)
        for at in (0, 1, 60, 149):
            target.cache.length = at
            assert target.forward([1, 2]).logits.shape[0] == 2
    assert shapes == {(8, 256)}


def test_experts_that_nobody_counts_are_not_run() -> None:
    """In a pass of one token the others only fill up the width."""
    target = target_of("experts", torch.float32, TOKENS)
    block = next(block for block in target.decoder.weights.blocks if isinstance(block.channel, Experts))
    mixture = block.channel
    assert isinstance(mixture, Experts)
    called: list[int] = []

    class Counted:
        def __init__(self, number: int, expert) -> None:
            self.number, self.expert = number, expert

        def __call__(self, x: Tensor) -> Tensor:
            called.append(self.number)
            return self.expert(x)

    mixture.experts = [Counted(number, expert) for number, expert in enumerate(mixture.experts)]  # type: ignore[misc]
    x = torch.randn(8, target.decoder.spec.width, generator=torch.Generator().manual_seed(0))
    whole = mixture(x)
    called.clear()
    with without_c(True):
        first = mixture(x, real=1)[0]
    assert sorted(called) == sorted(set(mixture.router(x)[1][0].tolist()))
    torch.testing.assert_close(first, whole[0], atol=1e-5, rtol=1e-4)


def test_no_padding_where_rows_stand_apart() -> None:
    """Steps in C need none; products of torch, latents, states and experts do."""

    def width_of(decoder: Decoder, info) -> int:
        return TargetModel(decoder, info, 64, exact=7).width

    toy = toys.target()
    assert width_of(toy.decoder, toy.info) == 8
    with without_c(True):
        assert width_of(toy.decoder, toy.info) == 8
    assert [exact.width(tokens) for tokens in (1, 7, 8, 15, 63)] == [8, 8, 16, 16, 64]
    for name in ("deepseek_v3", "qwen3_5", "qwen3_moe", "gemma4_e"):
        folder = golden.FOLDER / name
        assert not exact.apart(golden.decoder(folder, torch.bfloat16, 64 + MAX_DRAFT_ROWS)), name


def test_drafts_fit_into_the_width() -> None:
    toy = toys.target()
    target = TargetModel(toy.decoder, toy.info, toy.context, exact=7)
    assert target.most == 8 and not target.trees
    truth = toys.answer(ChatCache(toys.target()), [5, 9, 13], limit=30).token_ids
    report = toys.answer(ChatCache(target), [5, 9, 13], toys.guard(toys.Knows(3, truth)), limit=30, tokens=20)
    assert report.token_ids == truth and report.accepted == 29 - report.passes
    assert report.proposed <= 7 * report.passes
    with pytest.raises(ValueError, match="9 rows where a pass has 8"):
        target.forward([1] * 9)
