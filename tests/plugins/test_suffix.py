"""Suffix drafting against plain counting over the whole text, with rewinds, and through the engine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import toys

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Committed, Context, Fit, Match, ModelInfo
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.suffix import AHEAD, Suffix, SuffixDrafter
from outrider.drafters.suffix.automaton import CHAIN, Automaton
from outrider.drafters.suffix.corpus import LONGEST, SHORTEST, WINDOW, Corpus
from outrider.drafters.suffix.propose import LEAST, REACH, best

NONE = torch.empty(0, dtype=torch.int64)
PROMPT = [5, 9, 13, 9, 5, 9, 13]


# ---------------------------------------------------------------------------------------------------- reference


def following(text: Sequence[int], gram: Sequence[int]) -> Counter[int]:
    """What stands behind every place where `gram` stands."""
    n = len(gram)
    return Counter(text[i + n] for i in range(len(text) - n) if list(text[i : i + n]) == list(gram))


def places(text: Sequence[int], gram: Sequence[int]) -> int:
    return sum(list(text[i : i + len(gram)]) == list(gram) for i in range(len(text) - len(gram) + 1))


def lengths(text: Sequence[int]) -> list[int]:
    """Suffixes that occurred before; of those with the same occurrences the longest; longest first."""
    found, seen = [], 1
    for n in range(len(text) - 1, 0, -1):
        count = places(text, text[-n:])
        if count > seen:
            found.append(n)
            seen = count
    return found


def likely(text: Sequence[int], gram: Sequence[int], depth: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every path behind `gram` that is likely enough, with its probability, likeliest first."""
    found: list[tuple[float, tuple[int, ...]]] = []

    def walk(path: tuple[int, ...], probability: float) -> None:
        context = [*gram, *path]
        while context and not following(text, context):
            context = context[1:]
        counts = following(text, context) if context else Counter()
        for token, count in counts.items():
            share = probability * count / counts.total()
            if share >= LEAST:
                found.append((share, (*path, token)))
                if len(path) + 1 < depth:
                    walk((*path, token), share)

    walk((), 1.0)
    return sorted(found, reverse=True)


def expected(text: Sequence[int], sizes: Sequence[int], nodes: int, source: Sequence[int]) -> float:
    """The best score that any match of `text` in `source` promises."""
    scores = [sum(p for p, _ in likely(source, text[-n:], REACH * n)[:nodes]) for n in sizes]
    return max(scores, default=0.0)


# ---------------------------------------------------------------------------------------------------- the indexes


def state(index: Automaton) -> tuple:
    return (index._next, index._link, index._length, index._count, index._last, index._undo)


@pytest.mark.parametrize("letters", [2, 3, 8])
def test_the_automaton_counts_what_a_scan_counts(letters: int) -> None:
    luck = random.Random(letters)
    index, text = Automaton(), []
    for _ in range(70):
        if text and luck.random() < 0.15:
            for _ in range(luck.randrange(1, len(text) + 1)):
                index.undo()
                text.pop()
        for _ in range(luck.randrange(1, 5)):
            text.append(luck.randrange(letters))
            index.add(text[-1])
        found = list(index.matches())
        assert [n for n, _ in found] == lengths(text)
        for n, cursor in found:
            counted = index.follow(cursor)
            assert {token: count for token, count, _ in counted} == following(text, text[-n:])
            for token, _, behind in counted:
                deeper = following(text, [*text[-n:], token])
                if deeper:
                    assert {t: count for t, count, _ in index.follow(behind)} == deeper


def test_a_token_taken_back_leaves_no_trace() -> None:
    luck = random.Random(1)
    text = [luck.randrange(3) for _ in range(120)]
    index, plain = Automaton(), Automaton()
    for token in text[:50]:
        index.add(token)
        plain.add(token)
    for token in text[50:]:
        index.add(token)
    for _ in text[50:]:
        index.undo()
    assert state(index) == state(plain)


def test_it_takes_at_most_two_states_a_token_and_a_bounded_walk() -> None:
    index = Automaton()
    for _ in range(1000):
        index.add(7)
    assert len(index._next) == 1001
    assert max(index._count) <= 1000
    assert len(list(index.matches())) == CHAIN
    other, luck = Automaton(), random.Random(0)
    for _ in range(1000):
        other.add(luck.randrange(2))
    assert len(other._next) <= 2 * 1000


@pytest.mark.parametrize("letters", [2, 5])
def test_the_corpus_counts_what_a_scan_counts(letters: int) -> None:
    luck = random.Random(letters)
    text = [luck.randrange(letters) for _ in range(300)]
    corpus = Corpus(text)
    for _ in range(30):
        context = [luck.randrange(letters) for _ in range(luck.randrange(0, 12))]
        want = [n for n in range(min(LONGEST, len(context)), SHORTEST - 1, -1) if places(text, context[-n:])]
        found = list(corpus.matches(context))
        assert [n for n, _ in found] == want
        for n, cursor in found:
            counted = corpus.follow(cursor)
            assert {token: count for token, count, _ in counted} == following(text, context[-n:])
            for token, _, behind in counted:
                deeper = {t: count for t, count, _ in corpus.follow(behind)}
                assert deeper == following(text, [*context[-n:], token])


def test_a_corpus_is_sorted_as_far_as_a_draft_can_reach() -> None:
    text = [1, 2] * 200
    corpus = Corpus(text)
    keys = [text[place : place + WINDOW] for place in corpus._order]
    assert keys == sorted(keys)
    (_, cursor), *_ = corpus.matches([1, 2] * 8)
    for _ in range(WINDOW):
        counted = corpus.follow(cursor)
        if not counted:
            break
        cursor = counted[0][2]
    assert cursor[2] == WINDOW
    assert Corpus([4]).follow((0, 1, 1)) == []


# ---------------------------------------------------------------------------------------------------- drafts


@pytest.mark.parametrize("nodes", [1, 4, 12])
def test_the_best_score_wins_and_its_nodes_are_the_likeliest(nodes: int) -> None:
    luck = random.Random(nodes)
    text: list[int] = []
    index = Automaton()
    for _ in range(60):
        text.append(luck.randrange(3))
        index.add(text[-1])
        guess = best(index, index.matches(), nodes)
        assert guess.score == pytest.approx(expected(text, lengths(text), nodes, text))
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(guess.tokens, guess.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        assert len(set(paths)) == len(paths) <= nodes
        if paths:
            matching = [
                n for n in lengths(text) if set(paths) <= {path for _, path in likely(text, text[-n:], REACH * n)}
            ]
            assert matching


def context(tokens: Sequence[int], nodes: int = 8) -> Context:
    sampler = Sampler(toys.GREEDY, Noise(0))
    return Context(tokens, nodes, False, sampler.chain, sampler.distribution, sampler.noise.draft_stream)


def told(tokens: Sequence[int], rider: SuffixDrafter | None = None) -> SuffixDrafter:
    rider = rider or SuffixDrafter()
    rider.advance(Committed(len(rider._tokens), torch.tensor(list(tokens)), NONE))
    return rider


def guess(rider: SuffixDrafter, nodes: int = 8) -> tuple[list[int], list[int] | None]:
    draft = rider.propose(context(rider._tokens, nodes))
    if draft is None:
        return [], None
    return draft.tokens.tolist(), None if draft.parents is None else draft.parents.tolist()


def test_a_longer_match_drafts_more_and_the_budget_is_kept() -> None:
    assert REACH == 2
    assert guess(told([1, 2, 3, 4, 5, 6, 7, 8, 9, 1])) == ([2, 3], None)
    assert guess(told([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])) == ([3, 4, 5, 6], None)
    assert guess(told([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]), 3) == ([3, 4, 5], None)


def test_two_continuations_make_a_tree_with_the_likelier_first() -> None:
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2]
    tokens, parents = guess(told(text))
    assert parents is not None
    assert [t for t, p in zip(tokens, parents, strict=True) if p == -1] == [3, 4]
    assert tokens[0] == 3


def test_of_equal_scores_the_longer_match_wins() -> None:
    text = [1, 2, 7, 1, 2, 8, 3, 2, 9, 4, 2, 9, 5, 1, 2]  # behind 1 2 a half is 7, behind 2 a half is 9
    assert guess(told(text), 1) == ([7], None)


def test_a_loop_is_continued() -> None:
    assert guess(told([7, 8, 7, 8, 7, 8]))[0] == [7, 8] * 4


def test_nothing_is_proposed_where_nothing_matches() -> None:
    assert guess(SuffixDrafter()) == ([], None)
    assert guess(told([1, 2, 3, 4])) == ([], None)


def test_the_corpus_is_asked_where_the_chat_knows_less() -> None:
    corpus = Corpus([1, 2, 3, 4, 5, 6, 7, 8])
    assert guess(told([9, 2, 3, 4], SuffixDrafter(corpus))) == ([5, 6, 7, 8], None)
    assert guess(told([3, 4, 9, 3, 4], SuffixDrafter(corpus)))[0][0] == 9  # as good a match in the chat comes first


def test_rewind_and_fork() -> None:
    text = [1, 2, 3, 4, 1, 2]
    rider = told(text)
    copy = rider.fork()
    told([5, 1, 2], rider)
    assert guess(rider)[0][0] in (3, 5)
    rider.rewind(6)
    assert guess(rider) == guess(copy) == ([3, 4, 1, 2], None)
    rider.rewind(0)
    assert state(rider._chat) == state(Automaton())


def test_memory_is_bounded_and_a_rewind_beyond_what_is_held_is_exact() -> None:
    luck = random.Random(3)
    text = [luck.randrange(4) for _ in range(300)]
    rider = told(text, SuffixDrafter(held=64))
    assert 32 <= rider._chat.size <= 64 + 32 // (AHEAD - 1) + 1
    rider.rewind(280)
    rider.rewind(100)
    fresh = Automaton()
    for token in text[100 - 32 : 100]:
        fresh.add(token)
    assert state(rider._chat) == state(fresh)
    assert guess(rider.fork()) == guess(rider)


def test_it_forgets_a_few_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The older half goes without a round that builds the newer one, and rewinds at any time leave what that would have built."""
    added, luck, held = list[int](), random.Random(5), 128
    add = Automaton.add
    monkeypatch.setattr(Automaton, "add", lambda self, token: (added.append(token), add(self, token))[1])
    rider, tokens, firsts = SuffixDrafter(held=held), list[int](), set[int]()
    for _ in range(700):
        more = [luck.randrange(6) for _ in range(luck.randrange(1, 6))]
        added.clear()
        told(more, rider)
        assert len(added) <= len(more) * (1 + AHEAD)
        tokens += more
        if luck.random() < 0.3:
            cut = min(len(tokens), luck.randrange(1, 12))
            rider.rewind(len(tokens) - cut)
            del tokens[-cut:]
        firsts.add(rider._first)
        checked = ((rider._chat, rider._first), (rider._next, rider._next_first))
        for automaton, first in checked if luck.random() < 0.1 else ():
            fresh = Automaton()
            for token in tokens[first : first + automaton.size]:
                add(fresh, token)
            assert state(automaton) == state(fresh)
        assert rider._first + rider._chat.size == len(tokens)
    assert len(firsts) > 3


# ---------------------------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_greedy_text_is_the_targets(rule: str, tokens: int) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, limit=120)
    got = toys.answer(
        ChatCache(toys.target()), PROMPT, toys.guard(SuffixDrafter()), limit=120, tokens=tokens, rule=rule
    )
    assert got.token_ids == want.token_ids
    assert 0 < got.accepted < got.proposed


def test_sampled_text_does_not_depend_on_it() -> None:
    settings = Settings(temperature=0.8, top_p=0.95)
    for seed in range(3):
        want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, seed=seed)
        got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(SuffixDrafter()), settings=settings, seed=seed)
        assert got.token_ids == want.token_ids


def test_the_law_of_two_tokens_under_rejection() -> None:
    """Chi-square of the joint law of two tokens over 250 seeds, against the exact one."""
    vocab, n = 4, 250
    model = toys.target(vocab=vocab, sharp=0.3)
    prompt = [1, 2, 0, 1, 3, 0, 1, 2, 0, 1]
    counts: Counter[tuple[int, ...]] = Counter()
    guarded = toys.guard(SuffixDrafter())
    for seed in range(n):
        report = toys.answer(
            ChatCache(model), prompt, guarded, settings=toys.SAMPLED, seed=seed, rule="rejection", limit=3, tokens=4
        )
        counts[tuple(report.token_ids[:2])] += 1
        guarded.rewind(0)
    cache = toys.target(vocab=vocab, sharp=0.3)
    first = cache.forward(prompt, last=True).logits[0].double().softmax(-1)
    chi = 0.0
    for a in range(vocab):
        second = cache.forward([*prompt, a], last=True).logits[0].double().softmax(-1)
        for b in range(vocab):
            want = n * float(first[a] * second[b])
            chi += (counts[a, b] - want) ** 2 / want
    freedom = vocab * vocab - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


def test_an_end_inside_a_draft_ends_the_answer() -> None:
    plain = toys.answer(ChatCache(toys.target()), PROMPT)
    corpus = Corpus([*PROMPT, *plain.token_ids])
    kinds = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(SuffixDrafter(corpus))).kinds
    first = [at for at, token in enumerate(plain.token_ids) if plain.token_ids.index(token) == at]
    end = next(at for at in first if kinds[at] == "A" and kinds[at + 1] == "A")
    got = toys.answer(ChatCache(toys.target()), PROMPT, toys.guard(SuffixDrafter(corpus)), eos=[plain.token_ids[end]])
    assert got.finish == "stop"
    assert got.token_ids == plain.token_ids[:end]


def test_a_hot_switch_tells_it_the_whole_conversation() -> None:
    control = toys.Still()
    control.switches = {9: toys.DrafterChoice(name="late", tokens=4)}
    rider = SuffixDrafter()
    drafters = {"toy": None, "late": toys.guard(rider, name="late")}
    cache = ChatCache(toys.target())
    got = toys.answer(cache, PROMPT, drafters, control=control)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), PROMPT).token_ids
    assert got.drafters["late"] > 0
    assert rider._tokens == cache.tokens


def test_edits_are_rewound_in_a_conversation() -> None:
    rider, cache = SuffixDrafter(), ChatCache(toys.target())
    guarded = toys.guard(rider)
    first = toys.answer(cache, PROMPT, guarded)
    toys.answer(cache, [*PROMPT, *first.token_ids, 4, 4], guarded)
    edited = [*PROMPT[:4], 1, 2, 3]
    got = toys.answer(cache, edited, guarded)
    assert got.token_ids == toys.answer(ChatCache(toys.target()), edited).token_ids
    assert rider._tokens == cache.tokens
    assert state(rider._chat) == state(told(cache.tokens)._chat)


# ---------------------------------------------------------------------------------------------------- loading


def info(path: Path) -> ModelInfo:
    return ModelInfo("m", "llama", 259, 32, 2, "x", path=str(path))


def load(path: Path, corpus: Path) -> SuffixDrafter:
    class Target:
        info = ModelInfo("m", "llama", 259, 32, 2, "x", path=str(path))

    return Suffix().load(Target(), Match(Fit.ANY, ""), {"corpus": str(corpus)})  # type: ignore[arg-type]


def test_it_fits_every_model_and_a_corpus_is_a_text_file(tmp_path: Path) -> None:
    match = Suffix().matches(info(tmp_path))
    assert match.fit == Fit.ANY
    assert match.ready
    notes = tmp_path / "notes.txt"
    notes.write_text("words")
    assert Suffix().check(info(tmp_path), str(notes)).reason == "looks in the chat and in notes.txt"
    (tmp_path / "long.txt").write_text("é" * 5000)
    assert Suffix().check(info(tmp_path), str(tmp_path / "long.txt")).fit == Fit.ANY
    (tmp_path / "model.gguf").write_bytes(b"GGUF\3\0\0\0")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    for wrong in ("model.gguf", "latin.txt", "nothing", ""):
        told = Suffix().check(info(tmp_path), str(tmp_path / wrong))
        assert told.fit == Fit.NO
        assert "its corpus is a text file" in told.reason


def test_a_corpus_is_read_in_the_targets_tokens(tmp_path: Path) -> None:
    model = toys.checkpoint(tmp_path / "model")
    notes = tmp_path / "notes.txt"
    notes.write_text("the quick brown fox")
    rider = load(model, notes)
    from outrider.core.formats.checkpoint import open_checkpoint
    from outrider.core.text.tokenizer import Tokenizer

    tokenizer = Tokenizer(open_checkpoint(model).text())
    told(tokenizer.encode("a quick"), rider)
    assert tokenizer.decode(guess(rider, 20)[0]) == " brown fox"


@pytest.mark.parametrize("data", [b"", b" \n", b"\xff\xfe\x00", None], ids=["empty", "blank", "binary", "missing"])
def test_a_bad_corpus_is_told(tmp_path: Path, data: bytes | None) -> None:
    notes = tmp_path / "notes.txt"
    if data is not None:
        notes.write_bytes(data)
    with pytest.raises(ModelError, match=r"notes\.txt"):
        load(toys.checkpoint(tmp_path / "model"), notes)


def test_a_corpus_that_is_too_big_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.drafters.suffix.corpus.BIGGEST", 3)
    notes = tmp_path / "notes.txt"
    notes.write_text("four")
    with pytest.raises(ModelError, match="a corpus may have"):
        load(tmp_path, notes)
