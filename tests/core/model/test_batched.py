"""One pass over several conversations, on every kind of target: what each would get alone, and answers that are their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import crowd
import golden
import kinds
import pytest
import torch
import toys
from golden import NAMES, RECURRENT, SLIDING, Golden

from outrider.core.base.protocol import DrafterChoice, Event, Generate, ModelChoice, Notice, Sampling
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.batched import Batched, SequencePass, state_bytes
from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.cache import layout
from outrider.core.model.cache.states import MAX_DRAFT_ROWS, Cache, KVCache, Recurrent
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels import native
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import MAX_DECODE_ROWS
from outrider.core.model.kernels.packed_linear import Packed
from outrider.core.model.load import load_decoder
from outrider.core.session.engine import Engine

QUICK = {"llama", "qwen3_moe", "qwen3_5", "gemma3", "gemma4_e", "gpt_oss", "deepseek_v3", "lfm2", "nemotron_h"}
CASES = [*NAMES, *(f"{name}:tight" for name in sorted({*SLIDING, *RECURRENT}))]
PARAMS = [pytest.param(case, marks=() if case in QUICK else pytest.mark.thorough) for case in CASES]
BACK_TO_BACK = 64  # tokens of a conversation


@pytest.fixture(scope="module", params=PARAMS)
def told(request: pytest.FixtureRequest) -> Iterator[Golden]:
    name, _, tight = request.param.partition(":")
    with pytest.MonkeyPatch.context() as patch:
        if tight:  # rings of 24 rows for a window of 16
            patch.setattr(layout, "SPAN", 8)
        yield Golden(name, tight=bool(tight))


def caches(told: Golden, count: int) -> list[Cache]:
    return [told.new_cache().target.cache for _ in range(count)]


def rounds(
    decoder: Decoder, apart: list[Cache], alone: list[Cache], luck: random.Random, most: int, stop: int = 40
) -> Iterator[tuple]:
    """Ragged passes of which a part is committed: what each conversation got, and what it gets alone."""
    batched = Batched(decoder)
    while max(cache.length for cache in apart) < stop:
        shares = []
        for number, cache in enumerate(apart):
            ids = [luck.randrange(decoder.spec.vocab) for _ in range(luck.randint(1, most))]
            bushy = number % 2 and cache.trees and len(ids) > 2
            parents = [luck.randint(-1, node - 1) for node in range(len(ids) - 1)] if bushy else None
            shares.append(SequencePass(ids, cache, parents, (0, 2) if number else ()))
        for share, other, got in zip(shares, alone, batched.together(shares), strict=True):
            device = torch.device("cpu")
            tree = None if share.parents is None else layout.tree_of(share.parents, other.length, device)
            yield got, decoder.run(torch.tensor(share.ids), other, states=share.states, tree=tree)
            path = [0]
            if share.parents is None:
                path = list(range(luck.randint(1, len(share.ids))))
            elif 0 in share.parents:
                path = [0, 1, 2 + share.parents[1:].index(0)] if 0 in share.parents[1:] else [0, 1]
            for cache in (share.cache, other):
                cache.commit(cache.length + len(path), path)


def test_a_pass_gives_each_what_it_gets_alone(told: Golden) -> None:
    """Chains and trees of different lengths at different positions, partly taken back; what is left is the same too."""
    apart, alone = caches(told, 4), caches(told, 4)
    for got, want in rounds(told.decoder, apart, alone, random.Random(1), 6):
        torch.testing.assert_close(got.logits, want.logits, atol=1e-3, rtol=1e-3)
        assert (got.hidden is None) == (want.hidden is None)
        if got.hidden is not None and want.hidden is not None:
            torch.testing.assert_close(got.hidden, want.hidden, atol=1e-3, rtol=1e-3)
    for cache, other in zip(apart, alone, strict=True):
        assert cache.length == other.length > 0
        for mine, theirs in zip(cache.states, other.states, strict=True):
            if isinstance(mine, KVCache) and isinstance(theirs, KVCache) and mine.cut:
                for part, same in zip(mine.parts, theirs.parts, strict=True):
                    torch.testing.assert_close(part[: cache.length], same[: cache.length], atol=1e-3, rtol=1e-3)
            elif isinstance(mine, Recurrent) and isinstance(theirs, Recurrent):
                for part, same in zip(mine.now, theirs.now, strict=True):
                    torch.testing.assert_close(part, same, atol=1e-3, rtol=1e-3)


def test_answers_made_together_are_the_reference(told: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts right throughout, never, and now and then, beside another prompt: the greedy continuation of each."""
    other = [*told.prompt[:9], 3, 1, 4]
    want = toys.answer(told.new_cache(), other, limit=len(told.text)).token_ids
    prompts = [told.prompt, told.prompt, other, told.prompt, told.prompt]
    drafters = [toys.guard(toys.Knows(len(told.prompt), told.text, right, vocab=256)) for right in (99, 0, 1, 3)]
    drafters.insert(2, toys.guard(toys.Anything(256)))
    target = told.new_cache().target
    new = target.decoder.new_cache
    if told._tight:
        monkeypatch.setattr(target.decoder, "new_cache", lambda capacity: new(capacity, slack=8, rings=0))
    orders = [crowd.order(number, ids, limit=len(told.text), tokens=5) for number, ids in enumerate(prompts)]
    got = crowd.together(target, orders, drafters, at_once=3)
    assert [report.token_ids for report in got] == [told.text, told.text, want, told.text, told.text]
    assert got[0].accepted == got[0].proposed > 0
    assert got[1].accepted == 0


def loaded(name: str, quantize: int) -> Decoder:
    checkpoint = open_checkpoint(golden.FOLDER / name)
    try:
        return load_decoder(
            checkpoint, WeightFormat(torch.float32, golden.CPU, quantize), BACK_TO_BACK + MAX_DRAFT_ROWS
        )
    finally:
        checkpoint.close()


def test_codes_give_the_same_bits_whoever_shares_the_pass() -> None:
    """The products in C and the fused steps promise that; so do passes that are too wide for one."""
    if isinstance(native.find(), str):
        pytest.skip(str(native.find()))
    decoder = loaded("llama", 8)
    channel = decoder.weights.blocks[0].channel
    assert isinstance(channel, Dense) and isinstance(channel.down, Packed)
    apart, alone = ([decoder.new_cache(128) for _ in range(24)] for _ in range(2))
    rows = []
    for got, want in rounds(decoder, apart, alone, random.Random(2), 5, stop=8):
        assert torch.equal(got.logits, want.logits)
        rows.append(got.logits.shape[0])
    assert sum(rows[: len(apart)]) > MAX_DECODE_ROWS


def test_one_call_attends_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the fused steps no conversation is gone through by itself, and rings and full layers lie side by side."""
    if isinstance(native.find(), str):
        pytest.skip(str(native.find()))
    decoder = golden.decoder(golden.FOLDER / "gemma3", torch.float32, BACK_TO_BACK + MAX_DRAFT_ROWS)
    monkeypatch.setattr(layout, "SPAN", 8)
    crowded = [decoder.new_cache(capacity, slack=8, rings=2) for capacity in (48, 128, 44, 128)]
    alone = [decoder.new_cache(128, slack=8, rings=99) for _ in crowded]
    kinds_of_state = {tuple(type(state).__name__ for state in cache.states) for cache in crowded}
    assert len(kinds_of_state) == 2
    batched = Batched(decoder)
    for step in range(20):  # beyond the rings' rows
        shares = [
            SequencePass([7 + step, 9, 11][: 1 + (number + step) % 3], cache) for number, cache in enumerate(crowded)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(Attention, "along")
            passes = batched.together(shares)
        for share, other, got in zip(shares, alone, passes, strict=True):
            want = decoder.run(torch.tensor(share.ids), other)
            torch.testing.assert_close(got.logits, want.logits, atol=1e-3, rtol=1e-3)
            for cache in (share.cache, other):
                cache.commit(cache.length + len(share.ids))


@pytest.mark.parametrize("name", [case.values[0] for case in PARAMS if case.values[0] in QUICK])
def test_states_are_counted_before_they_are_made(name: str) -> None:
    decoder = golden.decoder(golden.FOLDER / name, torch.float32, BACK_TO_BACK + MAX_DRAFT_ROWS)
    assert state_bytes(decoder, BACK_TO_BACK) == decoder.new_cache(BACK_TO_BACK + MAX_DRAFT_ROWS).nbytes > 0


def test_a_full_cache_is_told() -> None:
    decoder = toys.decoder()
    cache = decoder.new_cache(3)
    with pytest.raises(ValueError, match="4 tokens at 0"):
        Batched(decoder).together([SequencePass([1, 2, 3, 4], cache)])


METHODS = [(kind, method) for kind in kinds.KINDS for method in kinds.METHODS if (method, kind) not in kinds.REFUSED]
RIDES = [*METHODS, *((kind, "composite") for kind in kinds.KINDS)]
SOON = {("full", "composite"), ("full", "eagle"), ("states", "medusa")}


@pytest.mark.parametrize(
    ("kind", "method"), [pytest.param(*ride, marks=() if ride in SOON else pytest.mark.thorough) for ride in RIDES]
)
def test_every_method_rides_along(kind: str, method: str, tmp_path: Path) -> None:
    """Forks on a loaded target: each follows its own conversation, with states, early exits and rows that are its own."""
    folder = kinds.dressed(kind, tmp_path / "target")
    made = "eagle" if method == "composite" else method
    found = str(folder) if method == "draft_model" else kinds.weights(made, kind, tmp_path / "weights")
    model = ModelChoice(model=str(folder), dtype="fp32", device="cpu", context=256)
    prompts = ["one two three one two three ", "to be or not to be, ", "aaaa", "one two "]
    few = dict.fromkeys(range(32, 48), 60.0)  # drafters that have learnt nothing are right by chance
    plain, choice = DrafterChoice(name="none"), DrafterChoice(name=method, weights=found, tokens=4)

    def asked(drafter: DrafterChoice) -> list[Generate]:
        return [
            Generate(
                number,
                model,
                prompt=text,
                sampling=Sampling(temperature=0.0, max_tokens=24 + number, logit_bias=few),
                drafter=drafter,
            )
            for number, text in enumerate(prompts)
        ]

    engine, events = Engine(), list[Event]()
    try:
        want = [engine.generate(one, _quiet, toys.Still()).token_ids for one in asked(plain)]
        got = engine.generate_many(asked(choice), events.append, toys.Still(), 3)
        assert not [event for event in events if isinstance(event, Notice)]
        assert [report.token_ids for report in got] == want
        assert sum(report.proposed for report in got) > 0
        if method == "draft_model":
            assert sum(report.accepted for report in got) == sum(report.proposed for report in got)
        assert engine.generate(asked(choice)[0], _quiet, toys.Still()).token_ids == want[0]
    finally:
        engine.unload()


def _quiet(event: object) -> None:
    """Nobody listens."""
