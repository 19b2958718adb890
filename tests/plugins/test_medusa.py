"""Medusa: the published heads draft what the reference drafted, in every round; the text is the target's own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ahead
import golden
import pairs
import pytest
import torch
import toys
from ahead import Rides, rides
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import BrokenFileError, DrafterError, ModelError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Sampling
from outrider.core.drafting import Committed, Context, Draft, Fit, ModelInfo, Needs
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.drafters.medusa import Medusa
from outrider.drafters.medusa.draft import MEASURED, MedusaDrafter
from outrider.drafters.medusa.format import MedusaFiles, open_heads
from outrider.drafters.medusa.heads import MedusaHeads, read_heads
from outrider.drafters.medusa.tree import PUBLISHED, Choice, Meter, checked, grow, parents_of, prior

__all__ = ["rides"]

PROMPT = [5, 9, 13, 9, 5, 9, 13]
NONE = torch.empty(0, dtype=torch.int64)


def tensors(
    heads: int = 3, vocab: int = 48, width: int = 32, layers: int = 1, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Random heads."""
    g = torch.Generator().manual_seed(seed)
    made = {}
    for head in range(heads):
        for layer in range(layers):
            made[f"{head}.{layer}.linear.weight"] = torch.randn(width, width, generator=g) / width**0.5
            made[f"{head}.{layer}.linear.bias"] = torch.randn(width, generator=g)
        made[f"{head}.{layers}.weight"] = torch.randn(vocab, width, generator=g)
    return made


def folder(path: Path, weights: dict[str, torch.Tensor], **config: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "medusa_lm_head.safetensors")
    (path / "config.json").write_text(json.dumps({"medusa_num_heads": 2, **config}))
    return path


def info(width: int = 32, vocab: int = 48, **more) -> ModelInfo:
    return ModelInfo("toy", "llama", vocab, width, 2, "toy-48", **more)


def rider(path: Path, target=None, choices: list[Choice] | None = None, **shape) -> MedusaDrafter:
    files = open_heads(folder(path, tensors(**shape)))
    target = target or toys.target()
    return MedusaDrafter(read_heads(files, target), target.info.vocab, choices)


def heads_of(drafter: MedusaDrafter) -> MedusaHeads:
    assert isinstance(drafter._heads, MedusaHeads)
    return drafter._heads


def sorted_draft(tree: list[Choice], draft: Draft) -> tuple[list[int], list[int]]:
    """Tokens and parents (0 is the root) in the order of the reference: by depth, then by rank."""
    order = sorted(range(len(tree)), key=lambda node: (len(tree[node]), tree[node]))
    at = {node: index + 1 for index, node in enumerate(order)} | {-1: 0}
    assert draft.parents is not None
    parents = draft.parents.tolist()
    return [draft.tokens.tolist()[node] for node in order], [at[parents[node]] for node in order]


# ---------------------------------------------------------------------------------------------------- the reference


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.Pair("medusa")


def golden_rider(pair: pairs.Pair, choices: list[Choice] | None) -> MedusaDrafter:
    files, target = open_heads(pair.folder), pair.target()
    return MedusaDrafter(read_heads(files, target), target.info.vocab, choices)


class TestReference:
    def test_heads_say_what_the_reference_says(self, pair: pairs.Pair) -> None:
        drafter = golden_rider(pair, None)
        for i in range(len(pair.prompts)):
            z = pair.tensors[f"p{i}.prefill.state"][0]
            got = torch.stack([head(z) for head in heads_of(drafter)._heads])
            golden.assert_close(got, pair.tensors[f"p{i}.prefill.head_logits"], atol=1e-3)

    @pytest.mark.parametrize("tree", ["small", "mc_sim_7b_63"])
    def test_every_round(self, pair: pairs.Pair, tree: str) -> None:
        small = checked(pair.notes["small_choices"], "medusa_choices", 5, 256)
        choices = small if tree == "small" else sorted(PUBLISHED)
        key = "rounds" if tree == "small" else "rounds_mc_sim_7b_63"
        for i, prompt in enumerate(pair.notes["prompts"]):
            drafter = golden_rider(pair, choices)
            said: dict[int, torch.Tensor] = {}
            voice = heads_of(drafter)
            speak = voice.logits
            voice.logits = lambda state, heads, said=said, speak=speak: said.setdefault(  # type: ignore[method-assign]
                len(said), speak(state, heads)
            )
            report, watch = pairs.ride(pair, drafter, i, 63, limit=130)
            assert report.token_ids[:64] == pair.texts[i]
            for number, (row, (at, draft, accepted)) in enumerate(zip(prompt[key], watch.rows, strict=False)):
                assert (at, accepted) == (row["committed"], row["accepted"])
                assert draft is not None
                if "draft" in row:
                    tokens, parents = sorted_draft(drafter._order, draft)
                    assert tokens == row["draft"]
                    assert parents == pair.notes[f"{tree}.parents"][1:]
                if "tensors" in row:
                    want = pair.tensors[row["tensors"] + "head_logits"]
                    golden.assert_close(said[number], want[: len(said[number])], atol=1e-3)
            assert len(watch.rows) >= len(prompt[key])

    def test_the_pickle_holds_the_same(self, pair: pairs.Pair, tmp_path: Path) -> None:
        (tmp_path / "medusa_lm_head.pt").write_bytes((pair.folder / "medusa_lm_head.pt").read_bytes())
        pickled, plain = open_heads(tmp_path), open_heads(pair.folder)
        assert (pickled.heads, pickled.layers, pickled.vocab, pickled.width) == (5, 1, 256, 64)
        for head in range(5):
            for part in ("0.linear.weight", "0.linear.bias", "1.weight"):
                assert torch.equal(pickled.load(f"{head}.{part}"), plain.load(f"{head}.{part}"))

    def test_a_smaller_budget_and_a_measured_tree(self, pair: pairs.Pair) -> None:
        """Measured on the first two prompts, the tree of 8 nodes wins over the published one's likeliest 8 on the third."""
        kept = {}
        for name in ("measured", "published"):
            drafter = golden_rider(pair, None if name == "measured" else sorted(PUBLISHED))
            for i in (0, 1, 2):
                report, watch = pairs.ride(pair, drafter, i, 8, limit=64)
                assert report.token_ids == pair.texts[i]
            assert all(draft is not None and draft.tokens.shape[0] == 8 for _, draft, _ in watch.rows[:-3])
            kept[name] = report.passes
        assert kept["measured"] < kept["published"]

    def test_switching_to_it_in_the_middle(self, pair: pairs.Pair) -> None:
        drafter = golden_rider(pair, None)
        table = {"none": None, "medusa": toys.guard(drafter, name="medusa")}
        control = toys.Still({9: DrafterChoice(name="medusa", tokens=12)})
        report = toys.answer(ChatCache(pair.target()), pair.prompts[0], table, control=control, limit=64)
        assert report.token_ids == pair.texts[0]
        assert report.accepted > 10  # it drafts from the first state that it hears of


# ---------------------------------------------------------------------------------------------------- trees


class TestTrees:
    def test_the_published_tree(self) -> None:
        assert len(PUBLISHED) == 63
        assert sorted(PUBLISHED) == checked([list(choice) for choice in PUBLISHED], "medusa_choices", 4, 100)

    def test_growing_finds_the_best_tree_of_its_size(self) -> None:
        """Against every tree of 4 nodes over two heads of three ranks."""
        accuracy = [[0.5, 0.3, 0.05], [0.2, 0.6, 0.1]]
        every = grow(12, accuracy)

        def worth(tree: list[Choice]) -> float:
            return sum(math.prod(accuracy[head][rank] for head, rank in enumerate(choice)) for choice in tree)

        def subtrees(size: int, start: int, chosen: list[Choice]):
            if len(chosen) == size:
                yield chosen
                return
            for at in range(start, len(every)):
                if len(every[at]) == 1 or every[at][:-1] in chosen:
                    yield from subtrees(size, at + 1, [*chosen, every[at]])

        assert worth(grow(4, accuracy)) == pytest.approx(max(worth(tree) for tree in subtrees(4, 0, [])))

    def test_a_budget_takes_the_beginning(self) -> None:
        whole = grow(63, prior(4, 10), PUBLISHED)
        assert set(whole) == PUBLISHED
        for nodes in (1, 5, 20):
            assert grow(nodes, prior(4, 10), PUBLISHED) == whole[:nodes]
        assert all(parent < node for node, parent in enumerate(parents_of(whole)))
        assert {len(choice) for choice in grow(63, prior(2, 10), PUBLISHED)} == {1, 2}

    @pytest.mark.parametrize("listed", [7, "ab", [], [[]], [[0], 3], [[0, 0]], [[-1]], [[True]], [[0], [[1]]], [[48]]])
    def test_lists_that_are_no_trees(self, listed: object) -> None:
        with pytest.raises(ModelError, match="medusa_choices"):
            checked(listed, "medusa_choices", 3, 48)

    def test_the_meter_counts_only_what_was_reached(self) -> None:
        meter = Meter(3, 2)
        before = meter.accuracy()
        for _ in range(200):
            meter.learn([[1, 2], [3, 4], [5, 6]], [1, 4])
        after = meter.accuracy()
        assert after[0][0] > 0.95 > 0.05 > after[0][1]
        assert after[1][1] > 0.95
        assert after[2] == before[2]


# ---------------------------------------------------------------------------------------------------- drafting


@pytest.mark.parametrize(
    "settings", [toys.GREEDY, toys.SAMPLED, Settings(temperature=0.8, top_p=0.9, repeat_penalty=1.2)]
)
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_text_is_the_targets(tmp_path: Path, settings: Settings, rule: str) -> None:
    want = toys.answer(ChatCache(toys.target()), PROMPT, settings=settings, limit=60)
    got = toys.answer(
        ChatCache(toys.target()),
        PROMPT,
        toys.guard(rider(tmp_path)),
        settings=settings,
        limit=60,
        tokens=12,
        rule=rule,
    )
    assert got.proposed > 12
    if rule == "match" or settings.temperature == 0:
        assert got.token_ids == want.token_ids


@pytest.mark.thorough
def test_the_law_of_two_tokens_under_rejection(tmp_path: Path) -> None:
    """Chi-square of the joint law of two tokens over 300 seeds, siblings being tried one after the other."""
    vocab, n = 4, 300
    settings = Settings(temperature=1.0, top_p=1.0)
    model = toys.target(vocab=vocab, sharp=0.4)
    drafter = rider(tmp_path, model, vocab=vocab)
    counts = torch.zeros(vocab, vocab)
    for seed in range(n):
        report = toys.answer(
            ChatCache(model),
            [1, 2],
            toys.guard(drafter),
            settings=settings,
            seed=seed,
            rule="rejection",
            limit=3,
            tokens=3,
        )
        counts[tuple(report.token_ids[:2])] += 1
    first = model_law(vocab, [1, 2])
    expected = n * first[:, None] * torch.stack([model_law(vocab, [1, 2, a]) for a in range(vocab)])
    freedom = vocab * vocab - 1
    assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 5 * (2 * freedom) ** 0.5


def model_law(vocab: int, ids: list[int]) -> torch.Tensor:
    return toys.target(vocab=vocab, sharp=0.4).forward(ids, last=True).logits[0].double().softmax(-1)


def test_nothing_is_guessed_without_a_state(tmp_path: Path) -> None:
    drafter = rider(tmp_path)
    ask = pairs.context([1, 2, 3], 8)
    assert drafter.propose(ask) is None
    drafter.advance(Committed(0, torch.tensor([1, 2, 3]), NONE))
    assert drafter.propose(ask) is None
    states = torch.randn(1, 1, 32)
    drafter.advance(Committed(3, torch.tensor([4]), NONE, states))
    draft = drafter.propose(pairs.context([1, 2, 3, 4], 8))
    assert draft is not None and draft.tokens.shape == (8,)
    copy = drafter.fork()
    drafter.rewind(2)
    assert drafter.propose(ask) is None
    twin = copy.propose(pairs.context([1, 2, 3, 4], 8))
    assert twin is not None and torch.equal(twin.tokens, draft.tokens)
    copy.advance(Committed(4, torch.tensor([5]), NONE))
    assert copy.propose(pairs.context([1, 2, 3, 4, 5], 8)) is None


def test_output_that_is_no_number_gives_no_draft(tmp_path: Path) -> None:
    drafter = rider(tmp_path)
    drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.full((1, 1, 32), torch.nan)))
    assert drafter.propose(pairs.context([4], 8)) is None


def test_its_first_guess_shares_the_targets_noise(tmp_path: Path) -> None:
    drafter = rider(tmp_path)
    drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.randn(1, 1, 32)))
    coupled: Context = pairs.context([4], 3, Settings(temperature=2.0, top_p=1.0))
    state = drafter._state.feed()
    want = coupled.sample(heads_of(drafter).logits(state, 3), 1, ()).tolist()
    draft, tree = drafter.propose(coupled), drafter._order[:3]
    assert draft is not None
    for token, choice in zip(draft.tokens.tolist(), tree, strict=True):
        if not any(choice):
            assert token == want[len(choice) - 1]
    told = drafter.propose(pairs.context([4], 3, Settings(temperature=2.0, top_p=1.0), probs=True))
    assert told is not None and told.probs is None
    assert told.tokens[0] == heads_of(drafter).logits(state, 1).argmax()


def test_a_fixed_tree_is_announced_and_stays(tmp_path: Path) -> None:
    choices: list[Choice] = [(0,), (1,), (0, 0), (0, 1), (0, 0, 0), (11,)]
    drafter = rider(tmp_path, choices=choices)
    assert drafter.needs == Needs(hidden=(2,))
    assert (drafter.shape.nodes, drafter.shape.depth) == (6, 3)
    for _ in range(2 * MEASURED):
        drafter.advance(Committed(0, torch.tensor([4]), NONE, torch.randn(1, 1, 32)))
        draft = drafter.propose(pairs.context([4], 6))
        assert draft is not None and draft.parents is not None
        assert tuple(draft.parents.tolist()) == drafter.shape.parents
    few = drafter.propose(pairs.context([4], 2))
    assert few is not None and few.parents is not None and drafter.shape.parents is not None
    assert tuple(few.parents.tolist()) == drafter.shape.parents[:2]


def test_at_the_brim_and_at_the_end(tmp_path: Path) -> None:
    small = len(PROMPT) + 9
    cases: list[dict[str, Any]] = [{"limit": None}, {"limit": 40, "eos": (11, 17, 30)}]
    for limits in cases:
        want = toys.answer(ChatCache(toys.target(context=small)), PROMPT, **limits)
        got = toys.answer(
            ChatCache(toys.target(context=small)), PROMPT, toys.guard(rider(tmp_path)), tokens=40, **limits
        )
        assert (got.token_ids, got.finish) == (want.token_ids, want.finish)


@pytest.mark.parametrize("family", ["gemma3", "lfm2"])
def test_rings_take_trees_and_states_of_one_line_take_its_trunk(tmp_path: Path, family: str) -> None:
    model = golden.Golden(family, tight=True)
    cache = model.new_cache()
    drafter = rider(tmp_path, cache.target, vocab=256, width=64)
    report = toys.answer(cache, model.prompt, toys.guard(drafter), limit=len(model.text), tokens=7)
    assert report.token_ids == model.text
    assert report.proposed > 0


def test_layers_of_a_head_follow_each_other(tmp_path: Path) -> None:
    made = tensors(heads=1, layers=2)
    drafter = rider(tmp_path, heads=1, layers=2)
    start = torch.randn(1, 32)
    y = start
    for layer in range(2):
        y = y + torch.nn.functional.silu(y @ made[f"0.{layer}.linear.weight"].T + made[f"0.{layer}.linear.bias"])
    torch.testing.assert_close(heads_of(drafter)._heads[0](start), y @ made["0.2.weight"].T)


# ---------------------------------------------------------------------------------------------------- files


class TestFiles:
    def check(self, path: Path, model: ModelInfo | None = None):
        return Medusa().check(model or info(), str(path))

    def test_what_fits(self, tmp_path: Path) -> None:
        match = self.check(folder(tmp_path / "heads", tensors(), base_model_name_or_path="maker/model"))
        assert match.fit == Fit.EXACT
        assert match.reason == "heads: 3 Medusa heads, made for maker/model"
        assert match.nbytes == 2 * sum(tensor.numel() for tensor in tensors().values())

    @pytest.mark.parametrize(
        ("model", "why"), [(info(width=64), "width 32, not 64"), (info(vocab=50), "48 tokens, not 50")]
    )
    def test_another_size_is_refused(self, tmp_path: Path, model: ModelInfo, why: str) -> None:
        match = self.check(folder(tmp_path, tensors()), model)
        assert match.fit == Fit.NO
        assert why in match.reason

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({"1.0.linear.bias": None}, "lacks the tensor 1.0.linear.bias"),
            ({"7.1.weight": torch.zeros(48, 32)}, "lacks the tensor 3.0.linear.bias"),
            ({"1.1.weight": torch.zeros(47, 32)}, r"1.1.weight has the shape \[47, 32\]"),
            ({"0.0.weight": torch.zeros(48, 32)}, "holds beside its heads the tensor 0.0.weight"),
            ({"0.0.linear.weight": torch.zeros(32)}, "has the shape"),
            ({"0.1.weight": torch.zeros(32)}, "has 1 axes"),
            ({"0.0.linear.weight": torch.zeros(32, 31)}, r"has the shape \[32, 31\]"),
        ],
    )
    def test_broken_sets_are_named(self, tmp_path: Path, change: dict, why: str) -> None:
        weights = {name: part for name, part in (tensors() | change).items() if part is not None}
        with pytest.raises(BrokenFileError, match=why):
            self.check(folder(tmp_path, weights))

    def test_something_else_is_no_fit(self, tmp_path: Path) -> None:
        match = self.check(folder(tmp_path / "other", {"fc.weight": torch.zeros(2, 2)}))
        assert match.fit == Fit.NO
        assert match.reason.endswith("holds a tensor fc.weight, which no Medusa head has")
        assert self.check(toys.checkpoint(tmp_path / "model")).fit == Fit.NO
        (tmp_path / "pickled").mkdir()
        (tmp_path / "pickled" / "pytorch_model.bin").touch()
        assert self.check(tmp_path / "pickled").fit == Fit.NO

    def test_numbers_that_cannot_be(self, tmp_path: Path) -> None:
        for bad in (torch.full((48, 32), torch.nan), torch.zeros(48, 32, dtype=torch.int32)):
            files = open_heads(folder(tmp_path, tensors() | {"2.1.weight": bad}))
            with pytest.raises(BrokenFileError, match=r"2\.1\.weight"):
                read_heads(files, toys.target())

    def test_pickles_are_data_only(self, tmp_path: Path) -> None:
        file = tmp_path / "medusa_lm_head.pt"
        torch.save({"0.0.linear.weight": Medusa()}, file)
        match = self.check(tmp_path)
        assert match.fit == Fit.NO and "Medusa, which could run code when opened" in match.reason
        file.write_bytes(b"PK\x03\x04 cut off")
        with pytest.raises(BrokenFileError, match="cannot be read"):
            open_heads(tmp_path)
        torch.save(tensors(), file)
        assert isinstance(open_heads(tmp_path), MedusaFiles)

    def test_a_tree_in_the_config(self, tmp_path: Path) -> None:
        path = folder(tmp_path, tensors(heads=2), medusa_choices=[[0], [0, 0], [0, 0, 0], [1]])
        assert open_heads(path).choices() == [(0,), (0, 0), (1,)]
        match = self.check(path)
        assert Medusa().load(toys.target(), match, {}).shape.parents == (-1, 0, -1)

    def test_it_waits_for_heads(self) -> None:
        match = Medusa().matches(info())
        assert match.fit == Fit.FAMILY
        assert not match.ready
        assert "--drafter-weights" in match.reason


class TestThroughTheEngine:
    """From checkpoints in their published form."""

    def ask(self, model: Path, drafter: DrafterChoice):
        request = Generate(
            id=1,
            model=ModelChoice(model=str(model), dtype="fp32", device="cpu"),
            messages=[Message("user", "hello there")],
            sampling=Sampling(temperature=0.0, max_tokens=24, seed=4),
            drafter=drafter,
        )
        return Engine().generate(request, lambda event: None, toys.Still())

    def test_heads_alone(self, tmp_path: Path, medusa_installed: None) -> None:
        model = toys.checkpoint(tmp_path / "model")
        plain = self.ask(model, DrafterChoice(name="none"))
        heads = folder(tmp_path / "heads", tensors(vocab=259))
        got = self.ask(model, DrafterChoice(name="medusa", weights=str(heads), tokens=8))
        assert got.token_ids == plain.token_ids
        assert got.proposed > 0
        other = folder(tmp_path / "other", tensors(vocab=200))
        with pytest.raises(DrafterError, match="200 tokens, not 259"):
            self.ask(model, DrafterChoice(name="medusa", weights=str(other)))

    def test_heads_in_the_targets_own_checkpoint(self, tmp_path: Path, medusa_installed: None) -> None:
        model = toys.checkpoint(tmp_path / "model")
        plain = self.ask(model, DrafterChoice(name="none"))
        own = {f"medusa_head.{name}": part for name, part in tensors(vocab=259).items()}
        file = model / "model.safetensors"
        weights = load_file(file)
        file.unlink()  # it may still be mapped
        save_file(weights | own, file)
        got = self.ask(model, DrafterChoice(name="medusa", tokens=8))
        assert got.token_ids == plain.token_ids
        assert got.proposed > 0


@pytest.fixture
def medusa_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point as the package announces it, also where the checkout was installed before it was there."""
    from importlib.metadata import EntryPoint

    from outrider.core.drafting import registry

    point = EntryPoint("medusa", "outrider.drafters.medusa:Medusa", registry.GROUP)
    known = [entry for entry in registry.entries() if entry.name != "medusa"]
    monkeypatch.setattr(registry, "entries", lambda: [*known, registry.Entry("medusa", "outrider", "0", point)])


def test_drafts_on_the_device(rides: Rides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they say of the heads is the same."""
    files, meters = open_heads(folder(tmp_path, tensors())), list[Meter]()

    def make(target: TargetModel) -> MedusaDrafter:
        made = MedusaDrafter(read_heads(files, target), 48)
        meters.append(made._meter)
        return made

    monkeypatch.setattr(
        "outrider.drafters.medusa.draft.MEASURED", 1000
    )  # when a tree is grown anew is a round later there
    ahead.same(rides, toys.target(), make, 12)
    host, there = meters[:2]
    assert 20 < 2 * host.rounds <= there.rounds <= 2 * host.rounds + 4  # the host's last rounds may want no draft
    start = sum(prior(2, len(there._hits[0]))[0]) * 8
    assert sum(there._hits[0]) - start == pytest.approx(2 * (sum(host._hits[0]) - start), abs=4)
