"""EAGLE: chains and trees are the reference's, the text is the target's, files that do not fit are refused with the reason."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import eagles
import golden
import pairs
import pytest
import torch
import toys
from eagles import NONE, PROMPT
from pairs import Pair
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError, UsageError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Context, Draft, Fit, Match, ModelInfo
from outrider.core.model.cache.layout import PassLayout
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.eagle import Eagle
from outrider.drafters.eagle.draft import EagleDrafter
from outrider.drafters.eagle.format import counts_outputs, default_states

CHAINS = ("eagle3", "eagle1", "eagle3_specforge", "eagle3_speculators", "eagle31_speculators")
STATES = {"eagle1": (8,), "eagle31_speculators": (2, 4, 8)}
TREE = {"tree": "tree", "depth": 5, "top_k": 4}
SAMPLED = Settings(temperature=0.9, top_p=0.95)


@cache
def pair(name: str) -> Pair:
    """A golden draft with its target."""
    return Pair(name)


def load(told: Pair, folder: Path | None = None, **options: object) -> EagleDrafter:
    folder = folder or told.folder
    match = Eagle().check(told.info, str(folder))
    assert match.fit == Fit.EXACT, match.reason
    return Eagle().load(told.target(), match, {"tree": "chain", **options})


class Seen:
    """A drafter whose logits are written down: rows [V] in target ids of every chain, by the root's position."""

    def __init__(self, inner: EagleDrafter) -> None:
        self.inner, self.needs, self.shape = inner, inner.needs, inner.shape
        self.logits: dict[int, list[Tensor]] = {}
        self.reset, self.rewind, self.close, self.fork = inner.reset, inner.rewind, inner.close, inner.fork
        self.advance = inner.advance

    def propose(self, context: Context) -> Draft | None:
        rows = self.logits[len(context.tokens) - 1] = []

        def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
            rows.append(logits[0])
            return context.sample(logits, position, path)

        return self.inner.propose(replace(context, sample=sample))


# ---------------------------------------------------------------------------------------------------- golden drafts


@pytest.mark.parametrize("name", CHAINS)
def test_every_recorded_chain(name: str) -> None:
    """Drafts, accepted lengths and logits of all rounds, through the engine's own loop."""
    told = pair(name)
    for prompt, text in enumerate(told.texts):
        seen = Seen(load(told))
        assert seen.needs.hidden == STATES.get(name, (2, 4, 5))
        report, watch = pairs.ride(told, seen, prompt, 5, limit=len(text) + 8)
        assert report.token_ids[: len(text)] == text
        rows = {root: (draft, accepted) for root, draft, accepted in watch.rows}
        for recorded in told.notes["prompts"][prompt]["rounds"]:
            draft, accepted = rows[recorded["committed"]]
            same_chain(told, recorded, draft, seen)
            assert accepted == recorded["accepted"]


def test_every_chain_of_the_other_reading() -> None:
    """SpecForge trains with the output fed back as it is, and says otherwise in the config."""
    told = pair("eagle3_specforge")
    seen = Seen(load(told, feedback="prenorm"))
    for prompt, text in enumerate(told.texts):
        ids = torch.tensor([*told.prompts[prompt], *text])
        states = told.target().forward(ids, states=seen.needs.hidden).hidden
        assert states is not None
        seen.reset()
        heard = 0
        for recorded in told.notes["prompts"][prompt]["rounds"]:
            end = recorded["committed"] + 1
            if end > len(ids):
                break
            seen.advance(Committed(heard, ids[heard:end], NONE, states[max(0, heard - 1) : end - 1]))
            heard = end
            draft = seen.propose(pairs.context(ids[:end].tolist(), 5))
            same_chain(told, recorded, draft, seen, "_prenorm_feedback")
        assert heard > len(ids) - 6


def same_chain(told: Pair, recorded: Mapping[str, Any], draft: Draft | None, seen: Seen, reading: str = "") -> None:
    assert draft is not None
    assert draft.tokens.tolist() == recorded["draft" + reading]
    if "tensors" in recorded:
        want = told.tensors[recorded["tensors"] + "logits" + reading]
        got, words = torch.stack(seen.logits[recorded["committed"]]), seen.inner._network.words
        golden.assert_close(got if words is None else got[:, words], want, atol=1e-3)


@pytest.mark.parametrize("name", ["eagle3", "eagle1"])
def test_every_recorded_tree(name: str) -> None:
    """Tokens, parents and accepted lengths of all EAGLE-2 trees, verified as trees."""
    told = pair(name)
    for prompt, text in enumerate(told.texts):
        report, watch = pairs.ride(told, load(told, **TREE), prompt, 15, limit=len(text) + 18)
        assert report.token_ids[: len(text)] == text
        rows = {root: (draft, accepted) for root, draft, accepted in watch.rows}
        for recorded in told.notes["prompts"][prompt]["tree_rounds"]:
            draft, accepted = rows[recorded["committed"]]
            assert draft is not None and draft.parents is not None
            assert draft.tokens.tolist() == recorded["draft"]
            assert (draft.parents + 1).tolist() == recorded["parents"]
            assert accepted == recorded["accepted"]


@pytest.mark.parametrize("name", CHAINS)
def test_states_and_logits_of_the_prompt(name: str) -> None:
    told, draft = pair(name), load(pair(name))
    layer = draft._network
    ids = torch.tensor(told.prompts[0])
    states = told.target().forward(ids, states=draft.needs.hidden).hidden
    assert states is not None
    fed = states if name != "eagle1" else told.decoder.norm(states)
    golden.assert_close(fed.flatten(1), told.tensors["p0.prefill.state"][0], atol=1e-3)
    where = PassLayout(0, len(ids), layer.tables, torch.float32, torch.device("cpu"))
    behind = told.tensors["p0.prefill.input_ids"][0]
    feature = layer(behind, layer.entry.fuse(states), where, draft._state.rows)
    golden.assert_close(feature, told.tensors["p0.prefill.feature"][0], atol=1e-3)
    golden.assert_close(layer.logits(feature), told.tensors["p0.prefill.logits"][0], atol=1e-3)


@pytest.mark.parametrize("name", ["eagle3", "eagle1"])
def test_the_published_pickle_is_the_same_draft(name: str, tmp_path: Path) -> None:
    told = pair(name)
    for file in ("config.json", "pytorch_model.bin"):
        (tmp_path / file).write_bytes((told.folder / file).read_bytes())
    want, _ = pairs.ride(told, load(told), 0, 5)
    got, _ = pairs.ride(told, load(told, tmp_path), 0, 5)
    assert (got.kinds, got.accepted) == (want.kinds, want.accepted)


@pytest.mark.parametrize("ids", [[1, 3, 4], []], ids=["outputs", "default"])
def test_a_modelopt_export_is_the_same_draft(ids: list[int], tmp_path: Path) -> None:
    """The same weights under ModelOpt's names, without t2d, with its way to count layers."""
    told = pair("eagle3")
    weights = load_file(told.folder / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): part for name, part in weights.items() if name != "t2d"}
    config = json.loads((told.folder / "config.json").read_text())
    settings = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True, "use_last_layernorm": True}
    eagles.write(tmp_path, renamed, {**config, "eagle_config": settings})
    want, _ = pairs.ride(told, load(told), 0, 5)
    got, _ = pairs.ride(told, load(told, tmp_path), 0, 5)
    assert (got.kinds, got.accepted) == (want.kinds, want.accepted)


@pytest.mark.parametrize("options", [{}, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["eagle3", "eagle1"])
def test_sampled_text_does_not_depend_on_it(name: str, options: dict[str, Any]) -> None:
    told = pair(name)
    prompt = told.prompts[1]
    want = toys.answer(ChatCache(told.target()), prompt, settings=SAMPLED, limit=48)
    got, _ = pairs.ride(told, load(told, **options), 1, 12, settings=SAMPLED, limit=48)
    assert got.token_ids == want.token_ids
    assert 0 < got.accepted < got.proposed


def test_an_eos_inside_a_draft_ends_the_answer_and_the_next_turn_is_drafted_as_ever() -> None:
    told = pair("eagle3")
    chat_cache, guarded = ChatCache(told.target()), toys.guard(load(told))
    text = told.texts[0]
    recorded = next(r for r in told.notes["prompts"][0]["rounds"] if r["accepted"] == 5)
    inside = recorded["committed"] - len(told.prompts[0]) + 3  # the third accepted token of that round
    eos = text[inside]
    first = text.index(eos)
    ended = toys.answer(chat_cache, told.prompts[0], guarded, tokens=5, eos=[eos])
    assert ended.token_ids == text[:first]
    again = toys.answer(chat_cache, told.prompts[0], guarded, tokens=5, limit=len(text))
    fresh, _ = pairs.ride(told, load(told), 0, 5)
    assert again.token_ids == text
    assert again.accepted > fresh.accepted * 0.8  # one token of the prompt has no state


def test_the_context_ends() -> None:
    told = pair("eagle3")
    for options in ({}, TREE, {"tree": "auto", "depth": 3}):
        small = told.target(context=60)
        draft = Eagle().load(small, Match(Fit.EXACT, "", weights=str(told.folder)), options)
        got = toys.answer(ChatCache(small), told.prompts[0], toys.guard(draft), tokens=12, limit=None)
        assert got.token_ids == told.texts[0][: len(got.token_ids)]
        assert len(got.token_ids) == 60 - len(told.prompts[0])


def test_a_hot_switch_starts_where_states_are_known() -> None:
    told = pair("eagle3")
    drafters = {"none": None, "eagle": toys.guard(load(told), name="eagle")}
    switches = {12: DrafterChoice(name="eagle", tokens=5)}
    got = toys.answer(ChatCache(told.target()), told.prompts[0], drafters, limit=64, control=toys.Still(switches))
    assert got.token_ids == told.texts[0]
    assert got.accepted > 5


# ---------------------------------------------------------------------------------------------------- formulas, on toys


@pytest.mark.parametrize("kind", eagles.KINDS)
def test_chains_are_those_of_the_plain_formulas(kind: str, tmp_path: Path) -> None:
    """Logits of a chain of four behind eleven tokens, against everything computed anew for each of them."""
    target = toys.target(layers=4)
    folder = eagles.folder(tmp_path, kind)
    draft = Seen(eagles.load(folder, target))
    ids, states = eagles.conversation(target, draft.needs.hidden, 11)
    draft.advance(Committed(0, ids, NONE, states))
    proposal = draft.propose(pairs.context(ids.tolist(), 4))
    assert proposal is not None
    want, tokens = eagles.reference(folder, target, ids, states, 4)
    assert proposal.tokens.tolist() == tokens
    got = torch.stack(draft.logits[10])
    words = draft.inner._network.words
    torch.testing.assert_close(got if words is None else got[:, words], want, atol=1e-4, rtol=1e-4)


def test_pieces_drafts_and_rewinds_leave_no_trace(tmp_path: Path) -> None:
    """Heard in pieces, with drafts between and wrong turns taken back: the same guess as heard at once."""
    target, folder = toys.target(), eagles.folder(tmp_path, "eagle3")
    for options in ({}, {"tree": "tree", "depth": 3, "top_k": 3}):
        once, pieces = eagles.load(folder, target, **options), eagles.load(folder, target, **options)
        ids, states = eagles.conversation(target, once.needs.hidden, 40)
        once.advance(Committed(0, ids, NONE, states))
        heard = 0
        for end in (7, 8, 13, 14, 20, 29, 40):
            pieces.advance(Committed(heard, ids[heard:end], NONE, states[max(0, heard - 1) : end - 1]))
            assert pieces.propose(pairs.context(ids[:end].tolist(), 6)) is not None
            wrong = ids[:3].flip(0)
            pieces.advance(Committed(end, wrong, NONE, states[:3]))
            if end % 2:
                pieces.propose(pairs.context([*ids[:end].tolist(), *wrong.tolist()], 6))
            pieces.rewind(end)
            heard = end
        pieces.rewind(33)
        pieces.advance(Committed(33, ids[33:], NONE, states[32:]))
        context = pairs.context(ids.tolist(), 6)
        want, got = once.propose(context), pieces.propose(context)
        assert want is not None and got is not None
        assert got.tokens.tolist() == want.tokens.tolist()
        assert pairs.positions(pieces._state) == list(range(39))


def test_tokens_without_states_leave_a_gap_and_positions_stay_true(tmp_path: Path) -> None:
    target, folder = toys.target(), eagles.folder(tmp_path, "eagle3")
    draft = Seen(eagles.load(folder, target))
    ids, states = eagles.conversation(target, draft.needs.hidden, 20)
    draft.advance(Committed(0, ids[:12], NONE, None))
    assert draft.propose(pairs.context(ids[:12].tolist(), 3)) is None
    draft.advance(Committed(12, ids[12:16], NONE, states[13:15]))  # states for the last two only
    assert draft.propose(pairs.context(ids[:16].tolist(), 3)) is not None
    assert pairs.positions(draft.inner._state) == [13, 14]
    draft.advance(Committed(16, ids[16:18], NONE, None))
    assert draft.propose(pairs.context(ids[:18].tolist(), 3)) is None
    draft.advance(Committed(18, ids[18:], NONE, states[17:]))
    proposal = draft.propose(pairs.context(ids.tolist(), 3))
    assert proposal is not None
    known = torch.tensor([13, 14, 17, 18])
    want, tokens = eagles.reference(folder, target, ids, states, 3, known)
    assert proposal.tokens.tolist() == tokens
    got = torch.stack(draft.logits[19])[:, draft.inner._network.words]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_a_long_prompt_is_worked_off_in_chunks(tmp_path: Path) -> None:
    target = toys.target(context=1400)
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target)
    g = torch.Generator().manual_seed(1)
    prompt = torch.randint(0, 48, (1200,), generator=g).tolist()
    most = 0
    state, advance = draft._state, draft._state.advance

    def watched(step: Committed) -> None:
        nonlocal most
        advance(step)
        most = max(most, len(state.tokens) - 1 - state.count)

    state.advance = watched  # type: ignore[method-assign]
    want = toys.answer(ChatCache(toys.target(context=1400)), prompt, limit=8)
    got = toys.answer(ChatCache(target), prompt, toys.guard(draft), limit=8)
    assert got.token_ids == want.token_ids
    assert state.count > 1200
    assert 0 < most < 512


def test_a_fork_goes_its_own_way(tmp_path: Path) -> None:
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target)
    ids, states = eagles.conversation(target, draft.needs.hidden, 20)
    draft.advance(Committed(0, ids[:10], NONE, states[:9]))
    context = pairs.context(ids[:10].tolist(), 4)
    want = draft.propose(context)
    copy = draft.fork()
    assert copy._network is draft._network
    same = copy.propose(context)
    assert want is not None and same is not None
    assert same.tokens.tolist() == want.tokens.tolist()
    copy.rewind(4)
    copy.advance(Committed(4, ids[10:], NONE, states[10:]))
    assert copy.propose(pairs.context([*ids[:4].tolist(), *ids[10:].tolist()], 4)) is not None
    again = draft.propose(context)
    assert again is not None
    assert again.tokens.tolist() == want.tokens.tolist()


@pytest.mark.parametrize("tree", ["chain", "tree"])
def test_what_is_no_number_is_not_proposed_and_does_not_stay(tree: str, tmp_path: Path) -> None:
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target, tree=tree)
    ids, states = eagles.conversation(target, draft.needs.hidden, 10)
    context = pairs.context(ids.tolist(), 4)
    broken = states.clone()
    broken[6] = torch.nan
    draft.advance(Committed(0, ids, NONE, broken))
    assert draft.propose(context) is None
    draft.rewind(4)
    draft.advance(Committed(4, ids[4:6], NONE, states[3:5]))
    assert draft.propose(pairs.context(ids[:6].tolist(), 4)) is not None
    draft.reset()
    draft.advance(Committed(0, ids, NONE, broken))
    assert draft.propose(context) is None
    draft.reset()
    draft.advance(Committed(0, ids[:4], NONE, states[:3]))
    assert draft.propose(pairs.context(ids[:4].tolist(), 4)) is not None


def test_a_guess_that_is_no_number_does_not_stay(tmp_path: Path) -> None:
    """One of the guessed tokens has a broken embedding: its scratch row must not spoil later rounds."""
    target = toys.target()
    table = torch.randn(48, 32, generator=torch.Generator().manual_seed(2))
    folder = eagles.folder(tmp_path, "eagle3", more={"embed_tokens.weight": table})
    eagles.change(folder, {"embed_requires_grad": True})
    draft = eagles.load(folder, target, tree="tree", depth=2, top_k=4)
    ids, states = eagles.conversation(target, draft.needs.hidden, 10)
    draft.advance(Committed(0, ids[:9], NONE, states[:8]))
    context = pairs.context(ids[:9].tolist(), 4)
    guessed = draft._children(draft._state.feed()[0])[0][0]
    draft._network.embed.weight[guessed[3]] = torch.nan  # type: ignore[attr-defined]
    assert draft.propose(context) is None
    draft.advance(Committed(9, ids[9:], NONE, states[8:]))
    assert bool(draft._state.feed()[1].isfinite().all())


@pytest.mark.parametrize("settings", [toys.GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tree", ["chain", "tree", "auto"])
def test_the_text_is_the_targets(tree: str, settings: Settings, tmp_path: Path) -> None:
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target, tree=tree, depth=3)
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings)
    got = toys.answer(ChatCache(target), PROMPT, toys.guard(draft), settings=settings, tokens=6)
    assert got.token_ids == want.token_ids
    assert got.proposed > 0


@pytest.mark.thorough
def test_the_law_of_two_tokens_under_rejection(tmp_path: Path) -> None:
    """Chi-square of the joint law of two tokens against the exact one; the draft knows three of five words."""
    n = 300
    model = toys.target(vocab=5, sharp=0.4)
    draft = toys.guard(eagles.load(eagles.folder(tmp_path, "eagle3", vocab=5, words=3), model))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = proposed = 0
    chat_cache = ChatCache(model)
    for seed in range(n):
        report = toys.answer(
            chat_cache, [1, 2], draft, settings=toys.SAMPLED, seed=seed, rule="rejection", limit=3, tokens=2
        )
        counts[tuple(report.token_ids[:2])] += 1
        accepted, proposed = accepted + report.accepted, proposed + report.proposed
    assert 0.1 < accepted / proposed < 0.9
    plain = toys.target(vocab=5, sharp=0.4)
    first = plain.forward([1, 2], last=True).logits[0].double().softmax(-1)
    chi = 0.0
    for a in range(5):
        second = plain.forward([1, 2, a], last=True).logits[0].double().softmax(-1)
        for b in range(5):
            expected = n * float(first[a] * second[b])
            chi += (counts[a, b] - expected) ** 2 / expected
    assert chi < 24 + 5 * 48**0.5


def test_told_probabilities_are_on_the_words_of_the_draft(tmp_path: Path) -> None:
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target)
    ids, states = eagles.conversation(target, draft.needs.hidden, 9)
    draft.advance(Committed(0, ids, NONE, states))
    proposal = draft.propose(pairs.context(ids.tolist(), 4, SAMPLED, probs=True))
    assert proposal is not None and proposal.probs is not None
    assert proposal.probs.shape == (4, 48)
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(4, dtype=torch.float64))
    words = draft._network.words
    assert words is not None
    others = torch.ones(48, dtype=torch.bool).index_fill_(0, words, False)
    assert bool((proposal.probs[:, others] == 0).all())


def test_budgets_decide_between_chain_and_tree(tmp_path: Path) -> None:
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target, tree="tree", depth=4, top_k=3)
    draft._style = replace(draft._style, tree="auto")  # as it is on a GPU
    ids, states = eagles.conversation(target, draft.needs.hidden, 9)
    draft.advance(Committed(0, ids, NONE, states))
    for nodes in (1, 4, 5, 12, 30, 63):
        proposal = draft.propose(pairs.context(ids.tolist(), nodes))
        assert proposal is not None
        assert (proposal.parents is None) == (nodes <= 4)
        assert proposal.tokens.shape[0] == min(nodes, 3 + 3 * 9)
        if proposal.parents is not None:
            depth = [0]
            for index, parent in enumerate(proposal.parents.tolist()):
                assert parent < index
                depth.append(depth[parent + 1] + 1)
            assert max(depth) <= 4
    assert eagles.load(tmp_path, target, tree="tree", depth=5).shape.depth == 5


def test_a_tree_begins_with_the_token_of_the_targets_noise(tmp_path: Path) -> None:
    """It stands for the likeliest one, once; the chances told are those of the ranks, whatever was drawn."""
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target, tree="tree", depth=3, top_k=4)
    ids, states = eagles.conversation(target, draft.needs.hidden, 9)
    draft.advance(Committed(0, ids, NONE, states))
    tokens, told, others = ids.tolist(), [], 0
    for seed in range(12):
        noise = Noise(seed)
        sampler = Sampler(Settings(temperature=3.0, top_k=0, top_p=1.0), noise, tokens)
        stream = partial(noise.draft_stream, root=len(tokens) - 1)
        context = Context(tokens, 12, False, sampler.chain, sampler.distribution, stream)
        logits = draft._state.feed()[0]
        first = int(context.sample(draft._in_target_ids(logits), len(tokens), [])[0])
        made = draft.propose(context)
        assert made is not None and made.parents is not None and made.confidence is not None
        level = made.tokens[made.parents == -1].tolist()
        assert level[0] == first and len(set(level)) == len(level)
        best = logits.softmax(-1).sort(descending=True).values[0, : len(level)]
        torch.testing.assert_close(made.confidence[made.parents == -1], best, atol=1e-5, rtol=1e-4)
        told.append(first)
        rejecting = draft.propose(replace(context, probs=True))
        assert rejecting is not None and rejecting.probs is None
        likeliest = int(draft._children(logits)[0][0, 0])
        assert int(rejecting.tokens[0]) == likeliest
        others += first != likeliest
    assert others and len(set(told)) > 2


def test_by_itself_it_makes_chains_on_a_cpu(tmp_path: Path) -> None:
    """There a tree takes as long as several plain passes."""
    target = toys.target()
    draft = eagles.load(eagles.folder(tmp_path, "eagle3"), target, depth=4)
    ids, states = eagles.conversation(target, draft.needs.hidden, 9)
    draft.advance(Committed(0, ids, NONE, states))
    proposal = draft.propose(pairs.context(ids.tolist(), 12))
    assert proposal is not None and proposal.parents is None and proposal.tokens.shape == (12,)
    assert draft.line is None and draft.shape.depth == draft.shape.nodes == 32
    target.device = torch.device("cuda")  # where they are captured
    make = Eagle().load
    match = Eagle().check(target.info, str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outrider.drafters.eagle.network.load", lambda *some: draft._network)
        patch.setattr("outrider.core.drafting.state.DraftState", lambda *some, **more: draft._state)
        assert make(target, match, {"depth": 4}).line == 4


def test_equally_likely_nodes_keep_their_parents() -> None:
    """A draft that is sure gives every node of a path the same score."""
    from outrider.drafters.eagle.draft import _likeliest

    tokens, scores = torch.arange(6), torch.zeros(6)
    parents = torch.tensor([-1, -1, 0, 0, 2, 4])
    for count in range(1, 7):
        found, above, _ = _likeliest(tokens, scores, parents, count)
        assert all(parent < index for index, parent in enumerate(above.tolist()))
        assert found.tolist() == list(range(count))


@pytest.mark.parametrize("trained", [False, True])
def test_the_targets_embedding_is_borrowed_unless_another_was_trained(trained: bool, tmp_path: Path) -> None:
    target = toys.target()
    table = target.decoder.weights.embedding.weight
    assert isinstance(table, Tensor)
    own = table + torch.randn(table.shape, generator=torch.Generator().manual_seed(2)) if trained else table * 1.001
    folder = eagles.folder(tmp_path, "eagle3", more={"embed_tokens.weight": own})
    ids = torch.arange(48)
    want = own if trained else target.embed(ids)
    torch.testing.assert_close(eagles.load(folder, target)._network.embed(ids), want, atol=0, rtol=0)
    eagles.change(folder, {"embed_requires_grad": True})
    torch.testing.assert_close(eagles.load(folder, target)._network.embed(ids), own, atol=0, rtol=0)


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("told", "layers", "outputs"),
    [
        ((1, 29, 57), 61, True),
        ((2, 30, 58), 61, False),
        ((24, 30, 36), 36, False),
        ((1, 17, 32), 36, True),
        ((1, 17, 33), 36, True),
        ((1, 3, 8), 8, False),
        ((4, 20, 40), 45, True),
    ],
)
def test_how_nested_layers_count(told: tuple[int, ...], layers: int, outputs: bool) -> None:
    """The instances of public drafts that are known, and the ambiguous rest."""
    assert counts_outputs(told, layers) is outputs


def test_states_where_no_layers_are_told() -> None:
    assert default_states(32) == (2, 16, 29)


@pytest.mark.parametrize(
    ("key", "value", "states"),
    [
        ("eagle_aux_hidden_state_layer_ids", [4, 1, 2], (1, 2, 4)),
        ("aux_hidden_state_layer_ids", [0, 2, 4], (0, 2, 4)),
        ("target_layer_ids", [-1, 1, 3], (0, 2, 4)),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, (1, 2, 3)),
    ],
)
def test_where_the_layers_stand(key: str, value: object, states: tuple[int, ...], tmp_path: Path) -> None:
    target = toys.target(layers=4)
    folder = eagles.folder(tmp_path, "eagle3", states=None)
    eagles.change(folder, {key: value})
    assert eagles.load(folder, target).needs.hidden == states
    assert eagles.load(folder, target, states="0,1,3").needs.hidden == (0, 1, 3)


Change = Mapping[str, Any]
MISFITS: list[tuple[Change, str]] = [
    ({"vocab": 50}, "knows 48 tokens and toy has 50"),
    ({"width": 40}, "reads states 96 wide and those of toy are 40"),
    ({"width": 48}, "names 3 layers and reads 2 states"),
    ({"layers": 1}, "layers that toy with its 1 does not have"),
]


@pytest.mark.parametrize(("change", "reason"), MISFITS)
def test_another_target_is_refused_with_the_reason(change: Change, reason: str, tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path / "draft", "eagle3")
    info = replace(ModelInfo("toy", "llama", 48, 32, 2, "x"), **change)
    match = Eagle().check(info, str(folder))
    assert match.fit == Fit.NO
    assert reason in match.reason


def test_another_tokenizer_or_layer_count_is_refused(tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, "eagle3")
    info = ModelInfo("toy", "llama", 48, 32, 2, "x")
    assert Eagle().check(info, str(folder)).fit == Fit.EXACT
    (folder / "tokenizer.json").write_text(toys.tokenizer_json())
    assert "has another tokenizer than toy" in Eagle().check(info, str(folder)).reason
    (folder / "tokenizer.json").unlink()
    eagles.change(folder, {"num_target_layers": 3})
    assert "is made for 3 layers and toy has 2" in Eagle().check(info, str(folder)).reason


Z = torch.zeros
BROKEN: list[tuple[Change, Change, str]] = [
    ({"layers.0.hidden_norm.weight": None, "fc.weight": None}, {}, "holds d2t|holds layers.0.input|has no tensor"),
    ({"layers.0.mlp.up_proj.weight": None}, {}, r"has no tensor layers\.0\.mlp\.up_proj\.weight"),
    ({"norm.weight": None}, {}, r"has no tensor norm\.weight"),
    ({"prefix_gru.weight": Z(2)}, {}, "holds prefix_gru.weight, which no EAGLE-3 draft has"),
    ({"mask_hidden": Z(1, 1, 96)}, {}, "mask token in the config is None"),
    ({"layers.1.input_layernorm.weight": Z(32)}, {}, r"has no tensor layers\.1\."),
    ({}, {"num_hidden_layers": 2}, "holds 1 layers and the config says 2"),
    ({"d2t": None}, {}, "no table d2t"),
    ({"d2t": Z(19, dtype=torch.int64)}, {}, "d2t has shape"),
    ({"t2d": Z(47, dtype=torch.bool)}, {}, "t2d has shape"),
    ({"d2t": Z(20, dtype=torch.int64) + 40}, {}, "d2t leads outside the vocabulary"),
    ({"d2t": Z(20)}, {}, "d2t holds no whole numbers"),
    ({"fc.weight": Z(30, 96)}, {}, "fc.weight is 30x96, the config says 32x96"),
    ({"layers.0.mlp.up_proj.weight": Z(48, 32, dtype=torch.int64)}, {}, "holds whole numbers"),
    ({"fc_norm.0.weight": Z(32)}, {}, "has 1 norms for 3 states"),
    ({}, {"num_attention_heads": 8}, "the config says"),
    ({}, {"hidden_size": None}, "gives no usable hidden_size"),
    ({}, {"hidden_act": "tan"}, "the config cannot be used"),
    ({}, {"layer_types": ["sliding_attention"]}, "sliding window"),
    ({}, {"partial_rotary_factor": 0.5}, "a part of each head"),
    ({}, {"eagle_aux_hidden_state_layer_ids": ["a"]}, "makes no sense"),
    ({}, {"speculators_model_type": "eagle3"}, "does not describe a layer"),
]


@pytest.mark.parametrize(("tensors", "config", "reason"), BROKEN)
def test_broken_drafts_are_refused_with_the_reason(
    tensors: Change, config: Change, reason: str, tmp_path: Path
) -> None:
    folder = eagles.folder(tmp_path, "eagle3", more=tensors)
    eagles.change(folder, config)
    with pytest.raises(ModelError, match=reason) as caught:
        eagles.load(folder, toys.target())
    assert caught.value.hint


def test_a_pickle_that_is_more_than_tensors_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "pytorch_model.bin"
    for what, why in ((pickle.dumps(print, 2), "could run code"), (b"PK garbage", "cannot be read as a table")):
        file.write_bytes(what)
        with pytest.raises(ModelError, match=why):
            Eagle().check(toys.target().info, str(tmp_path))


def test_asking_loads_no_torch(tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, "eagle3")
    code = f"""
import sys
from outrider.core.drafting import ModelInfo
from outrider.drafters.eagle import Eagle
info = ModelInfo("toy", "llama", 48, 32, 2, "x")
match = Eagle().matches(info)
assert match.fit and not match.ready and "--drafter-weights" in match.reason
assert Eagle().check(info, {str(folder)!r}).ready
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "options",
    [
        {"tree": "bush"},
        {"depth": 0},
        {"depth": "many"},
        {"top_k": 99},
        {"feedback": "both"},
        {"states": "1,2"},
        {"states": "1,2,9"},
        {"states": "a"},
    ],
)
def test_options_that_are_none_are_told(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"The option {next(iter(options))}"):
        eagles.load(eagles.folder(tmp_path, "eagle3"), toys.target(), **options)


def test_a_published_pickle_without_zip_is_read(tmp_path: Path) -> None:
    """Files older than torch's zip format."""
    target = toys.target()
    folder = eagles.folder(tmp_path / "new", "eagle3")
    older = tmp_path / "old"
    older.mkdir()
    (older / "config.json").write_bytes((folder / "config.json").read_bytes())
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, older / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    torch.testing.assert_close(
        eagles.load(older, target)._network.logits(torch.ones(1, 32)),
        eagles.load(folder, target)._network.logits(torch.ones(1, 32)),
    )
    weights["fc.weight"] = weights["fc.weight"].long()
    torch.save(weights, older / "pytorch_model.bin")
    with pytest.raises(BrokenFileError, match="holds whole numbers"):
        eagles.load(older, target)
    save_file(load_file(folder / "model.safetensors"), older / "model.safetensors")  # and a twin is preferred
    eagles.load(older, target)
