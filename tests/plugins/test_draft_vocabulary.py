"""A draft model with another tokenizer: the shared tokens, the translation, and text that stays the target's."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import toys
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models

from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
from outrider.core.drafting import Fit, ModelInfo
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.formats.checkpoint import describe
from outrider.core.model.decoder import Decoder
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.core.text.files import TokenizerFiles
from outrider.core.text.tokenizer import Tokenizer
from outrider.drafters.draft_model import DraftModel, ModelDrafter
from outrider.drafters.draft_model.vocabulary import Bridge, Key, Vocabulary

PROMPT = [5, 9, 13, 9, 5, 9, 13]
SHARP = Settings(temperature=0.8, top_p=0.95)


def words(*tokens: str, end: int | None = None) -> Vocabulary:
    """Ordinary tokens; `<…>` is a control token."""
    return Vocabulary([(token.startswith("<"), token.encode()) for token in tokens], end)


def some(luck: random.Random, size: int) -> Vocabulary:
    keys: list[Key] = [(False, bytes([97 + i])) for i in range(4)]
    keys += [(luck.random() < 0.1, bytes(luck.choices(b"abcd", k=luck.randrange(0, 5)))) for _ in range(size)]
    luck.shuffle(keys)
    return Vocabulary(keys)


# ---------------------------------------------------------------------------------------------------- vocabularies


@pytest.mark.parametrize("seed", range(5))
def test_shared_tokens_are_those_that_stand_for_the_same(seed: int) -> None:
    luck = random.Random(seed)
    one, two = some(luck, 40), some(luck, 60)

    def last(keys: list[Key], wanted: Key) -> int:
        return max(i for i, key in enumerate(keys) if key == wanted)

    want = {
        last(one.keys, key): last(two.keys, other) for key in one.keys for other in two.keys if key == other and key[1]
    }
    assert one.shared(two) == want
    assert two.shared(one) == {theirs: ours for ours, theirs in want.items()}


@pytest.mark.parametrize("seed", range(5))
def test_text_is_translated_whole_and_token_by_token(seed: int) -> None:
    luck = random.Random(seed)
    target, draft = some(luck, 40), some(luck, 60)
    bridge = Bridge(target, draft, 44)
    shared = target.shared(draft)
    text = [luck.randrange(44) for _ in range(100)]
    ids = bridge.draft_ids(text)
    assert b"".join(draft.keys[i][1] for i in ids) == b"".join(target.keys[t][1] for t in text)
    assert ids == [i for t in text for i in bridge.draft_ids([t])]
    for token in text:
        if token in shared:
            assert bridge.draft_ids([token]) == [shared[token]]


def test_what_is_not_shared_is_spelt_by_the_longest_tokens() -> None:
    bridge = Bridge(words("stormy", "st", "<end>", "é"), words("s", "st", "or", "my", "o", "<stormy>"), 8)
    assert bridge.draft_ids([0]) == [1, 2, 3]
    assert bridge.draft_ids([1]) == [1]
    assert bridge.draft_ids([2, 3, 7]) == []  # nothing spells them, and 7 is padding
    control = Vocabulary([(True, b"ab"), (False, b"a"), (False, b"b")])
    assert Bridge(words("ab"), control, 1).draft_ids([0]) == [1, 2]


def test_a_control_token_is_no_word_and_the_end_is_shared_under_any_name() -> None:
    one = Vocabulary([(True, b"x"), (False, b"y"), (True, b"<end>")], end=2)
    two = Vocabulary([(False, b"x"), (False, b"y"), (True, b"</s>")], end=2)
    assert one.shared(two) == {1: 1, 2: 2}
    assert words("a", "<end>", end=1).shared(words("<end>", "a", "</s>", end=2)) == {0: 1, 1: 0}


def test_marks_of_spaces_do_not_matter() -> None:
    byte_level = Inner(models.BPE({"Ġthe": 0, "the": 1, "Ã": 2, "©": 3, "Ã©": 4}, []))
    byte_level.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    pieces = Inner(models.BPE({"<0xC3>": 0, "▁the": 1, "é": 2, "the": 3}, []))
    pieces.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    one, two = (
        Vocabulary.of(Tokenizer(TokenizerFiles(name, inner.to_str().encode())))
        for name, inner in (("one", byte_level), ("two", pieces))
    )
    assert one.shared(two) == {0: 1, 1: 3, 2: 0, 4: 2}


def test_a_word_that_looks_like_a_control_token_is_a_word() -> None:
    inner = Inner(models.BPE({"<s>": 0, "a": 1}, []))
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    word = Vocabulary.of(Tokenizer(TokenizerFiles("word", inner.to_str().encode())))
    inner.add_special_tokens(["<s>"])
    control = Vocabulary.of(Tokenizer(TokenizerFiles("control", inner.to_str().encode())))
    assert word.shared(control) == {1: 1}


def test_a_row_holds_shared_tokens_only() -> None:
    bridge = Bridge(words("a", "b", "c"), words("x", "c", "a"), 5)
    row = bridge.target_row(torch.tensor([9.0, 1.0, 2.0]))
    assert row.tolist() == [2.0, -torch.inf, 1.0, -torch.inf, -torch.inf]


# ---------------------------------------------------------------------------------------------------- drafting


def letters(order: Sequence[int]) -> Vocabulary:
    return Vocabulary([(False, b"<%d>" % i) for i in order])


def shuffled(seed: int, order: Sequence[int]) -> Decoder:
    """A toy whose id i means what `order[i]` means to the others."""
    decoder = toys.decoder(seed)
    places = torch.tensor(order)
    for weight in (decoder.weights.embedding.weight, decoder.weights.head.weight):
        assert isinstance(weight, torch.Tensor)
        weight.copy_(weight[places])
    return decoder


ORDER = random.Random(4).sample(range(48), 48)
SPELT = Vocabulary([(False, b"<%d>" % i) for i in range(0, 48, 2)] + [(False, bytes([i])) for i in b"<>0123456789"])
"""Half of the toys' tokens; the others are spelt by their signs."""


def rider(seed: int = 0, capacity: int = 300) -> ModelDrafter:
    """The same ids in another order; seed 0 has the target's own weights."""
    return ModelDrafter(
        DecoderState(shuffled(seed, ORDER), capacity), 48, Bridge(letters(range(48)), letters(ORDER), 48)
    )


def half(capacity: int = 600) -> ModelDrafter:
    return ModelDrafter(
        DecoderState(toys.decoder(3, vocab=36, context=600), capacity), 48, Bridge(letters(range(48)), SPELT, 48)
    )


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, SHARP], ids=["greedy", "sampled", "filtered"])
def test_the_targets_own_weights_under_other_ids_are_always_right(settings: Settings, rule: str) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, rule=rule)
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(rider()), settings=settings, rule=rule)
    assert got.accepted >= got.proposed - 1 > 10  # under rejection p = q up to rounding
    if rule == "match":
        assert got.token_ids == want.token_ids


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, SHARP], ids=["greedy", "sampled", "filtered"])
def test_with_half_of_the_tokens_the_text_is_the_targets(settings: Settings) -> None:
    notes: list[str] = []
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings)
    drafter = half()
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(drafter, notes=notes), settings=settings)
    assert got.token_ids == want.token_ids
    assert got.proposed > 0
    assert notes == []
    assert drafter._bridge is not None
    read = drafter._bridge.draft_ids([*PROMPT, *got.token_ids])[:-20]  # the last ones may not have been read yet
    assert drafter._state._seen[: len(read)] == read


def test_the_law_of_two_tokens_under_rejection() -> None:
    """Chi-square of the joint law of two tokens over 250 seeds, against the exact one; 3 of 5 tokens are shared."""
    vocab, n = 5, 250
    settings = Settings(temperature=1.0, top_p=1.0)
    model = toys.target(vocab=vocab, sharp=0.4)
    bridge = Bridge(words("a", "b", "c", "d", "e"), words("x", "c", "y", "e", "a"), vocab)
    guarded = toys.guard(ModelDrafter(DecoderState(toys.decoder(3, vocab=vocab, sharp=0.4), 300), vocab, bridge))
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(n):
        report = toys.answer(
            ChatCache(model), [0, 2], guarded, settings=settings, seed=seed, rule="rejection", limit=3, tokens=2
        )
        counts[tuple(report.token_ids[:2])] += 1
    cache = toys.target(vocab=vocab, sharp=0.4)
    first = cache.forward([0, 2], last=True).logits[0].double().softmax(-1)
    chi = 0.0
    for a in range(vocab):
        second = cache.forward([0, 2, a], last=True).logits[0].double().softmax(-1)
        for b in range(vocab):
            expected = n * float(first[a] * second[b])
            chi += (counts[a, b] - expected) ** 2 / expected
    freedom = vocab * vocab - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_edits_are_read_anew_from_where_they_differ() -> None:
    drafter, cache = half(), ChatCache(toys.target())
    guarded = toys.guard(drafter)
    first = toys.answer(cache, PROMPT, guarded)
    passes: list[int] = []
    run = drafter._state.step
    drafter._state.step = lambda ids: passes.append(len(ids)) or run(ids)  # type: ignore[method-assign,func-returns-value]
    toys.answer(cache, [*PROMPT, *first.token_ids, 4, 4], guarded)
    assert max(passes) < 24  # not the whole conversation again
    edited = [*PROMPT[:4], 1, 2, 3]
    got = toys.answer(cache, edited, guarded)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), edited).token_ids


def test_a_conversation_too_long_in_its_own_tokens_is_left_alone() -> None:
    notes: list[str] = []
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(half(capacity=60), notes=notes))
    assert got.token_ids == want.token_ids
    assert notes == []
    assert 0 < got.drafters["toy"] < got.passes


def test_a_conversation_that_it_cannot_read_at_all() -> None:
    drafter = ModelDrafter(
        DecoderState(toys.decoder(1, vocab=8), 300), 48, Bridge(letters(range(48)), words("a", "b"), 48)
    )
    notes: list[str] = []
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(drafter, notes=notes))
    assert got.token_ids == want.token_ids
    assert notes == []


def test_a_fork_keeps_the_translation() -> None:
    drafter = half()
    assert drafter.fork()._bridge is drafter._bridge


# ---------------------------------------------------------------------------------------------------- files


def turned(folder: Path) -> Path:
    """A checkpoint whose tokenizer numbers its bytes backwards."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {text: 255 - i for text, i in vocab.items()}
    file.write_text(json.dumps(content))
    return folder


def test_the_overlap_is_told_and_the_text_is_the_same(tmp_path: Path) -> None:
    big = toys.checkpoint(tmp_path / "big")
    other = turned(toys.checkpoint(tmp_path / "other", seed=5, layers=1, extra=["<|more|>"]))
    match = DraftModel().check(describe(big), str(other))
    assert match.fit == Fit.ANY
    assert match.reason == "other has another tokenizer than big, 99% of its tokens are shared"
    engine = Engine()
    texts = []
    for choice in (DrafterChoice(name="none"), DrafterChoice(name="draft_model", weights=str(other), tokens=3)):
        request = Generate(
            id=1,
            model=ModelChoice(model=str(big), dtype="fp32", device="cpu"),
            messages=[Message("user", "hello there")],
            sampling=Sampling(temperature=0.9, max_tokens=24, seed=4),
            drafter=choice,
        )
        texts.append(engine.generate(request, lambda event: None, toys.Still()))
    assert texts[0].token_ids == texts[1].token_ids
    assert texts[1].proposed > 0


def test_a_target_without_a_file_shares_nothing(tmp_path: Path) -> None:
    other = toys.checkpoint(tmp_path / "other")
    match = DraftModel().check(ModelInfo("m", "llama", 259, 32, 2, "x"), str(other))
    assert match.fit == Fit.NO
    assert "0% of its tokens" in match.reason
