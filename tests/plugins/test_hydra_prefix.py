"""Hydra++: seeded heads behind a layer, in the published format, against the formulas written out in float64.

The formulas run over the whole conversation anew for every round; the drafter keeps keys and values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ahead
import pairs
import pytest
import torch
import toys
from ahead import Rides, rides
from safetensors.torch import save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling
from outrider.core.conformance import NAMES, check, failures
from outrider.core.drafting import Committed, Draft, Fit, Needs, state
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.core.session.engine import Engine
from outrider.drafters.medusa import Medusa
from outrider.drafters.medusa.draft import MedusaDrafter

__all__ = ["rides"]

PROMPT = [5, 9, 13, 9, 5, 9, 13]
NONE = torch.empty(0, dtype=torch.int64)
HEADS, VOCAB, WIDTH, INNER = 3, 48, 32, 40
QUERIES, KEYS, SIZE, THETA = 4, 2, 8, 50.0  # of the layer's attention; a small theta, so that positions matter
LAYER = "prefix_embeding_layer.layers.0."
CONFIG = {"num_attention_heads": QUERIES, "num_key_value_heads": KEYS, "rope_theta": THETA, "rms_norm_eps": 1e-5}
CHOICES = [[a] for a in range(8)] + [[a, b] for a in range(4) for b in range(6)]
CHOICES += [[a, b, c] for a in range(2) for b in range(2) for c in range(7)]
FEW = list(range(20, 32))  # ids that a text is made of where heads are to be right now and then
QUICK = tuple(name for name in NAMES if name != "rejection")
HOW: dict[str, object] = {"hydra_head_arch": "prefix-mlp", "grounded_heads": True, "hydra_choices": CHOICES}


def target(context: int = 256, **config: object) -> TargetModel:
    model = toys.target(layers=3)
    return TargetModel(model.decoder, replace(model.info, config={**CONFIG, **config}), context)


def tensors(layers: int = 1, vocab: int = VOCAB) -> dict[str, Tensor]:
    """Random heads and a random layer, with all that its authors save beside them."""
    g = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int) -> Tensor:
        return 1.5 * torch.randn(rows, columns, generator=g) / columns**0.5

    def block(name: str, rows: int, columns: int) -> dict[str, Tensor]:
        return {f"{name}.weight": matrix(rows, columns), f"{name}.bias": torch.randn(rows, generator=g) / 4}

    made: dict[str, Tensor] = {}
    for part, rows in (("q", QUERIES * SIZE), ("k", KEYS * SIZE), ("v", KEYS * SIZE)):
        made[f"{LAYER}self_attn.{part}_proj.weight"] = matrix(rows, WIDTH)
    made[f"{LAYER}self_attn.o_proj.weight"] = matrix(WIDTH, QUERIES * SIZE)
    for part in ("gate", "up"):
        made[f"{LAYER}mlp.{part}_proj.weight"] = matrix(INNER, WIDTH)
    made[f"{LAYER}mlp.down_proj.weight"] = matrix(WIDTH, INNER)
    for norm in (f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm", "prefix_embeding_layer.norm"):
        made[f"{norm}.weight"] = torch.rand(WIDTH, generator=g) + 0.5
    for head in range(HEADS):
        for part in ("linear", "res_connection"):
            made |= block(f"hydra_mlp.{head}.1.{part}", WIDTH, (head + 2) * WIDTH)
        for layer in range(1, layers):
            made |= block(f"hydra_mlp.{head}.{1 + 2 * layer}.linear", WIDTH, WIDTH)
        made |= block(f"hydra_lm_head.{head}.1", vocab, WIDTH)
    idle: dict[str, tuple[int, ...]] = {"input_embed_fn.weight": (VOCAB, WIDTH)}
    idle |= {"prefix_embeding_layer.embed_tokens.weight": (VOCAB, WIDTH)}
    idle[f"{LAYER}self_attn.rotary_emb.inv_freq"] = (SIZE // 2,)
    return made | {name: torch.full(shape, torch.nan) for name, shape in idle.items()}


def folder(path: Path, weights: Mapping[str, Tensor], **config: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    torch.save(dict(weights), path / "hydra_lm_head.pt")
    (path / "config.json").write_text(json.dumps({**HOW, **config}))
    return path


def loaded(path: Path, model: TargetModel) -> MedusaDrafter:
    match = Medusa().check(model.info, str(path))
    assert match.fit == Fit.EXACT, match.reason
    return Medusa().load(model, match, {})


@pytest.fixture
def rider(tmp_path: Path) -> MedusaDrafter:
    return loaded(folder(tmp_path, tensors()), target())


# ---------------------------------------------------------------------------------------------------- the formulas


class Formulas:
    """Hydra++ in float64, one position at a time; `states` are all that are known, by position."""

    def __init__(self, weights: Mapping[str, Tensor], model: TargetModel, layers: int = 1, offset: int = 0) -> None:
        self.w = {name: tensor.double() for name, tensor in weights.items()}
        self.embedding = model.embed_raw(torch.arange(VOCAB)).double()
        self.layers, self.offset, self.eps = layers, offset, CONFIG["rms_norm_eps"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean() + self.eps).sqrt() * self.w[f"{name}.weight"]

    def times(self, name: str, x: Tensor) -> Tensor:
        return (self.w[f"{LAYER}{name}_proj.weight"] * x).sum(1)

    def turned(self, x: Tensor, position: int) -> Tensor:
        """One head [SIZE], the halves being real and imaginary parts."""
        angles = torch.tensor([position * THETA ** (-2 * i / SIZE) for i in range(SIZE // 2)], dtype=torch.float64)
        turned = torch.complex(*x.chunk(2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag))

    def before_heads(self, states: Mapping[int, Tensor], position: int) -> Tensor:
        """s [d] at `position`."""
        ones = {at: state.double() for at, state in states.items() if at <= position}
        if not self.offset:  # the toy's last norm has no weights but ones
            ones = {at: x / (x.square().mean() + self.eps).sqrt() for at, x in ones.items()}
        x = ones[position]
        inner = {at: self.norm(one, f"{LAYER}input_layernorm") for at, one in ones.items()}
        queries = self.times("self_attn.q", inner[position]).view(QUERIES, SIZE)
        mixed = []
        for head in range(QUERIES):
            kept = slice(head * KEYS // QUERIES * SIZE, (head * KEYS // QUERIES + 1) * SIZE)
            query = self.turned(queries[head], position)
            weights = {
                at: math.exp(float(query @ self.turned(self.times("self_attn.k", y)[kept], at)) / SIZE**0.5)
                for at, y in inner.items()
            }
            total = sum(weights.values())
            values = [self.times("self_attn.v", y)[kept] * weights[at] / total for at, y in inner.items()]
            mixed.append(torch.stack(values).sum(0))
        x = x + self.times("self_attn.o", torch.cat(mixed))
        y = self.norm(x, f"{LAYER}post_attention_layernorm")
        gate = self.times("mlp.gate", y)
        x = x + self.times("mlp.down", gate / (1 + torch.exp(-gate)) * self.times("mlp.up", y))
        return self.norm(x, "prefix_embeding_layer.norm")

    def logits(self, s: Tensor, path: list[int]) -> Tensor:
        """What follows the ids of `path`, the root first: [V]."""
        head = len(path) - 1

        def affine(name: str, x: Tensor) -> Tensor:
            return (self.w[f"{name}.weight"] * x).sum(1) + self.w[f"{name}.bias"]

        seen = torch.cat([s, *(self.embedding[token] for token in path)])
        y = affine(f"hydra_mlp.{head}.1.linear", seen)
        y = affine(f"hydra_mlp.{head}.1.res_connection", seen) + y / (1 + torch.exp(-y))
        for layer in range(1, self.layers):
            more = affine(f"hydra_mlp.{head}.{1 + 2 * layer}.linear", y)
            y = y + more / (1 + torch.exp(-more))
        return affine(f"hydra_lm_head.{head}.1", y)

    def tree(self, s: Tensor, root: int) -> dict[tuple[int, ...], int]:
        """The token of every choice."""
        made: dict[tuple[int, ...], int] = {}
        ranked: dict[tuple[int, ...], list[int]] = {}
        for choice in map(tuple, CHOICES):
            above = choice[:-1]
            if above not in ranked:
                path = [root, *(made[above[: depth + 1]] for depth in range(len(above)))]
                ranked[above] = self.logits(s, path).sort(descending=True, stable=True).indices.tolist()
            made[choice] = ranked[above][choice[-1]]
        return made


def drafted(draft: Draft | None) -> set[tuple[int, ...]]:
    """Every path of a draft, as the tokens down to it."""
    assert draft is not None and draft.parents is not None
    down: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)):
        down[node] = (*down[parent], token)
    return set(down.values()) - {()}


def paths(tree: Mapping[tuple[int, ...], int]) -> set[tuple[int, ...]]:
    return {tuple(tree[choice[: depth + 1]] for depth in range(len(choice))) for choice in tree}


def along(tree: set[tuple[int, ...]], truth: list[int]) -> int:
    """How many tokens of `truth` the tree has."""
    return next(depth for depth in range(len(truth) + 1) if tuple(truth[: depth + 1]) not in tree or depth == HEADS)


def told(model: TargetModel, ids: list[int], offset: int = 0) -> Tensor:
    """The states of all positions, [S, 1, d]."""
    states = model.forward(ids, states=(model.info.layers - offset,)).hidden
    assert states is not None
    return states


# ---------------------------------------------------------------------------------------------------- drafting


@pytest.mark.parametrize(("layers", "offset"), [(1, 0), (2, 0), (1, 1)])
def test_every_round_is_what_the_formulas_give(tmp_path: Path, layers: int, offset: int) -> None:
    """Trees and accepted lengths of a whole answer, through the engine's own loop."""
    settings, weights = Settings(temperature=0, logit_bias=tuple((token, 60.0) for token in FEW)), tensors(layers)
    for head in range(HEADS):
        weights[f"hydra_lm_head.{head}.1.bias"][FEW] += 30
    plain = toys.answer(ChatCache(target()), PROMPT, settings=settings, limit=130).token_ids
    model = target()
    drafter = loaded(folder(tmp_path, weights, hidden_state_offset=offset), model)
    assert drafter.needs == Needs(hidden=(3 - offset,))
    watch, notes = pairs.Watch(drafter), list[str]()
    guarded = toys.guard(watch, notes=notes)
    report = toys.answer(ChatCache(model), PROMPT, guarded, settings=settings, limit=130, tokens=60)
    assert (report.token_ids, notes) == (plain, [])
    ids = [*PROMPT, *plain]
    states = dict(enumerate(told(target(), ids, offset)[:, 0]))
    formulas = Formulas(weights, model, layers, offset)
    at, lengths = len(PROMPT), set[int]()
    for root, draft, accepted in watch.rows[:16]:
        tree = paths(formulas.tree(formulas.before_heads(states, root - 1), ids[root]))
        assert (root, drafted(draft), accepted) == (at, tree, along(tree, ids[root + 1 :]))
        at += 1 + accepted
        lengths.add(accepted)
    assert lengths >= {0, 1, 2}, lengths


def test_logits(rider: MedusaDrafter) -> None:
    model, ids = target(), [*PROMPT, 7, 3]
    states = told(model, ids)
    rider.advance(Committed(0, torch.tensor(ids), NONE, states[:-1]))
    formulas, voice = Formulas(tensors(), model), rider._heads
    seen: Any = rider._state.feed()
    s = formulas.before_heads(dict(enumerate(states[:, 0])), len(ids) - 2)
    torch.testing.assert_close(seen[0].double(), s, atol=2e-5, rtol=1e-5)
    for path in ([3], [3, 9], [3, 9, 40]):
        got = voice.logits(seen, [path])[0].double()  # type: ignore[attr-defined]
        torch.testing.assert_close(got, formulas.logits(s, path), atol=5e-5, rtol=1e-5)


@pytest.mark.parametrize("again", [True, False])
def test_rewinding(rider: MedusaDrafter, again: bool) -> None:
    """Another continuation, with the state of the last true token told anew or not."""
    model, formulas = target(), Formulas(tensors(), target())
    first, second = [*PROMPT, 7, 3, 8, 8, 2], [*PROMPT, 11, 30, 4]
    rider.advance(Committed(0, torch.tensor(first[:9]), NONE, told(model, first)[:8]))
    assert rider.propose(pairs.context(first[:9], 60)) is not None  # these have rows
    rider.advance(Committed(9, torch.tensor(first[9:]), torch.arange(2), told(target(), first)[8:11]))  # these wait
    keep = len(PROMPT)
    rider.rewind(keep)
    states = told(target(), second)
    want = formulas.tree(formulas.before_heads(dict(enumerate(states[:, 0])), keep - 2), second[keep - 1])
    assert drafted(rider.propose(pairs.context(second[:keep], 60))) == paths(want)  # that state is still known
    rider.advance(Committed(keep, torch.tensor(second[keep:]), NONE, states[keep - again : len(second) - 1]))
    want = formulas.tree(formulas.before_heads(dict(enumerate(states[:, 0])), len(second) - 2), second[-1])
    assert drafted(rider.propose(pairs.context(second, 60))) == paths(want)


def test_states_that_are_not_known_have_no_rows(rider: MedusaDrafter) -> None:
    """A hot switch: tokens without states, then some with; the others stand where they stood."""
    model, formulas = target(), Formulas(tensors(), target())
    ids = [*PROMPT, 7, 3, 8, 20, 2, 41]
    states = told(model, ids)
    rider.advance(Committed(0, torch.tensor(ids[:4]), NONE))
    assert rider.propose(pairs.context(ids[:4], 60)) is None
    rider.advance(Committed(4, torch.tensor(ids[4:8]), NONE, states[5:7]))  # only the last two of four
    rider.advance(Committed(8, torch.tensor(ids[8:10]), NONE))
    assert rider.propose(pairs.context(ids[:10], 60)) is None  # the newest is not known
    rider.advance(Committed(10, torch.tensor(ids[10:]), NONE, states[9:12]))
    known = {at: states[at, 0] for at in (5, 6, 9, 10, 11)}
    got = drafted(rider.propose(pairs.context(ids, 60)))
    assert got == paths(formulas.tree(formulas.before_heads(known, 11), ids[-1]))
    everything = formulas.tree(formulas.before_heads(dict(enumerate(states[:, 0])), 11), ids[-1])
    elsewhere = formulas.tree(formulas.before_heads(dict(enumerate(known.values())), 4), ids[-1])
    assert got not in (paths(everything), paths(elsewhere))


def test_long_runs_go_through_in_pieces(rider: MedusaDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    states = told(target(), ids)
    whole, parts = rider, rider.fork()
    whole.advance(Committed(0, torch.tensor(ids), NONE, states[:-1]))
    want: Any = whole._state.feed()
    monkeypatch.setattr(state, "CHUNK", 7)
    parts.advance(Committed(0, torch.tensor(ids[:20]), NONE, states[:19]))
    assert pairs.positions(parts._state) == list(range(19))
    parts.advance(Committed(20, torch.tensor(ids[20:]), NONE, states[19:39]))
    torch.testing.assert_close(parts._state.feed(), want, atol=1e-5, rtol=1e-5)


def test_a_fork_goes_its_own_way(rider: MedusaDrafter) -> None:
    formulas, riders = Formulas(tensors(), target()), [rider]
    texts = [[*PROMPT, 7, 3, 8], [*PROMPT, 11, 30, 4]]
    states = [told(target(), text) for text in texts]
    rider.advance(Committed(0, torch.tensor(PROMPT), NONE, states[0][:6]))
    assert rider.propose(pairs.context(PROMPT, 60)) is not None
    riders.append(rider.fork())
    for at in range(7, 10):
        for one, text, known in zip(riders, texts, states, strict=True):
            one.advance(Committed(at, torch.tensor(text[at : at + 1]), NONE, known[at - 1 : at]))
            s = formulas.before_heads(dict(enumerate(known[:, 0])), at - 1)
            assert drafted(one.propose(pairs.context(text[: at + 1], 60))) == paths(formulas.tree(s, text[at]))


def test_a_state_that_is_no_number_is_forgotten_with_its_row(rider: MedusaDrafter) -> None:
    ids = [*PROMPT, 7, 3]
    states = told(target(), ids)
    rider.advance(Committed(0, torch.tensor(ids[:6]), NONE, states[:5]))
    want = drafted(rider.propose(pairs.context(ids[:6], 60)))
    rider.rewind(4)
    rider.advance(Committed(4, torch.tensor(ids[4:]), NONE, torch.full((5, 1, WIDTH), torch.nan)))
    assert rider.propose(pairs.context(ids, 60)) is None
    rider.rewind(3)
    rider.advance(Committed(3, torch.tensor(ids[3:6]), NONE, states[2:5]))
    assert drafted(rider.propose(pairs.context(ids[:6], 60))) == want


@pytest.mark.parametrize("settings", [toys.SAMPLED, Settings(temperature=0.8, top_p=0.9, repeat_penalty=1.2)])
@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_text_is_the_targets(rider: MedusaDrafter, settings: Settings, rule: str) -> None:
    want = toys.answer(ChatCache(target()), PROMPT, settings=settings, limit=60)
    guarded = toys.guard(rider)
    got = toys.answer(ChatCache(target()), PROMPT, guarded, settings=settings, limit=60, tokens=40, rule=rule)
    assert 0 < got.accepted < got.proposed
    if rule == "match":
        assert got.token_ids == want.token_ids


def test_switching_to_it_in_the_middle_and_a_second_turn(rider: MedusaDrafter) -> None:
    cache, table = ChatCache(target()), {"none": None, "hydra": toys.guard(rider, name="hydra")}
    control = toys.Still({9: DrafterChoice(name="hydra", tokens=40)})
    want = toys.answer(ChatCache(target()), PROMPT, limit=50).token_ids
    got = toys.answer(cache, PROMPT, table, control=control, limit=50)
    assert got.token_ids == want
    assert 0 < got.accepted < got.proposed
    more = [*PROMPT, *want[:12], 3, 4]  # the end of the answer is taken back
    got = toys.answer(cache, more, {"hydra": table["hydra"]}, limit=30, tokens=40)
    assert got.token_ids == toys.answer(ChatCache(target()), more, limit=30).token_ids
    assert got.accepted > 0


def test_no_check_of_the_kit_fails(tmp_path: Path) -> None:
    path = folder(tmp_path, tensors())
    done = check(target(), lambda some: loaded(path, some), [PROMPT], names=QUICK)
    assert not failures(done)
    assert any(one.verdict == "ok" for one in done)


@pytest.mark.parametrize("limits", [{"limit": None}, {"limit": 40, "eos": (11, 17, 30)}])
def test_at_the_brim_and_at_the_end(tmp_path: Path, limits: dict[str, Any]) -> None:
    small = len(PROMPT) + 12
    want = toys.answer(ChatCache(target(small)), PROMPT, **limits)
    notes: list[str] = []
    guarded = toys.guard(loaded(folder(tmp_path, tensors()), target(small)), notes=notes)
    got = toys.answer(ChatCache(target(small)), PROMPT, guarded, tokens=60, **limits)
    assert (got.token_ids, got.finish, notes) == (want.token_ids, want.finish, [])


def test_through_the_engine(tmp_path: Path) -> None:
    """A target and heads as they lie on a disk."""
    model = toys.checkpoint(tmp_path / "model")
    heads = folder(tmp_path / "heads", tensors(vocab=259), hydra_choices=None)

    def ask(drafter: DrafterChoice) -> Report:
        chosen = ModelChoice(model=str(model), dtype="fp32", device="cpu")
        sampling = Sampling(temperature=0.0, max_tokens=40)
        request = Generate(1, chosen, [Message("user", "hello there")], sampling=sampling, drafter=drafter)
        return Engine().generate(request, lambda event: None, toys.Still())

    got = ask(DrafterChoice(name="medusa", weights=str(heads), tokens=40))
    assert got.proposed > 40
    assert got.token_ids == ask(DrafterChoice(name="none")).token_ids


# ---------------------------------------------------------------------------------------------------- files


class TestFiles:
    def test_what_fits(self, tmp_path: Path) -> None:
        match = Medusa().check(target().info, str(folder(tmp_path / "heads", tensors())))
        assert (match.fit, match.reason) == (Fit.EXACT, "heads: 3 Hydra++ heads")
        read = {name: part for name, part in tensors().items() if not bool(part.isnan().any())}
        assert match.nbytes == 2 * sum(part.numel() for part in read.values())

    def test_safetensors_and_a_config_that_says_nothing(self, tmp_path: Path) -> None:
        save_file(tensors(), tmp_path / "hydra_lm_head.safetensors")
        (tmp_path / "config.json").write_text("{}")
        assert Medusa().check(target().info, str(tmp_path)).reason.endswith("3 Hydra++ heads")

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            ({f"{LAYER}self_attn.k_proj.weight": None}, r"lacks the tensor \S+self_attn.k_proj.weight"),
            ({f"{LAYER}post_attention_layernorm.weight": None}, "lacks the tensor .*post_attention_layernorm.weight"),
            ({"prefix_embeding_layer.norm.weight": None}, "lacks the tensor prefix_embeding_layer.norm.weight"),
            ({"prefix_embeding_layer.layers.1.mlp.up_proj.weight": torch.zeros(2, 2)}, "holds beside its heads"),
            ({f"{LAYER}self_attn.q_proj.bias": torch.zeros(32)}, "holds beside its heads the tensor"),
            ({f"{LAYER}self_attn.v_proj.weight": torch.zeros(16, 31)}, r"has the shape \[16, 31\], not \[16, 32\]"),
            ({f"{LAYER}self_attn.v_proj.weight": torch.zeros(8, 32)}, r"has the shape \[8, 32\], not \[16, 32\]"),
            ({f"{LAYER}mlp.down_proj.weight": torch.zeros(32, 41)}, r"not \[32, 40\]"),
            ({"hydra_mlp.1.1.linear.weight": torch.zeros(32, 64)}, r"not \[32, 96\]"),
            ({"hydra_mlp.1.2.linear.weight": torch.zeros(32, 32)}, "lacks|holds"),
            ({"hydra_lm_head.0.1.weight": None}, "hydra_lm_head.0.1.weight is missing"),
        ],
    )
    def test_broken_sets_are_named(self, tmp_path: Path, change: dict[str, Tensor | None], why: str) -> None:
        weights = {name: part for name, part in (tensors() | change).items() if part is not None}
        with pytest.raises(BrokenFileError, match=why) as caught:
            Medusa().check(target().info, str(folder(tmp_path, weights)))
        assert caught.value.hint

    def test_the_layer_is_missing(self, tmp_path: Path) -> None:
        weights = {name: part for name, part in tensors().items() if name.startswith("hydra")}
        with pytest.raises(BrokenFileError, match="lacks the tensor prefix_embeding_layer"):
            Medusa().check(target().info, str(folder(tmp_path, weights)))

    def test_numbers_that_cannot_be(self, tmp_path: Path) -> None:
        bad = {f"{LAYER}mlp.up_proj.weight": torch.full((INNER, WIDTH), torch.inf)}
        with pytest.raises(BrokenFileError, match=r"mlp\.up_proj\.weight holds something else"):
            loaded(folder(tmp_path, tensors() | bad), target())

    @pytest.mark.parametrize(
        ("config", "why"),
        [
            ({"num_attention_heads": 8}, None),  # with half the size they have the same rows, but not the keys
            ({"num_key_value_heads": 4}, "k_proj of 16 rows, and toy-0 4 heads of 8"),
            ({"head_dim": 16}, "q_proj of 32 rows, and toy-0 4 heads of 16"),
            ({"text_config": {"model_type": "llama"}}, "nothing says how many toy-0 has"),
        ],
    )
    def test_a_target_of_other_heads(self, tmp_path: Path, config: dict[str, Any], why: str | None) -> None:
        match = Medusa().check(target(**config).info, str(folder(tmp_path, tensors())))
        assert match.fit == Fit.NO
        assert (why or "k_proj of 16 rows, and toy-0 2 heads of 4") in match.reason

    @pytest.mark.parametrize("info", [{"width": 64}, {"vocab": 50}])
    def test_another_size(self, tmp_path: Path, info: dict[str, int]) -> None:
        match = Medusa().check(replace(target().info, **info), str(folder(tmp_path, tensors())))
        assert match.fit == Fit.NO and "its heads" in match.reason

    def test_a_state_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="4 layers back, of 3"):
            loaded(folder(tmp_path, tensors(), hidden_state_offset=4), target())

    def test_heads_without_the_layer_before_them_are_not_this(self, tmp_path: Path) -> None:
        match = Medusa().check(target().info, str(folder(tmp_path, tensors(), grounded_heads=False)))
        assert match.fit == Fit.NO and "prefix-mlp without grounded_heads" in match.reason


def test_drafts_on_the_device(rides: Rides, tmp_path: Path) -> None:
    path = folder(tmp_path, tensors())
    ahead.same(rides, target(), lambda target: loaded(path, target), 12)
