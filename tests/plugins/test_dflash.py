"""DFlash and its kin: the block pass against plain steps and the references, lossless text, honest laws, trees."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import dflash_files as files
import golden
import pairs
import pytest
import torch
import toys
from luck import Luck
from torch import Tensor

from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Context, Match
from outrider.core.model.model import TargetModel
from outrider.core.sampling import accept
from outrider.core.sampling.accept import NO_DRAFT
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.dflash import DFlash
from outrider.drafters.dflash.draft import DFlashDrafter
from outrider.drafters.dflash.heads import Markov, Selector
from outrider.drafters.dflash.tree import best_first

PROMPT = [2, 0, 3, 1, 2, 2, 0, 1, 3, 2, 0, 1]
SHARP = Settings(temperature=0.8, top_p=0.95)
VOCAB = 5  # small, so that random drafters are right now and then
GOLDENS = [
    ("dflash", None),
    ("dflash_deepspec", None),
    ("dspark", None),
    ("dflash2", None),
    ("dflash_speculators", None),  # as it was trained: windows end at the anchor
    ("dflash_speculators", "slot"),
    ("dspark_speculators", None),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of every kind, for vocabularies of VOCAB and 3 tokens."""
    root = tmp_path_factory.mktemp("dflash")
    for kind, vocab in itertools.product(files.KINDS, (VOCAB, 3)):
        files.write(root / f"{kind}{vocab}", files.config(kind, vocab), files.tensors(kind, vocab, seed=4))
    return root


def rider(folder: Path, target: TargetModel, **options: Any) -> DFlashDrafter:
    """A drafter for a target, as the engine makes it."""
    match = DFlash().check(target.info, str(folder))
    assert match.fit, match.reason
    return DFlash().load(target, match, options)


@cache
def pair(name: str) -> pairs.Pair:
    return pairs.Pair(name)


# ---------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize(("name", "window"), GOLDENS)
def test_every_recorded_round_is_the_references(name: str, window: str | None) -> None:
    """Slot states, logits, candidates, confidence, drafts and accepted lengths; the text itself is fed."""
    here = pair(name)
    target = here.target()
    draft = rider(here.folder, target, window=window)
    for number, prompt in enumerate(here.notes["prompts"]):
        text = torch.tensor([*here.prompts[number], *here.texts[number]])
        target.rewind(0)
        states = target.forward(text, states=draft.needs.hidden).hidden
        assert states is not None
        draft.reset()
        fed = 0
        for row in prompt["rounds"]:
            at = row["committed"]
            if at >= len(text):
                break
            draft.advance(Committed(fed, text[fed : at + 1], text[:0], states[max(0, fed - 1) : at]))
            fed = at + 1
            check_round(here, draft, row, window, text[at:].tolist())


def check_round(
    here: pairs.Pair, draft: DFlashDrafter, row: dict[str, Any], window: str | None, text: list[int]
) -> None:
    want = row["draft"] if window is None else row["draft_if_window_is_per_query"]
    slots = draft.slots(text[0], len(want))
    path, rows, sure = [text[0]], [], []
    for slot in range(len(want)):
        if draft._parts.confidence is not None:
            sure.append(draft.sure(slots, slot, torch.tensor(path[-1:])))
        rows.append(slots.follow(slot, torch.tensor(path[-1:])))
        path.append(int(draft._named(rows[-1].argmax())))
    assert path[1:] == want
    if window is None:
        agreed = itertools.takewhile(lambda both: both[0] == both[1], zip(want, text[1:], strict=False))
        assert len(list(agreed)) == min(row["accepted"], len(text) - 1)
        assert sure == pytest.approx(row.get("confidence", []), abs=1e-4)
    if "tensors" in row:
        key = "logits" if window is None else "logits_if_window_is_per_query"
        selects = isinstance(draft._parts.follower, Selector)
        got = slots.logits if selects else torch.stack(rows)
        golden.assert_close(got, here.tensors[row["tensors"] + key].view(len(got), -1), atol=1e-3)
        if selects:
            ids = [set(some.isfinite().nonzero()[:, 0].tolist()) for some in rows]
            assert ids == [set(some.tolist()) for some in here.tensors[row["tensors"] + "candidates"][0]]


@pytest.mark.parametrize(("name", "window"), GOLDENS)
def test_the_engine_drafts_what_the_reference_did(name: str, window: str | None) -> None:
    """Through the real loop: states of accepted tokens only, so that partial acceptance and all behind it are right."""
    here = pair(name)
    report, watch = pairs.ride(here, rider(here.folder, here.target(), window=window, tree=False), 1, 8)
    assert report.token_ids == here.texts[1]
    if window is not None:
        return
    want = {row["committed"]: row for row in here.notes["prompts"][1]["rounds"]}
    full = [(at, made, kept) for at, made, kept in watch.rows if made and made.tokens.shape[0] == watch.shape.depth]
    assert len(full) > 10
    for at, made, kept in full:
        assert made is not None and made.tokens.tolist() == want[at]["draft"]
        assert kept == want[at]["accepted"]


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_a_tree_takes_fewer_passes_than_a_chain(name: str) -> None:
    here = pair(name)
    chain, _ = pairs.ride(here, rider(here.folder, here.target(), tree=False), 0, 7)
    tree, _ = pairs.ride(here, rider(here.folder, here.target(), tree=True), 0, 24)
    assert tree.token_ids == chain.token_ids == here.texts[0]
    assert tree.passes < chain.passes


# ---------------------------------------------------------------------------------------------------- in the engine


@pytest.mark.parametrize("kind", files.KINDS)
@pytest.mark.parametrize(
    ("tree", "settings"),
    [(False, toys.GREEDY), (False, SHARP), (True, toys.SAMPLED), (None, toys.GREEDY), (None, SHARP)],
    ids=["chain-greedy", "chain-filtered", "tree-sampled", "as-it-comes-greedy", "as-it-comes-filtered"],
)
def test_the_text_is_the_targets(home: Path, kind: str, tree: bool, settings: Settings) -> None:
    target = toys.target(vocab=VOCAB, sharp=0.4)
    want = toys.answer(ChatCache(toys.target(vocab=VOCAB, sharp=0.4)), PROMPT, settings=settings)
    draft = rider(home / f"{kind}{VOCAB}", target, tree=tree)
    got = toys.answer(ChatCache(target), PROMPT, toys.guard(draft), settings=settings, tokens=6)
    assert got.token_ids == want.token_ids
    assert 0 < got.accepted < got.proposed


@pytest.mark.parametrize("kind", files.KINDS)
def test_by_itself_it_makes_a_tree_where_that_is_as_quick(home: Path, kind: str) -> None:
    """Where slots do not hang on each other; and a chain where the laws of its tokens are wanted."""
    target = toys.target(vocab=VOCAB, sharp=0.4)
    draft = rider(home / f"{kind}{VOCAB}", target)
    plain = draft.shape.nodes > draft.shape.depth
    parts = draft._parts
    assert plain == (parts.follower is None and parts.confidence is None)
    hidden = target.forward(PROMPT[:-1], states=draft.needs.hidden).hidden
    draft.advance(Committed(0, torch.tensor(PROMPT), torch.empty(0, dtype=torch.int64), hidden))
    for settings, probs in ((toys.GREEDY, False), (toys.SAMPLED, False), (toys.SAMPLED, True)):
        sampler = Sampler(settings, Noise(3), PROMPT)
        stream = partial(sampler.noise.draft_stream, root=len(PROMPT) - 1)
        made = draft.propose(Context(PROMPT, 6, probs, sampler.chain, sampler.distribution, stream))
        assert made is not None and (made.parents is not None) == (plain and not probs)
        assert (made.probs is not None) == probs
        if plain and not probs:  # the first node is what the noise draws by the first slot's law
            row = draft.slots(PROMPT[-1], draft.shape.depth).logits[:1]
            assert int(made.tokens[0]) == int(sampler.chain(draft._in_target_ids(row), len(PROMPT), [])[0])


def block_error(folder: Path, draft: DFlashDrafter, chat_cache: ChatCache) -> float:
    """Largest difference of the next block's states to plain steps over the states of a new pass."""
    tokens, target = chat_cache.tokens, chat_cache.target
    state, drafts = draft._state, draft.shape.depth
    assert state.ready(len(tokens))
    hidden = draft.slots(tokens[-1], drafts).hidden
    assert pairs.positions(state) == list(range(state.origin, len(tokens) - 1))
    states = toys.target(vocab=VOCAB, sharp=0.4).forward(tokens, states=draft.needs.hidden).hidden
    assert states is not None
    ids = torch.tensor([tokens[-1], *[VOCAB - 1] * (files.BLOCK - 1)])
    want = files.block(folder, states[state.origin : len(tokens) - 1], state.origin, target.embed(ids))
    return float((hidden - want[-drafts:]).abs().max())


@pytest.mark.parametrize("kind", files.KINDS)
def test_the_first_slots_are_those_of_the_whole_block(home: Path, kind: str) -> None:
    """Slots see each other, so a block that is cut before its pass would guess otherwise than it was trained to."""
    draft = rider(home / f"{kind}{VOCAB}", toys.target(vocab=VOCAB), tree=False)
    draft.advance(Committed(0, torch.tensor(PROMPT), torch.tensor([]), torch.randn(len(PROMPT) - 1, 2, 32)))
    whole, few = draft.slots(PROMPT[-1], draft.shape.depth), draft.slots(PROMPT[-1], 2)
    torch.testing.assert_close(few.hidden, whole.hidden[:2])
    torch.testing.assert_close(few.logits, whole.logits[:2])
    long, short = (draft.propose(pairs.context(PROMPT, nodes)) for nodes in (draft.shape.depth, 2))
    assert long is not None and short is not None
    assert short.tokens.tolist() == long.tokens.tolist()[:2]


@pytest.mark.parametrize("kind", files.KINDS)
def test_the_block_is_right_after_rejections_and_edits(home: Path, kind: str) -> None:
    folder = home / f"{kind}{VOCAB}"
    chat_cache = ChatCache(toys.target(vocab=VOCAB, sharp=0.4))
    draft = rider(folder, chat_cache.target)
    guarded = toys.guard(draft)
    told = toys.answer(chat_cache, PROMPT, guarded, settings=toys.SAMPLED)
    assert block_error(folder, draft, chat_cache) < 1e-4
    for ids in ([*PROMPT, *told.token_ids[:9], 4, 4], [*PROMPT[:5], 1, 1], PROMPT[:1]):
        toys.answer(chat_cache, ids, guarded, limit=7)
        assert draft._state.origin == 0
        assert block_error(folder, draft, chat_cache) < 1e-4


@pytest.mark.parametrize("kind", ["dflash", "speculators"])
def test_after_a_hot_switch_it_knows_what_it_missed(home: Path, kind: str) -> None:
    chat_cache = ChatCache(toys.target(vocab=VOCAB, sharp=0.4))
    want = toys.answer(ChatCache(toys.target(vocab=VOCAB, sharp=0.4)), PROMPT, settings=toys.SAMPLED)
    draft = rider(home / f"{kind}{VOCAB}", chat_cache.target)
    control = toys.Still(switches={4: DrafterChoice(name="rides", tokens=4)})
    table = {"none": None, "rides": toys.guard(draft)}
    got = toys.answer(chat_cache, PROMPT, table, settings=toys.SAMPLED, control=control)
    assert got.token_ids == want.token_ids
    assert got.proposed > 0
    assert draft._state.origin == 0
    assert block_error(home / f"{kind}{VOCAB}", draft, chat_cache) < 1e-4


@pytest.mark.parametrize("kind", ["dflash", "speculators"])
def test_where_they_are_not_told_the_context_begins_where_states_are_known(
    home: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.core.session.answer.give_states", lambda *some: None)
    folder = home / f"{kind}{VOCAB}"
    chat_cache = ChatCache(toys.target(vocab=VOCAB, sharp=0.4))
    want = toys.answer(ChatCache(toys.target(vocab=VOCAB, sharp=0.4)), PROMPT, settings=toys.SAMPLED)
    draft = rider(folder, chat_cache.target)
    guarded = toys.guard(draft)
    control = toys.Still(switches={4: DrafterChoice(name="rides", tokens=4)})
    got = toys.answer(chat_cache, PROMPT, {"none": None, "rides": guarded}, settings=toys.SAMPLED, control=control)
    assert got.token_ids == want.token_ids
    assert got.proposed > 0
    assert draft._state.origin > len(PROMPT)
    assert block_error(folder, draft, chat_cache) < 1e-4
    draft.rewind(draft._state.origin - 2)
    assert draft._state.count == 0
    chat_cache.reuse([])
    toys.answer(chat_cache, PROMPT, toys.guard(draft), limit=9)  # the whole prompt, with its states
    assert draft._state.origin == 0
    assert block_error(folder, draft, chat_cache) < 1e-4


def test_without_states_it_says_nothing(home: Path) -> None:
    draft = rider(home / f"dflash{VOCAB}", toys.target(vocab=VOCAB))
    assert draft.propose(pairs.context([1], 4)) is None
    none = torch.empty(0, dtype=torch.int64)
    draft.advance(Committed(0, torch.tensor(PROMPT), none))
    assert draft.propose(pairs.context(PROMPT, 4)) is None
    draft.advance(Committed(len(PROMPT), torch.tensor([1]), none, torch.randn(1, 2, 32)))
    made = draft.propose(pairs.context([*PROMPT, 1], 4))
    assert made is not None and made.tokens.shape == (4,)
    assert draft.propose(pairs.context([*PROMPT, 1, 1], 4)) is None  # a token it never heard of


def test_end_tokens_and_limits_inside_a_draft(home: Path) -> None:
    folder, small, cut = home / f"dflash{VOCAB}", len(PROMPT) + 21, 0
    for settings, eos in itertools.product((toys.GREEDY, toys.SAMPLED), ([], [1], [2])):
        plain = toys.target(vocab=VOCAB, sharp=0.4, context=small)
        want = toys.answer(ChatCache(plain), PROMPT, settings=settings, eos=eos, limit=None)
        target = toys.target(vocab=VOCAB, sharp=0.4, context=small)
        guarded = toys.guard(rider(folder, target), notes=(notes := []))
        got = toys.answer(ChatCache(target), PROMPT, guarded, settings=settings, eos=eos, limit=None)
        assert (got.token_ids, got.finish, notes) == (want.token_ids, want.finish, [])
        cut += got.accepted - got.kinds.count("A")
    assert cut > 0  # an accepted token that was the end, or stood behind it


def test_embeddings_and_a_head_of_its_own_are_scaled_as_told(tmp_path: Path) -> None:
    told = {"input_embedding_scale": 2.0, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    weights = files.tensors("speculators")
    folder = files.write(tmp_path / "some", {**files.config("speculators"), **told}, weights)
    target = toys.target()
    draft = rider(folder, target)
    ids, hidden = torch.tensor([3, 4]), torch.randn(2, 32)
    torch.testing.assert_close(draft._embedded(ids), target.embed(ids) * 2)
    assert draft._parts.head is not None
    torch.testing.assert_close(draft._parts.head(hidden), 3 * torch.tanh(hidden @ weights["lm_head.weight"].T / 6))
    target.info = replace(target.info, architecture="muse_glimmer")
    target.embed = lambda ids: 1 / 0  # type: ignore[method-assign]  # such a drafter wants the rows before the norm
    torch.testing.assert_close(draft._embedded(ids), target.embed_raw(ids) * 2)


def test_a_fork_follows_its_own_conversation(home: Path) -> None:
    chat_cache = ChatCache(toys.target(vocab=VOCAB, sharp=0.4))
    draft = rider(home / f"dflash{VOCAB}", chat_cache.target)
    toys.answer(chat_cache, PROMPT, toys.guard(draft), limit=9)
    before = draft.slots(1, 4).logits
    copy = draft.fork()
    torch.testing.assert_close(copy.slots(1, 4).logits, before)
    copy.rewind(3)
    copy.advance(Committed(3, torch.tensor([1, 1, 1]), torch.empty(0, dtype=torch.int64), torch.randn(3, 2, 32)))
    assert not torch.allclose(copy.slots(1, 4).logits, before)
    assert torch.equal(draft.slots(1, 4).logits, before)
    draft.close()
    assert draft._state.count == 0


@torch.inference_mode()
def spoil(weight: Tensor | None) -> None:
    assert weight is not None
    weight.fill_(torch.nan)


def test_output_that_is_not_a_number_is_no_draft(home: Path) -> None:
    for kind, tree in itertools.product(files.KINDS, (False, True)):
        chat_cache = ChatCache(toys.target(vocab=VOCAB, sharp=0.4))
        draft = rider(home / f"{kind}{VOCAB}", chat_cache.target, tree=tree)
        spoil(draft._parts.network.norm.weight)  # type: ignore[attr-defined]
        notes: list[str] = []
        report = toys.answer(chat_cache, PROMPT, toys.guard(draft, notes=notes), limit=4)
        assert (report.proposed, notes) == (0, [])
    follower = rider(home / f"dspark{VOCAB}", toys.target(vocab=VOCAB))
    follower.advance(Committed(0, torch.tensor(PROMPT), torch.tensor([]), torch.randn(len(PROMPT) - 1, 2, 32)))
    assert isinstance(follower._parts.follower, Markov)
    spoil(follower._parts.follower.bias.weight)  # type: ignore[attr-defined]
    assert follower.propose(pairs.context(PROMPT, 4)) is None


# ---------------------------------------------------------------------------------------------------- laws


@dataclass
class Forced:
    """The `draft` stream of one position, by branches."""

    luck: Luck

    def draw(self, probs: Tensor) -> int:
        return self.luck.draw("draft", 0, probs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "confidence"), [("dflash", 0.0), ("dspark", 0.7), ("dflash2", 0.0), ("speculators", 0.0)]
)
def test_the_exact_law_of_two_tokens_under_rejection(home: Path, kind: str, confidence: float) -> None:
    """Every outcome of drafting, coins and draws; where the confidence head stops is settled before a token is drawn."""
    target = toys.target(vocab=3, sharp=0.4)
    prompt = [1, 2, 0, 0, 2, 1]
    draft = rider(home / f"{kind}3", target, confidence=confidence)
    states = target.forward(prompt, states=draft.needs.hidden).hidden
    assert states is not None
    draft.advance(Committed(0, torch.tensor(prompt), torch.empty(0, dtype=torch.int64), states[:-1]))
    settings = Settings(temperature=0.9, top_p=1.0)
    sampler = Sampler(settings, Noise(0))

    @cache
    def rows(tokens: tuple[int, ...]) -> Tensor:
        return toys.target(vocab=3, sharp=0.4).forward([*prompt, *tokens]).logits[len(prompt) - 1 :]

    got: dict[tuple[int, ...], float] = defaultdict(float)
    lengths = set()
    for luck in Luck().rounds():
        context = Context(
            prompt, 2, True, sampler.chain, sampler.distribution, lambda position, luck=luck: Forced(luck)
        )
        made = draft.propose(context)
        guess = made or NO_DRAFT
        lengths.add(len(guess))
        verdict = accept.rejection(rows(tuple(guess.ids)), guess, sampler, len(prompt), luck)
        text = tuple(verdict.tokens.tolist())[:2]
        after = [1.0] if len(text) == 2 else sampler.distribution(rows(text)[-1]).tolist()
        for token, chance in enumerate(after):
            got[text if len(text) == 2 else (*text, token)] += luck.weight * chance
    assert (len(lengths) > 1) == bool(confidence)
    first = sampler.distribution(rows(())[-1])
    for a, b in itertools.product(range(3), repeat=2):
        want = float(first[a]) * float(sampler.distribution(rows((a,))[-1])[b])
        assert math.isclose(got[a, b], want, abs_tol=1e-6)


@pytest.mark.parametrize("kind", files.KINDS)
def test_probs_are_the_engines_own_distribution_of_each_slot(home: Path, kind: str) -> None:
    draft = rider(home / f"{kind}{VOCAB}", toys.target(vocab=VOCAB))
    draft.advance(Committed(0, torch.tensor(PROMPT), torch.tensor([]), torch.randn(len(PROMPT) - 1, 2, 32)))
    made = draft.propose(pairs.context(PROMPT, 4, SHARP, probs=True))
    assert made is not None and made.probs is not None
    slots, sampler, path = draft.slots(PROMPT[-1], 4), Sampler(SHARP, Noise(1)), made.tokens.tolist()
    for slot, previous in enumerate([PROMPT[-1], *path[:-1]]):
        row = draft._in_target_ids(slots.follow(slot, torch.tensor([previous]))[None])[0]
        torch.testing.assert_close(made.probs[slot], sampler.distribution(row, path[:slot]))


def test_confidence_stops_a_draft(home: Path) -> None:
    target = toys.target(vocab=VOCAB)
    for least, most in ((0.0, 5), (1.0, 0)):
        draft = rider(home / f"dspark{VOCAB}", target, confidence=least)
        draft.advance(Committed(0, torch.tensor(PROMPT), torch.tensor([]), torch.randn(len(PROMPT) - 1, 2, 32)))
        made = draft.propose(pairs.context(PROMPT, 8))
        assert (0 if made is None else made.tokens.shape[0]) == most


# ---------------------------------------------------------------------------------------------------- trees


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("budget", [1, 7, 30, 99])
def test_the_tree_holds_the_most_probable_prefixes(linked: bool, budget: int) -> None:
    vocab, depth = 4, 3
    g = torch.Generator().manual_seed(budget)
    logs = torch.randn(depth, vocab, vocab, generator=g, dtype=torch.float64).mul(2).log_softmax(-1)
    if not linked:
        logs = logs[:, :1].expand(-1, vocab, -1)

    def ranked(level: int, previous: int) -> tuple[list[float], list[int]]:
        weights, ids = logs[level, previous].sort(descending=True)
        return weights.tolist(), ids.tolist()

    def weight(path: tuple[int, ...]) -> float:
        return sum(float(logs[i, previous, x]) for i, (previous, x) in enumerate(itertools.pairwise((2, *path))))

    tokens, parents = best_first(ranked, 2, depth, budget)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    everything = [p for n in range(1, depth + 1) for p in itertools.product(range(vocab), repeat=n)]
    want = sorted(everything, key=weight, reverse=True)[:budget]
    assert len(set(paths)) == len(paths) == len(want)
    assert [weight(p) for p in paths] == pytest.approx([weight(p) for p in want])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", files.KINDS)
def test_a_drafted_tree_is_that_of_its_own_laws(home: Path, kind: str) -> None:
    target = toys.target(vocab=VOCAB)
    draft = rider(home / f"{kind}{VOCAB}", target, tree=True)
    draft.advance(Committed(0, torch.tensor(PROMPT), torch.tensor([]), torch.randn(len(PROMPT) - 1, 2, 32)))
    made = draft.propose(pairs.context(PROMPT, 12))
    assert made is not None and made.parents is not None and made.probs is None
    slots = draft.slots(PROMPT[-1], draft.shape.depth)
    paths: list[list[int]] = []
    costs = []
    for token, parent in zip(made.tokens.tolist(), made.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
        total = 0.0
        for slot, (previous, chosen) in enumerate(itertools.pairwise([PROMPT[-1], *paths[-1]])):
            law = draft._in_target_ids(slots.follow(slot, torch.tensor([previous]))[None])[0].log_softmax(-1)
            total -= float(law[chosen])
        costs.append(total)
    assert len(paths) == 12
    assert max(map(len, paths)) <= draft.shape.depth
    assert costs == pytest.approx(sorted(costs))


def test_a_match_without_weights_waits_for_some() -> None:
    match = DFlash().matches(toys.target().info)
    assert isinstance(match, Match) and not match.ready
    assert "--drafter-weights" in match.reason
