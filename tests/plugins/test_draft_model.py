"""The draft model: lossless under both rules, coupled under match, told probabilities under rejection, its cache right."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import golden
import pytest
import torch
import toys

from outrider.core.base.errors import DrafterError, ModelError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
from outrider.core.drafting import Fit, ModelInfo
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.drafters.draft_model import DraftModel, ModelDrafter

PROMPT = [5, 9, 13, 9, 5, 9, 13]
SHARP = Settings(temperature=0.8, top_p=0.95)


def rider(seed: int = 0, *, sharp: float = 1.0, capacity: int = 300) -> ModelDrafter:
    """A draft model; seed 0 is the target's own weights, so it is always right."""
    return ModelDrafter(DecoderState(toys.decoder(seed, sharp=sharp), capacity), 48)


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, SHARP], ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_text_is_the_targets(seed: int, settings: Settings) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings)
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(rider(seed)), settings=settings)
    assert got.token_ids == want.token_ids
    if seed == 0:
        assert got.accepted == got.proposed  # the same model with the same noise always agrees


def test_coupled_noise_agrees_more_often_than_greedy_guesses_would() -> None:
    """At least (1 - TV) / (1 + TV) of the guesses agree when both draw with the same noise."""
    near = rider(0, sharp=0.7)  # the target, a little flatter
    report = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(near), settings=toys.SAMPLED, limit=200, tokens=1)
    assert report.accepted / report.proposed > 0.5


@pytest.mark.parametrize("settings", [toys.SAMPLED, SHARP], ids=["sampled", "filtered"])
def test_rejection_with_its_own_weights_accepts_everything(settings: Settings) -> None:
    report = toys.answer(
        ChatCache(toys.target()), PROMPT, toys.guard(rider(0)), settings=settings, rule="rejection", limit=60
    )
    assert report.accepted >= report.proposed - 1  # p = q up to rounding


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_law_of_two_tokens(rule: str) -> None:
    """Chi-square of the joint law of two tokens over 2,000 seeds, against the exact one."""
    vocab, n = 5, 2000
    settings = Settings(temperature=1.0, top_p=1.0)
    model = toys.target(vocab=vocab, sharp=0.4)
    draft = ModelDrafter(DecoderState(toys.decoder(3, vocab=vocab, sharp=0.4), 300), vocab)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        report = toys.answer(
            ChatCache(model), [1, 2], toys.guard(draft), settings=settings, seed=seed, rule=rule, limit=3, tokens=2
        )
        counts[tuple(report.token_ids[:2])] += 1
    cache = toys.target(vocab=vocab, sharp=0.4)
    first = cache.forward([1, 2], last=True).logits[0].double().softmax(-1)
    chi = 0.0
    for a in range(vocab):
        second = cache.forward([1, 2, a], last=True).logits[0].double().softmax(-1)
        for b in range(vocab):
            expected = n * float(first[a] * second[b])
            chi += (counts[a, b] - expected) ** 2 / expected
    freedom = vocab * vocab - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_edits_and_new_turns_reuse_its_cache() -> None:
    draft = rider(1)
    guarded, cache = toys.guard(draft), ChatCache(toys.target())
    first = toys.answer(cache, PROMPT, guarded)
    longer = [*PROMPT, *first.token_ids, 4, 4]
    passes: list[int] = []
    run = draft._state.step
    draft._state.step = lambda ids: passes.append(len(ids)) or run(ids)  # type: ignore[method-assign,func-returns-value]
    toys.answer(cache, longer, guarded)
    assert max(passes) < 12  # not the whole conversation again
    edited = [*PROMPT[:4], 1, 2, 3]
    got = toys.answer(cache, edited, guarded)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), edited).token_ids
    assert draft._state._seen[: len(edited)] == edited


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5", "nemotron_h"])
def test_a_model_whose_states_cannot_be_cut_goes_on_from_the_last_true_token(family: str) -> None:
    """Its drafts are mostly wrong, so it is thrown back every round, and must not begin the conversation anew for that."""
    draft = ModelDrafter(DecoderState(golden.decoder(golden.FOLDER / family, torch.float32, 128), 128), 256)
    target = golden.Golden("llama")
    passes: list[int] = []
    run = draft._state.step
    draft._state.step = lambda ids: passes.append(len(ids)) or run(ids)  # type: ignore[method-assign,func-returns-value]
    told = toys.answer(target.new_cache(), target.prompt, toys.guard(draft), limit=len(target.text))
    assert told.token_ids == target.text
    assert told.accepted < told.proposed
    assert passes[0] == len(target.prompt) + 1
    assert max(passes[1:]) <= 2


def test_a_fork_shares_weights_and_nothing_else() -> None:
    draft = rider(1)
    toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(draft))
    copy = draft.fork()
    assert copy._state.decoder is draft._state.decoder
    assert copy._state._seen == []


def test_at_the_brim_it_proposes_less() -> None:
    small = len(PROMPT) + 9
    want = toys.answer(ChatCache(toys.target(context=small)), PROMPT, limit=None)
    got = toys.answer(ChatCache(toys.target(context=small)), PROMPT, toys.guard(rider(0, capacity=small)), limit=None)
    assert got.token_ids == want.token_ids


def test_it_waits_for_weights() -> None:
    match = DraftModel().matches(ModelInfo("m", "llama", 5, 5, 5, "x"))
    assert match.fit == Fit.FAMILY
    assert not match.ready
    assert "--drafter-weights" in match.reason


class TestOnDisk:
    """Through the engine, from checkpoints in their published form."""

    def ask(self, engine: Engine, model: Path, drafter: DrafterChoice, temperature: float = 0.0):
        request = Generate(
            id=1,
            model=ModelChoice(model=str(model), dtype="fp32", device="cpu"),
            messages=[Message("user", "hello there")],
            sampling=Sampling(temperature=temperature, max_tokens=24, seed=4),
            drafter=drafter,
        )
        return engine.generate(request, lambda event: None, toys.Still())

    def test_same_text_and_a_draft_of_fewer_layers(self, tmp_path: Path) -> None:
        big = toys.checkpoint(tmp_path / "big", seed=0, layers=3)
        small = toys.checkpoint(tmp_path / "small", seed=5, layers=1)
        engine = Engine()
        for temperature in (0.0, 0.9):
            plain = self.ask(engine, big, DrafterChoice(name="none"), temperature)
            drafted = self.ask(
                engine, big, DrafterChoice(name="draft_model", weights=str(small), tokens=3), temperature
            )
            assert drafted.token_ids == plain.token_ids
            assert drafted.proposed > 0

    def test_a_tokenizer_with_little_in_common_is_refused_by_name(self, tmp_path: Path) -> None:
        big = toys.checkpoint(tmp_path / "big")
        other = toys.checkpoint(tmp_path / "other", extra=[f"<|more{i}|>" for i in range(300)])
        with pytest.raises(DrafterError, match="other has another tokenizer than big, 46% of its tokens are shared"):
            self.ask(Engine(), big, DrafterChoice(name="draft_model", weights=str(other)))

    def test_missing_weights_are_told(self, tmp_path: Path) -> None:
        big = toys.checkpoint(tmp_path / "big")
        with pytest.raises(DrafterError, match="needs a smaller model"):
            self.ask(Engine(), big, DrafterChoice(name="draft_model"))
        with pytest.raises(ModelError):
            self.ask(Engine(), big, DrafterChoice(name="draft_model", weights=str(tmp_path / "nothing")))

    def test_a_padded_vocabulary_drafts_shared_ids_only(self) -> None:
        draft = ModelDrafter(DecoderState(toys.decoder(1, vocab=40), 300), 48)
        row = draft._in_target_ids(torch.zeros(40))
        assert row.shape == (48,)
        assert bool(row[40:].isinf().all())
        report = toys.answer(ChatCache(toys.target()), [1, 2, 3], toys.guard(draft))
        assert len(report.token_ids) == 40
