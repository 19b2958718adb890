"""P-EAGLE: every draft is what one plain pass over all tokens gives, the text is the target's, bad files are refused.

The formulas are those of `peagles`, in float64, with everything computed anew for each draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import eagles
import pairs
import pytest
import torch
import toys
from eagles import NONE, PROMPT, WIDTH
from peagles import KINDS, STATES, Formula, folder
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Context, Draft, Fit
from outrider.core.drafting.state import DraftState
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.eagle import Eagle
from outrider.drafters.eagle.draft import EagleDrafter, Style
from outrider.drafters.eagle.parallel import Parallel

SAMPLED = Settings(temperature=0.9, top_p=0.95)


def load(path: Path, target: TargetModel, **options: object) -> Parallel:
    match = Eagle().check(target.info, str(path))
    assert match.fit == Fit.EXACT, match.reason
    rider = Eagle().load(target, match, options)
    assert isinstance(rider, Parallel)
    return rider


class Seen:
    """A drafter whose proposals are written down: all tokens that it followed, the draft, its logits [n, V]."""

    def __init__(self, inner: EagleDrafter) -> None:
        self.inner, self.needs, self.shape = inner, inner.needs, inner.shape
        self.reset, self.rewind, self.close, self.fork = inner.reset, inner.rewind, inner.close, inner.fork
        self.advance = inner.advance
        self.made: list[tuple[list[int], Draft, Tensor]] = []

    def propose(self, context: Context) -> Draft | None:
        rows: list[Tensor] = []

        def sample(logits: Tensor, position: int, path: Sequence[int]) -> Tensor:
            rows.append(logits)
            return context.sample(logits, position, path)

        draft = self.inner.propose(replace(context, sample=sample))
        if draft is not None:
            self.made.append((list(context.tokens), draft, torch.cat(rows)))
        return draft


def same(seen: Seen, path: Path, target: TargetModel, first: int = 1) -> None:
    """Every proposal is the formula's; the states of tokens from number `first` on were known."""
    formula, words = Formula(path), seen.inner._network.words
    assert seen.made and words is not None
    for tokens, draft, logits in seen.made:
        ids = torch.tensor(tokens)
        states = target.forward(ids, states=STATES).hidden
        assert states is not None
        at = torch.arange(first - 1, len(ids) - 1)
        want, drafted = formula.draft(ids[first:], states[first - 1 : -1], at, len(draft.tokens))
        assert draft.tokens.tolist() == drafted
        torch.testing.assert_close(logits[:, words].double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_of_many_rounds_are_those_of_the_formulas(kind: str, tmp_path: Path) -> None:
    """Heard in pieces of every size, with wrong turns taken back, and budgets that change."""
    target = toys.target()
    path = folder(tmp_path, kind)
    seen = Seen(load(path, target))
    assert seen.needs.hidden == STATES
    ids, states = eagles.conversation(target, STATES, 40)
    for start, end in pairwise((0, 6, 7, 12, 13, 21, 40)):
        seen.advance(Committed(start, ids[start:end], NONE, states[max(0, start - 1) : end - 1]))
        for nodes in (4, 1, 7):  # the first from a pass over what was heard, the others from masked rows alone
            assert seen.propose(pairs.context(ids[:end].tolist(), nodes)) is not None
        wrong = ids[:3].flip(0)
        seen.advance(Committed(end, wrong, NONE, states[:3]))
        if end % 2:
            seen.inner.propose(pairs.context([*ids[:end].tolist(), *wrong.tolist()], 5))
        seen.rewind(end)
    assert len({len(draft.tokens) for _, draft, _ in seen.made}) == 3
    seen.rewind(30)
    assert seen.propose(pairs.context(ids[:30].tolist(), 4)) is not None  # its state is still known
    seen.advance(Committed(30, ids[30:33], NONE, states[29:32]))
    assert seen.propose(pairs.context(ids[:33].tolist(), 4)) is not None
    same(seen, path, target)


def test_all_tokens_come_from_one_pass_and_only_true_rows_stay(tmp_path: Path) -> None:
    target = toys.target()
    draft = load(folder(tmp_path), target)
    ids, states = eagles.conversation(target, STATES, 20)
    passes: list[int] = []
    entry = draft._network.embed

    def counted(ids: Tensor) -> Tensor:
        passes.append(len(ids))
        return entry(ids)

    network = replace(draft._network, embed=counted)
    mixers = network.layers.mixers
    state = DraftState(target, mixers, network.tables, network.entry.fuse, network.run)
    draft = Parallel(network, state, STATES, 48, Style(tree="chain"))
    draft.advance(Committed(0, ids[:12], NONE, states[:11]))
    assert draft.propose(pairs.context(ids[:12].tolist(), 6)) is not None
    draft.advance(Committed(12, ids[12:15], NONE, states[11:14]))
    assert draft.propose(pairs.context(ids[:15].tolist(), 6)) is not None
    assert passes == [11 + 5, 3 + 5]
    assert pairs.positions(state) == list(range(14))
    assert len(state.rows) == 3


def test_tokens_without_states_leave_a_gap_and_positions_stay_true(tmp_path: Path) -> None:
    target, path = toys.target(), folder(tmp_path)
    seen = Seen(load(path, target))
    ids, states = eagles.conversation(target, STATES, 20)
    seen.advance(Committed(0, ids[:12], NONE, None))
    assert seen.propose(pairs.context(ids[:12].tolist(), 3)) is None
    seen.advance(Committed(12, ids[12:16], NONE, states[13:15]))  # states for the last two only
    assert seen.propose(pairs.context(ids[:16].tolist(), 3)) is not None
    same(seen, path, target, first=14)
    seen.advance(Committed(16, ids[16:18], NONE, None))
    assert seen.propose(pairs.context(ids[:18].tolist(), 3)) is None
    seen.advance(Committed(18, ids[18:], NONE, states[17:]))
    draft = seen.propose(pairs.context(ids.tolist(), 3))
    known = torch.tensor([13, 14, 17, 18])
    want, drafted = Formula(path).draft(ids[known + 1], states[known], known, 3)
    assert draft is not None and draft.tokens.tolist() == drafted
    torch.testing.assert_close(seen.made[-1][2][:, seen.inner._network.words].double(), want, atol=1e-4, rtol=1e-4)


def test_a_fork_goes_its_own_way(tmp_path: Path) -> None:
    target = toys.target()
    draft = load(folder(tmp_path), target)
    ids, states = eagles.conversation(target, STATES, 20)
    draft.advance(Committed(0, ids[:10], NONE, states[:9]))
    context = pairs.context(ids[:10].tolist(), 4)
    want = draft.propose(context)
    copy = draft.fork()
    assert isinstance(copy, Parallel) and copy._network is draft._network
    same = copy.propose(context)
    assert want is not None and same is not None
    assert same.tokens.tolist() == want.tokens.tolist()
    copy.rewind(4)
    copy.advance(Committed(4, ids[10:], NONE, states[10:]))
    assert copy.propose(pairs.context([*ids[:4].tolist(), *ids[10:].tolist()], 4)) is not None
    again = draft.propose(context)
    assert again is not None and again.tokens.tolist() == want.tokens.tolist()


def test_what_is_no_number_is_not_proposed_and_does_not_stay(tmp_path: Path) -> None:
    """Broken masked rows spoil a draft of more than one token, and nothing after it."""
    target = toys.target()
    blank = torch.randn(1, 1, 96, generator=torch.Generator().manual_seed(1))
    path = folder(tmp_path / "good", more={"mask_hidden": blank.clone()})
    blank[..., 5] = torch.nan
    seen = Seen(load(folder(tmp_path / "bad", more={"mask_hidden": blank}), target))
    ids, states = eagles.conversation(target, STATES, 12)
    seen.advance(Committed(0, ids[:6], NONE, states[:5]))
    assert seen.propose(pairs.context(ids[:6].tolist(), 4)) is None
    assert pairs.positions(seen.inner._state) == []
    seen.advance(Committed(6, ids[6:11], NONE, states[5:10]))
    for nodes in (1, 4, 1):
        assert (seen.propose(pairs.context(ids[:11].tolist(), nodes)) is None) == (nodes > 1)
    seen.advance(Committed(11, ids[11:], NONE, states[10:]))
    assert seen.propose(pairs.context(ids.tolist(), 1)) is not None
    same(seen, path, target)


def test_an_eagle_of_several_layers_drafts_one_after_another(tmp_path: Path) -> None:
    """The same files without what stands for unknown tokens are an EAGLE-3."""
    target = toys.target()
    path = folder(tmp_path, more={"mask_hidden": None}, config={"pard_token": None, "embed_requires_grad": True})
    draft = eagles.load(path, target)
    assert not isinstance(draft, Parallel)
    ids, states = eagles.conversation(target, STATES, 11)
    draft.advance(Committed(0, ids, NONE, states))
    got = draft.propose(pairs.context(ids.tolist(), 5))
    formula, tokens = Formula(path), ids[1:]
    g = formula.fused(states.double())
    for _ in range(5):
        f = formula.features(tokens, g, torch.arange(len(tokens)))[-1:]
        tokens = torch.cat((tokens, torch.tensor([formula.word(formula.logits(f)[0])])))
        g = torch.cat((g, f))
    assert got is not None and got.tokens.tolist() == tokens[10:].tolist()


# ---------------------------------------------------------------------------------------------------- the engine's loop


FEW: dict[str, Any] = {"seed": 3, "vocab": 6, "sharp": 0.4}  # few words, so that chance accepts some of the drafts
START = [0, 0, 5]


@pytest.mark.parametrize("settings", [toys.GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_the_targets(settings: Settings, tmp_path: Path) -> None:
    """Drafts are accepted whole, in part and not at all; greedy ones are the formula's in every round."""
    path = folder(tmp_path, vocab=6, words=5)
    seen = Seen(load(path, toys.target(**FEW)))
    want = toys.answer(ChatCache(toys.target(**FEW)), START, settings=settings, limit=60)
    got = toys.answer(ChatCache(toys.target(**FEW)), START, toys.guard(seen), settings=settings, limit=60, tokens=5)
    assert got.token_ids == want.token_ids
    assert 0 < got.accepted < got.proposed
    if settings is toys.GREEDY:
        assert "AAC" in got.kinds
        same(seen, path, toys.target(**FEW))


def test_a_hot_switch_starts_where_states_are_known(tmp_path: Path) -> None:
    path = folder(tmp_path)
    seen = Seen(load(path, toys.target()))
    drafters = {"none": None, "eagle": toys.guard(seen, name="eagle")}
    switches = {12: DrafterChoice(name="eagle", tokens=5)}
    want = toys.answer(ChatCache(toys.target()), PROMPT)
    got = toys.answer(ChatCache(toys.target()), PROMPT, drafters, control=toys.Still(switches))
    assert got.token_ids == want.token_ids
    assert got.proposed > 20
    same(seen, path, toys.target(), first=pairs.positions(seen.inner._state)[0] + 1)


def test_an_eos_inside_a_draft_ends_the_answer(tmp_path: Path) -> None:
    """The first token of a draft of five is accepted and ends the text; the next turn is drafted as ever."""
    path, cache = folder(tmp_path, vocab=6, words=5), ChatCache(toys.target(**FEW))
    seen = Seen(load(path, toys.target(**FEW)))
    guarded = toys.guard(seen)
    text = toys.answer(cache, START, guarded, limit=60, tokens=5).token_ids
    drafts = {len(tokens) - len(START): draft.tokens.tolist() for tokens, draft, _ in seen.made}
    end = next(at for at, draft in drafts.items() if len(draft) == 5 and draft[0] == text[at])
    assert text.index(text[end]) == end
    ended = toys.answer(cache, START, guarded, limit=60, tokens=5, eos=[text[end]])
    assert (ended.token_ids, ended.finish) == (text[:end], "stop")
    seen.made.clear()
    assert toys.answer(cache, START, guarded, limit=60, tokens=5).token_ids == text
    assert len(seen.made) > len(drafts) - 3  # one token of the prompt has no state


def test_the_context_ends(tmp_path: Path) -> None:
    small = toys.target(context=40)
    draft = load(folder(tmp_path), small)
    want = toys.answer(ChatCache(toys.target(context=40)), PROMPT, limit=None)
    got = toys.answer(ChatCache(small), PROMPT, toys.guard(draft), tokens=12, limit=None)
    assert got.token_ids == want.token_ids
    assert len(got.token_ids) == 40 - len(PROMPT)


def unsure(words: int) -> dict[str, Tensor]:
    """A head whose laws are flat enough for the likeliest word not to be drawn always."""
    return {"lm_head.weight": torch.randn(words, WIDTH, generator=torch.Generator().manual_seed(5)) / WIDTH**0.5}


def test_told_probabilities_are_the_laws_of_the_rows(tmp_path: Path) -> None:
    target, path = toys.target(), folder(tmp_path, more=unsure(20))
    draft = load(path, target)
    ids, states = eagles.conversation(target, STATES, 9)
    draft.advance(Committed(0, ids, NONE, states))
    context = pairs.context(ids.tolist(), 4, toys.SAMPLED, probs=True)
    proposal = draft.propose(context)
    assert proposal is not None and proposal.probs is not None
    want, _ = Formula(path).draft(ids[1:], states, torch.arange(8), 4)
    words = draft._network.words
    assert words is not None
    torch.testing.assert_close(proposal.probs[:, words], want.softmax(-1), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(4, dtype=torch.float64))
    drawn = [context.rng(9 + row).draw(law) for row, law in enumerate(proposal.probs)]  # the same noise at every call
    assert proposal.tokens.tolist() == drawn != proposal.probs.argmax(-1).tolist()


@pytest.mark.thorough
def test_the_law_of_two_tokens_under_rejection(tmp_path: Path) -> None:
    """Chi-square of the joint law of the second and third token against the exact one; the draft knows three of five words."""
    n = 300
    model = toys.target(vocab=5, sharp=0.4)
    draft = toys.guard(load(folder(tmp_path, vocab=5, words=3, more=unsure(3)), model))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = proposed = 0
    cache = ChatCache(model)
    for seed in range(n):
        report = toys.answer(
            cache, [1, 2], draft, settings=toys.SAMPLED, seed=seed, rule="rejection", limit=4, tokens=2
        )
        counts[tuple(report.token_ids[1:3])] += 1
        accepted, proposed = accepted + report.accepted, proposed + report.proposed
    assert 0.1 < accepted / proposed < 0.9
    plain = toys.target(vocab=5, sharp=0.4)

    def law(ids: list[int]) -> Tensor:
        return plain.forward(ids, last=True).logits[0].double().softmax(-1)

    expected = torch.zeros(5, 5, dtype=torch.float64)
    for a in range(5):
        for b in range(5):
            expected[b] += law([1, 2])[a] * law([1, 2, a])[b] * law([1, 2, a, b])
    chi = sum(
        (counts[b, c] - n * float(expected[b, c])) ** 2 / (n * float(expected[b, c]))
        for b in range(5)
        for c in range(5)
    )
    assert chi < 24 + 5 * 48**0.5


# ---------------------------------------------------------------------------------------------------- what is refused


def test_what_the_files_say(tmp_path: Path) -> None:
    target = toys.target()
    for kind in KINDS:
        path = folder(tmp_path / kind, kind)
        assert "is a P-EAGLE draft for models like toy" in Eagle().check(target.info, str(path)).reason
    with pytest.raises(UsageError, match="The option tree is 'tree'"):
        load(tmp_path / "normed", target, tree="tree")
    assert load(tmp_path / "normed", target, tree="chain").shape == load(tmp_path / "normed", target).shape


def test_its_embedding_is_kept_even_where_it_is_almost_the_targets(tmp_path: Path) -> None:
    target = toys.target()
    table = target.decoder.weights.embedding.weight
    assert isinstance(table, Tensor)
    draft = load(folder(tmp_path / "own", more={"embed_tokens.weight": table * 1.001}), target)
    torch.testing.assert_close(draft._network.embed(torch.arange(48)), table * 1.001, atol=0, rtol=0)
    draft = load(folder(tmp_path / "none", more={"embed_tokens.weight": None}), target)
    torch.testing.assert_close(draft._network.embed(torch.arange(48)), table, atol=0, rtol=0)


Z = torch.zeros
BROKEN: list[tuple[str, dict[str, Tensor | None], dict[str, Any], str]] = [
    ("speculators", {"mask_hidden": None}, {}, "has no tensor mask_hidden"),
    ("specforge", {"mask_hidden": None}, {}, "has no tensor mask_hidden"),
    ("speculators", {"mask_hidden": None}, {"mask_token_id": None}, "has no tensor mask_hidden"),
    ("speculators", {"mask_hidden": Z(1, 1, 64)}, {}, r"mask_hidden has shape \(1, 1, 64\) where 96 numbers belong"),
    ("specforge", {"mask_hidden": Z(2, 96)}, {}, r"mask_hidden has shape \(2, 96\) where 96 numbers belong"),
    ("specforge", {}, {"pard_token": 48}, "mask token in the config is 48; there are 48 tokens"),
    ("specforge", {}, {"pard_token": -1}, "mask token in the config is -1"),
    ("specforge", {}, {"pard_token": "3"}, "mask token in the config is '3'"),
    ("speculators", {}, {"mask_token_id": True}, "mask token in the config is True"),
    ("speculators", {}, {"mask_token_id": None}, "mask token in the config is None"),
    ("specforge", {}, {"num_hidden_layers": 4}, "holds 3 layers and the config says 4"),
    ("specforge", {"layers.2.mlp.up_proj.weight": None}, {}, r"has no tensor layers\.2\.mlp\.up_proj\.weight"),
    ("specforge", {"layers.1.input_layernorm.weight": None}, {}, r"has no tensor layers\.1\.input_layernorm\.weight"),
    ("specforge", {"layers.1.self_attn.q_norm.weight": Z(8)}, {}, "holds layers.1.self_attn.q_norm.weight, which no"),
    ("specforge", {"layers.1.self_attn.q_proj.weight": Z(32, 64)}, {}, "q_proj.weight is 32x64, the config says 32x32"),
    ("specforge", {"layers.0.hidden_norm.weight": None}, {}, "which no EAGLE-1 draft has"),
]


@pytest.mark.parametrize(("kind", "tensors", "config", "reason"), BROKEN)
def test_broken_drafts_are_refused_with_the_reason(
    kind: str, tensors: dict[str, Tensor | None], config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = folder(tmp_path, kind, more=tensors, config=config)
    with pytest.raises(ModelError, match=reason) as caught:
        load(path, toys.target())
    assert caught.value.hint
