"""LayerSkip: drafts of the reference in every round, nothing left in the target's cache, the exit found by measurement."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import pairs
import pytest
import torch
import toys

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.decode.round_result import RoundResult
from outrider.core.drafting import Committed, Context, Draft, Fit, ModelInfo, Needs
from outrider.core.formats.checkpoint import describe
from outrider.core.model.decoder import Decoder
from outrider.core.model.model import TargetModel
from outrider.core.policy.policy import Candidate, Choice, Policy
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.composite import Composite
from outrider.drafters.layerskip import ENOUGH, LayerSkip, LayerSkipDrafter, Meter

PROMPT = [5, 9, 13, 9, 5, 9, 13]
EXIT, K = 3, 5
NONE = torch.empty(0, dtype=torch.int64)


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.Pair("layerskip")


def filled(pair: pairs.Pair, ids: list[int]) -> TargetModel:
    target = pair.target()
    target.forward(ids)
    target.commit(len(ids))
    return target


class TestReference:
    def test_every_draft(self, pair: pairs.Pair) -> None:
        """Each recorded round by itself, the first one too, whose root is the prompt's last token."""
        assert (pair.notes["exit_layer"], pair.notes["drafts_per_round"]) == (EXIT, K)
        for i, prompt in enumerate(pair.notes["prompts"]):
            text = [*pair.prompts[i], *pair.texts[i]]
            for row in prompt["rounds"]:
                at, wanted = row["committed"], row["draft"]
                if wanted == [row["root"]] and "note" in row:
                    continue  # at the limit nothing is drafted; the root stands in its place
                assert text[at] == row["root"]
                target = filled(pair, text[:at])
                draft = LayerSkipDrafter(target, [EXIT]).propose(pairs.context(text[: at + 1], len(wanted)))
                assert draft is not None
                assert draft.tokens.tolist() == wanted
                if "tensors" in row:
                    self.same_numbers(pair, target, row, at)

    def same_numbers(self, pair: pairs.Pair, target: TargetModel, row: dict, at: int) -> None:
        ids = torch.tensor([row["root"], *row["draft"]])
        residual = target.early(ids[:-1], at, EXIT)
        made = {name: pair.tensors[row["tensors"] + name] for name in ("exit_query", "exit_logits", "verify_logits")}
        golden.assert_close(residual, made["exit_query"][0, -len(residual) :], atol=1e-3)
        golden.assert_close(target.head(target.norm(residual)), made["exit_logits"], atol=1e-3)
        golden.assert_close(target.forward(ids).logits, made["verify_logits"][0], atol=1e-3)

    def test_every_round_of_a_whole_answer(self, pair: pairs.Pair) -> None:
        compared = 0
        for i, prompt in enumerate(pair.notes["prompts"]):
            wanted = {row["committed"]: row for row in prompt["rounds"] if "note" not in row}
            target = pair.target()
            report, watch = pairs.ride(pair, LayerSkipDrafter(target, [EXIT]), i, K, target)
            assert report.token_ids == pair.texts[i]
            for at, draft, accepted in watch.rows:
                if at in wanted and draft is not None and len(draft.tokens) == len(wanted[at]["draft"]):
                    compared += 1
                    assert (draft.tokens.tolist(), accepted) == (wanted[at]["draft"], wanted[at]["accepted"])
        assert compared > 50

    @pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED])
    def test_verifying_begins_at_the_exit(
        self, pair: pairs.Pair, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Rows times layers of a round: n drafts and their pass took n E + (1 + n) L, and take (1 + n) L for the same text."""
        layers, counted = pair.info.layers, toys.Counted(monkeypatch)

        def rounds(*, whole: bool) -> tuple[list[int], list[int]]:
            spent = list[int]()

            def watch(done: RoundResult, _: object) -> None:
                n, work = done.proposed, counted.work()
                if done.draft_s:  # not the prompt
                    assert done.from_exit == (n > 0 and not whole)
                    assert work == (n * EXIT if whole else 0) + (1 + n) * layers
                    spent.append(work)

            with monkeypatch.context() as patch:
                if whole:
                    patch.setattr(TargetModel, "_record_early", lambda *_: None)
                target = pair.target()
                report, _ = pairs.ride(
                    pair, LayerSkipDrafter(target, [EXIT]), 0, K, target, watch=watch, settings=settings
                )
            return report.token_ids, spent

        (text, before), (got, now) = rounds(whole=True), rounds(whole=False)
        assert got == text
        assert text == pair.texts[0] or settings is not toys.GREEDY
        assert len(before) == len(now) > 10
        assert sum(now) < 0.8 * sum(before)

    def test_the_exit_is_found(self, pair: pairs.Pair) -> None:
        """The model was trained to exit after layer 3, so an exit before it is right less often and none behind it pays more."""
        target = pair.target()
        drafter = LayerSkipDrafter(target, [1, 2, 3, 4])
        report, _ = pairs.ride(pair, drafter, 0, K, target)
        assert report.token_ids == pair.texts[0]
        assert drafter._meter.settled
        right = dict(zip(drafter._meter.exits, drafter._meter._right, strict=True))
        assert right[1] < right[2] < right[3]
        assert drafter._meter.best() == 3
        assert drafter.fork()._meter is drafter._meter

    def test_switching_to_it_in_the_middle(self, pair: pairs.Pair) -> None:
        target = pair.target()
        table = {"none": None, "layerskip": toys.guard(LayerSkipDrafter(target, [2, 3]), name="layerskip")}
        control = toys.Still({9: DrafterChoice(name="layerskip", tokens=4)})
        report = toys.answer(ChatCache(target), pair.prompts[0], table, control=control, limit=64)
        assert report.token_ids == pair.texts[0]
        assert report.accepted > 10


def measure_acceptance(
    settings: Settings = toys.GREEDY, *, layers: int = 4, exits: tuple[int, ...] = (1, 2), context: int = 256, **more
):
    target = toys.target(layers=layers, context=context)
    return toys.answer(
        ChatCache(target), PROMPT, toys.guard(LayerSkipDrafter(target, exits)), settings=settings, tokens=6, **more
    )


@pytest.mark.parametrize(
    "settings", [toys.GREEDY, toys.SAMPLED, Settings(temperature=0.8, top_p=0.9, repeat_penalty=1.2)]
)
def test_the_text_is_the_targets(settings: Settings) -> None:
    want = toys.answer(ChatCache(toys.target(layers=4)), PROMPT, settings=settings)
    got = measure_acceptance(settings)
    assert got.token_ids == want.token_ids
    assert got.proposed > 0


def test_a_draft_that_ends_early_leaves_no_layer_to_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next token was looked at and not picked, so that all early layers have run, also where nothing was picked at all."""
    counted, rounds = toys.Counted(monkeypatch), list[RoundResult]()
    target, wanted = toys.target(layers=4), [0, 2, 1, 0, 3, 0]

    def watch(done: RoundResult, _: object) -> None:
        if rounds or done.draft_s:
            rounds.append(done)
            assert counted.work() == 4 * (1 + done.proposed)
        counted.calls.clear()

    class Unsure(LayerSkipDrafter):
        def propose(self, context: Context) -> Draft | None:
            length = wanted[len(rounds) % len(wanted)]
            return super().propose(replace(context, worth_drafting=lambda depth, _: depth < length))

    got = toys.answer(ChatCache(target), PROMPT, toys.guard(Unsure(target, [2])), tokens=6, watch=watch)
    assert got.token_ids == toys.answer(ChatCache(toys.target(layers=4)), PROMPT).token_ids
    assert {done.proposed for done in rounds} == {0, 1, 2, 3}
    assert all(done.from_exit for done in rounds[:-1])


@pytest.mark.parametrize("exits", [(2,), (1, 2)])
def test_among_others_the_draft_that_is_verified_counts(
    exits: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With states below the exit, with drafts of others, and with drafts of others in the place of one that was given up."""
    want = toys.answer(ChatCache(toys.target(layers=4)), PROMPT, limit=90).token_ids
    target, begun = toys.target(layers=4), dict[str, set[bool]]()
    parts = [
        toys.guard(LayerSkipDrafter(target, exits), name="layerskip"),
        toys.guard(toys.Listener(), name="listener"),
        toys.guard(toys.Knows(len(PROMPT), want, right=2), name="knows"),
    ]
    policy = Policy()
    composite = Composite(parts, policy)
    turns = itertools.cycle(["layerskip", "knows", "layerskip", "layerskip", "listener"])

    def choose(now: object, candidates: Callable[[], Sequence[Candidate]] | None, *, instead: bool = False) -> Choice:
        names = [one.name for one in (candidates() if candidates else ())]
        if not names:
            return Choice("off")
        name = next(turns)
        return Choice("probe", name if name in names else names[0], 3)

    monkeypatch.setattr(policy, "choose", choose)

    def watch(done: RoundResult, _: object) -> None:
        begun.setdefault(done.drafter, set()).add(done.from_exit)

    got = toys.answer(ChatCache(target), PROMPT, composite, limit=90, policy=policy, watch=watch)
    assert got.token_ids == want
    assert True in begun["layerskip"]
    assert begun["knows"] == begun["listener"] == {False}


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("family", ["gemma3", "gpt_oss", "deepseek_v3"])
def test_rings_and_latents_take_drafts(family: str, tight: bool) -> None:
    """Keys and values of rejected drafts must not stay in a ring, nor push out what is still seen."""
    model = golden.Golden(family, tight=tight)
    cache = model.new_cache()
    report = toys.answer(
        cache, model.prompt, toys.guard(LayerSkipDrafter(cache.target, [1])), limit=len(model.text), tokens=5
    )
    assert report.token_ids == model.text
    assert report.proposed > 0


@pytest.mark.thorough
def test_the_law_of_two_tokens_under_rejection() -> None:
    """Chi-square of the joint law of two tokens over 300 seeds, drafts telling their probabilities."""
    vocab, n = 4, 300
    model = toys.target(vocab=vocab, sharp=0.4)
    counts, kept = torch.zeros(vocab, vocab), 0
    for seed in range(n):
        report = toys.answer(
            ChatCache(model),
            [1, 2],
            toys.guard(LayerSkipDrafter(model, [1])),
            settings=toys.SAMPLED,
            seed=seed,
            rule="rejection",
            limit=3,
            tokens=2,
        )
        counts[tuple(report.token_ids[:2])] += 1
        kept += report.accepted
    law = [
        toys.target(vocab=vocab, sharp=0.4).forward([1, 2, *more]).logits[-1].double().softmax(-1)
        for more in [[], *([a] for a in range(vocab))]
    ]
    expected = n * law[0][:, None] * torch.stack(law[1:])
    freedom = vocab * vocab - 1
    assert float(((counts - expected) ** 2 / expected).sum()) < freedom + 5 * (2 * freedom) ** 0.5
    assert kept > n / 4


@pytest.mark.thorough
@pytest.mark.parametrize("probs", [False, True])
def test_it_draws_from_the_exits_law(probs: bool) -> None:
    """With the target's noise of the right position, or from the `draft` stream, the law being told."""
    target = toys.target()
    target.forward(PROMPT[:-1])
    target.commit(len(PROMPT) - 1)
    ask = pairs.context(PROMPT, 4, toys.SAMPLED, probs=probs)
    draft = LayerSkipDrafter(target, [1]).propose(ask)
    assert draft is not None
    assert (draft.probs is not None) == probs
    path: list[int] = []
    for index, token in enumerate(draft.tokens.tolist()):
        ids = torch.tensor([PROMPT[-1], *path])
        logits = target.head(target.norm(target.early(ids, len(PROMPT) - 1, 1)))[-1:]
        at = len(PROMPT) + index
        law = ask.to_probs(logits[0], path)
        if draft.probs is not None:
            torch.testing.assert_close(draft.probs[index], law, atol=1e-6, rtol=1e-4)
        assert token == (ask.rng(at).draw(law) if probs else int(ask.sample(logits, at, path)[0]))
        path.append(token)


def test_at_the_brim_and_at_the_end() -> None:
    small = len(PROMPT) + 9
    cases: list[dict[str, Any]] = [{"limit": None}, {"limit": 40, "eos": (11, 17, 30)}]
    for limits in cases:
        want = toys.answer(ChatCache(toys.target(context=small, layers=4)), PROMPT, **limits)
        for exits in ((1, 2), (3,)):
            begun = list[bool]()
            got = measure_acceptance(
                context=small, exits=exits, watch=lambda done, _, begun=begun: begun.append(done.from_exit), **limits
            )
            assert (got.token_ids, got.finish) == (want.token_ids, want.finish)
            assert any(begun)


def test_output_that_is_no_number_gives_no_draft() -> None:
    target = toys.target()
    target.early = lambda ids, start, layers: torch.full((1, 32), torch.nan)  # type: ignore[method-assign]
    assert LayerSkipDrafter(target, [1]).propose(pairs.context([4], 8)) is None


class TestMeasuring:
    def test_states_are_compared_with_the_targets_own_choice(self) -> None:
        target = toys.target()
        drafter = LayerSkipDrafter(target, [1, 2])
        assert drafter.needs == Needs(hidden=(1, 2, 2), early=2)
        good, bad = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
        drafter.advance(Committed(0, torch.arange(3), NONE, torch.stack([torch.stack([bad, good, good])] * 3)))
        assert (drafter._meter._right, drafter._meter.seen) == ([0, 3], 3)
        drafter.advance(Committed(3, torch.arange(2), NONE))  # a hot switch: nothing is known of these
        assert drafter._meter.seen == 3
        drafter.advance(Committed(5, torch.arange(20), NONE, torch.zeros(20, 3, 32)))
        assert drafter._meter.seen == 11  # only the newest

    def test_what_is_settled_is_measured_no_more(self) -> None:
        meter = Meter([1, 2], ModelInfo("m", "llama", 100, 100, 8, "x"))
        drafter = LayerSkipDrafter(toys.target(), [1, 2], meter)
        meter.learn([0, ENOUGH], ENOUGH)
        drafter.advance(Committed(0, torch.arange(1), NONE, torch.zeros(1, 3, 32)))
        assert meter.seen == ENOUGH
        assert meter.best() == 2

    @pytest.mark.parametrize(
        ("right", "best"), [((40, 50, 60), 4), ((56, 60, 62), 4), ((4, 6, 60), 16), ((0, 0, 0), 4)]
    )
    def test_the_best_rate_wins(self, right: tuple[int, ...], best: int) -> None:
        meter = Meter([4, 8, 16], ModelInfo("m", "llama", 32000, 4096, 32, "x"))
        meter.learn(right, ENOUGH)
        assert meter.best() == best

    def test_one_exit_needs_no_states(self) -> None:
        assert LayerSkipDrafter(toys.target(), [1]).needs == Needs(early=1)


class TestFit:
    def model(self, tmp_path: Path, layers: int = 8, name: str = "model", **config: object) -> ModelInfo:
        path = toys.checkpoint(tmp_path / name, layers=layers)
        made = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(made | config))
        return describe(path)

    def test_any_model_of_attention_layers(self, tmp_path: Path) -> None:
        match = LayerSkip().matches(self.model(tmp_path))
        assert (match.fit, match.gain) == (Fit.ANY, 1.0)
        assert "1, 2, 3, 4 of 8 are tried" in match.reason

    def test_a_config_that_names_its_exit(self, tmp_path: Path) -> None:
        for key in ("exit_layer", "assistant_early_exit"):
            model = self.model(tmp_path, name=key, **{key: 3})
            match = LayerSkip().matches(model)
            assert match.fit == Fit.FAMILY
            assert match.reason == "drafts with its first 3 of 8 layers, as its config says"
            target = TargetModel(decoder(model), model, 64)
            assert LayerSkip().load(target, match, {}).needs == Needs(early=3)

    @pytest.mark.parametrize("named", [0, 8, True, "3"])
    def test_an_exit_that_cannot_be(self, tmp_path: Path, named: object) -> None:
        model = self.model(tmp_path, exit_layer=named)
        assert LayerSkip().matches(model).fit == Fit.NO
        with pytest.raises(ModelError, match="exit layer"):
            LayerSkip().load(TargetModel(decoder(model), model, 64), LayerSkip().matches(model), {})

    def test_the_published_ones_say_it_in_their_name(self, tmp_path: Path) -> None:
        for name in ("LayerSkip-llama3.2-1B", "models--facebook--layerskip-llama3.2-1B/snapshots/40dd"):
            assert LayerSkip().matches(self.model(tmp_path, name=name)).fit == Fit.FAMILY

    def test_models_that_cannot(self, tmp_path: Path) -> None:
        model = self.model(tmp_path, layers=1)
        assert "no earlier exit" in LayerSkip().matches(model).reason
        assert LayerSkip().matches(replace(model, layers=4, config={})).fit == Fit.NO

    @pytest.mark.parametrize("family", ["lfm2", "qwen3_next", "nemotron_h"])
    def test_states_that_know_one_line(self, family: str) -> None:
        spec = golden.config(family)
        match = LayerSkip().matches(ModelInfo(family, family, 256, 64, len(golden.mixers(family)), "x", spec))
        assert match.fit == Fit.NO
        assert "states" in match.reason


def decoder(model: ModelInfo) -> Decoder:
    return golden.decoder(Path(model.path), torch.float32, 128)
