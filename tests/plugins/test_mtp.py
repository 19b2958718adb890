"""Sequential prediction layers: drafts of the reference in every round, the target's own text, rows right after every cut."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import golden
import layers
import pairs
import pytest
import torch
import toys
from converter import convert
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Draft, Fit, ModelInfo
from outrider.core.drafting.chain import ChainSampler
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.model.kernels.linear import Expanding, Linear
from outrider.core.model.kernels.packed_linear import Packed
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.mtp import Mtp
from outrider.drafters.mtp.layout import COPIES, find
from outrider.drafters.mtp.sequential import SequentialDrafter

NAMES = ["deepseek_v3", "glm4_moe", "glm4_moe_lite", "mimo", "qwen3_5", "qwen3_next"]
PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
SHARP = Settings(temperature=0.8, top_p=0.95)


def load(model: TargetModel, **options: object) -> SequentialDrafter:
    drafter = Mtp().load(model, Mtp().matches(model.info), options)
    assert isinstance(drafter, SequentialDrafter)
    return drafter


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layers.checkpoint(tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layers.checkpoint(tmp_path_factory.mktemp("three"), 3)


def hear(drafter: SequentialDrafter, model: TargetModel, tokens: list[int], told: slice = slice(None)) -> torch.Tensor:
    """Tell a drafter a conversation, with the states of those rows alone; all of them, as it takes them."""
    start = len(drafter._state.tokens)
    model.rewind(0)
    states = model.forward(tokens[:-1], states=(2,)).hidden
    assert states is not None
    known = range(len(tokens) - 1)[told]
    fresh, none = torch.tensor(tokens[start:]), torch.empty(0, dtype=torch.int64)
    drafter.advance(Committed(start, fresh, none, states[known.start : known.stop] if len(known) else None))
    return states[:, 0] if drafter._raw else model.norm(states[:, 0])


def proposed(drafter: SequentialDrafter, tokens: list[int], nodes: int = 4) -> list[int] | None:
    draft = drafter.propose(pairs.context(tokens, nodes))
    return None if draft is None else draft.tokens.tolist()


# ---------------------------------------------------------------------------------------------------- golden


@pytest.fixture(scope="module", params=NAMES)
def pair(request: pytest.FixtureRequest) -> pairs.Pair:
    made = pairs.Pair(f"mtp_{request.param}")
    opened = open_checkpoint(made.folder)
    config, names = opened.config, frozenset(opened.names())
    opened.close()
    made.info = replace(made.info, architecture=config["model_type"], config=config, tensors=names)
    return made


def test_every_round_is_the_reference(pair: pairs.Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    add = ChainSampler.add
    monkeypatch.setattr(ChainSampler, "add", lambda self, row: seen.append(row) or add(self, row))
    tolerance = 2e-3 if "qwen3" in pair.folder.name else 1e-3
    for prompt, notes in enumerate(pair.notes["prompts"]):
        seen.clear()
        report, watch = pairs.ride(pair, load(pair.target()), prompt, 5, limit=70)
        assert report.token_ids[:64] == pair.texts[prompt]
        for number, told in enumerate(notes["rounds"]):
            committed, draft, accepted = watch.rows[number]
            assert draft is not None and committed == told["committed"]
            if notes["smallest_draft_logit_gap"] > 1e-3:
                assert draft.tokens.tolist() == told["draft"]
            assert accepted == told["accepted"]
            if "tensors" in told:
                want = pair.tensors[told["tensors"] + "logits"]
                golden.assert_close(torch.stack(seen[5 * number :][:5]), want, atol=tolerance)


def test_the_memory_is_that_of_the_matrices(pair: pairs.Pair) -> None:
    layout = find(pair.info.tensors, pair.info.layers)
    assert layout is not None
    stored = load_file(pair.folder / "model.safetensors")
    owned = [tensor for name, tensor in stored.items() if layout.owns(name) and not name.endswith(COPIES)]
    matrices = sum(tensor.numel() for tensor in owned if tensor.ndim > 1)
    assert Mtp().matches(pair.info).nbytes == 2 * matrices


# GGUF has no kind for MiMo's
@pytest.mark.parametrize("pair", [name for name in NAMES if name != "mimo"], indirect=True)
def test_a_gguf_file_keeps_its_layers(pair: pairs.Pair, tmp_path: Path) -> None:
    """The same drafts from the file that a converter makes of the checkpoint."""
    newer = pair.folder / "config_transformers5.json"
    stored = load_file(pair.folder / "model.safetensors")
    path = convert(json.loads(newer.read_text()), stored, tmp_path / "model.gguf")
    opened = open_checkpoint(path)
    known = replace(pair.info, path=str(path), config=opened.config, tensors=frozenset(opened.names()))
    opened.close()
    model = TargetModel(pair.decoder, known, pairs.CONTEXT)
    assert Mtp().matches(known).reason == "one prediction layer in the checkpoint"
    _, watch = pairs.ride(pair, load(model), 0, 5, limit=20)
    told = pair.notes["prompts"][0]["rounds"]
    got = [draft.tokens.tolist() for _, draft, _ in watch.rows if draft is not None]
    assert got[:3] == [row["draft"] for row in told[:3]]


# ---------------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize("options", [{}, {"state": "raw"}, {"feedback": "prenorm"}], ids=["usual", "raw", "prenorm"])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_and_logits_are_the_formula(
    count: int, options: dict[str, object], folder: Path, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float64 formulas that keep nothing: a first draft, one after a cut, one after a run without drafts."""
    path = folder if count == 1 else three
    model, tensors = layers.target(path), load_file(path / "model.safetensors")
    drafter, seen = load(model, **options), list[torch.Tensor]()
    add = ChainSampler.add
    monkeypatch.setattr(ChainSampler, "add", lambda self, row: seen.append(row) or add(self, row))
    tokens: list[int] = []
    for cut, more in [(0, PROMPT), (len(PROMPT), [7]), (len(PROMPT) - 3, [8, 9, 1, 2, 3, 4]), (13, [8])]:
        drafter.rewind(cut)
        tokens = [*tokens[:cut], *more]
        states = hear(drafter, model, tokens, slice(max(0, cut - 1), None))
        seen.clear()
        draft = proposed(drafter, tokens, 3)
        want, logits = layers.chain(tokens, states, tensors, count, 3, prenorm="feedback" in options)
        assert draft == want
        torch.testing.assert_close(torch.stack(seen).double(), torch.stack(logits), atol=2e-4, rtol=1e-4)
        assert proposed(drafter, tokens, 3) == want  # asked twice, the same


@pytest.mark.parametrize("bits", [8, 4])
def test_layers_are_kept_as_those_of_the_target(bits: int, folder: Path) -> None:
    """A model that is rounded while loading has its prediction layers rounded too, and its own text."""
    model, plain = layers.target(folder, quantize=bits), layers.target(folder)
    layer, full = (next(iter(load(some)._layers)) for some in (model, plain))
    assert layers.forms(layer.block) == layers.forms(model.decoder.weights.blocks[0]) != layers.forms(full.block)
    assert (
        type(layer.mix) in (Packed, Expanding) and type(full.mix) is Linear and layer.mix.nbytes < full.mix.nbytes / 2  # type: ignore[attr-defined]
    )
    want = toys.answer(ChatCache(layers.target(folder, quantize=bits)), PROMPT, None, limit=24).token_ids
    got = toys.answer(ChatCache(model), PROMPT, toys.guard(load(model)), tokens=4, limit=24)
    assert got.token_ids == want and got.proposed > 0


def test_rows_without_a_state_are_seen_by_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched on late, off for a while, and on again: what was never told is left out, the rest keeps its place."""
    model, tensors = layers.target(folder), load_file(folder / "model.safetensors")
    drafter, seen = load(model), list[torch.Tensor]()
    add = ChainSampler.add
    monkeypatch.setattr(ChainSampler, "add", lambda self, row: seen.append(row) or add(self, row))
    text = [*PROMPT, 4, 7, 1, 30, 77, 12, 99, 3]
    hear(drafter, model, text[:4], slice(0, 0))
    assert proposed(drafter, text[:4]) is None
    hear(drafter, model, text[:9], slice(3, None))
    hear(drafter, model, text[:12], slice(0, 0))
    assert proposed(drafter, text[:12]) is None
    states = hear(drafter, model, text, slice(11, None))
    seen.clear()
    want, logits = layers.chain(text, states, tensors, 1, 4, hidden=[0, 1, 2, 8, 9, 10])
    assert proposed(drafter, text) == want
    torch.testing.assert_close(torch.stack(seen).double(), torch.stack(logits), atol=2e-4, rtol=1e-4)
    other = drafter.fork()
    drafter.reset()
    assert proposed(drafter, text) is None and proposed(other, text) == want
    other.rewind(10)  # into a hole
    hear(other, model, text, slice(9, None))
    assert proposed(other, text) == layers.chain(text, states, tensors, 1, 4, hidden=[0, 1, 2, 8])[0]
    for end, told in ((9, slice(None)), (12, slice(0, 0)), (len(text), slice(11, None))):
        hear(drafter, model, text[:end], told)
    drafter.rewind(6)  # to before the only one
    hear(drafter, model, text, slice(5, None))
    assert proposed(drafter, text) == layers.chain(text, states, tensors, 1, 4)[0]


@pytest.mark.parametrize("chunk", [4, 512])
def test_a_long_prompt_is_fed_in_chunks(folder: Path, three: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.core.drafting.state.CHUNK", chunk)
    for path in (folder, three):
        model = layers.target(path)
        drafter = load(model)
        text = [*PROMPT, *range(40, 60)]
        states = hear(drafter, model, text)
        assert drafter._state.count == (0 if chunk == 512 else len(text) - 1)
        count = len(drafter._layers)
        assert (
            proposed(drafter, text, 3) == layers.chain(text, states, load_file(path / "model.safetensors"), count, 3)[0]
        )


# ---------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("settings", [toys.GREEDY, toys.SAMPLED, SHARP], ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("count", [1, 3])
def test_the_text_is_the_targets(count: int, settings: Settings, folder: Path, three: Path) -> None:
    """Two turns and an edit, beside a plain conversation."""
    model = layers.target(folder if count == 1 else three)
    drafter = toys.guard(load(model))
    cache, plain = ChatCache(model), ChatCache(layers.target(folder))
    ids = PROMPT
    for end in (None, -1, 6):
        got = toys.answer(cache, ids, drafter, settings=settings, limit=16)
        assert got.token_ids == toys.answer(plain, ids, settings=settings, limit=16).token_ids and got.proposed
        ids = [*[*ids, *got.token_ids][:end], 77, 8]
    assert not drafter.failed


def test_the_next_turn_goes_on_without_a_hole(folder: Path) -> None:
    model = layers.target(folder)
    drafter, cache = load(model), ChatCache(model)
    guarded = toys.guard(drafter)
    first = toys.answer(cache, PROMPT, guarded)
    longer = [*PROMPT, *first.token_ids, 4, 4]
    toys.answer(cache, longer, guarded)
    assert pairs.positions(drafter._state) == list(range(drafter._state.count))
    assert drafter._state.count > len(longer)
    afresh = load(model)
    tokens = list(cache.tokens)
    hear(afresh, layers.target(folder), tokens)
    assert proposed(drafter, tokens) == proposed(afresh, tokens)


def test_a_sliding_layer_can_be_cut_to_any_length(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mistral", "sliding_window": 8}))
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    text = torch.randint(0, 250, (190,), generator=torch.Generator().manual_seed(2)).tolist()
    model = layers.target(tmp_path, 200)
    drafter, afresh = load(model), load(model)
    hear(drafter, model, text)
    assert proposed(drafter, text) is not None
    drafter.rewind(20)
    hear(drafter, model, text[:21], slice(19, None))
    hear(afresh, model, text[:21])
    assert proposed(drafter, text[:21]) == proposed(afresh, text[:21])


def test_switched_on_between_rounds(folder: Path) -> None:
    model = layers.target(folder)
    chain = toys.guard(load(model), name="mtp")
    control = toys.Still(
        {3: DrafterChoice(name="mtp", tokens=4), 6: DrafterChoice(name="none"), 9: DrafterChoice(name="mtp")}
    )
    report = toys.answer(ChatCache(model), PROMPT, {"none": None, "mtp": chain}, control=control)
    assert report.token_ids == toys.answer(ChatCache(layers.target(folder)), PROMPT).token_ids
    assert report.drafters["mtp"] > 1 and not chain.failed


def test_the_end_of_the_context_and_of_the_text(folder: Path) -> None:
    plain = toys.answer(ChatCache(layers.target(folder, 32)), PROMPT, limit=None)
    assert plain.finish == "length"
    for eos in ((), (plain.token_ids[7],)):
        model = layers.target(folder, 32)
        notes: list[str] = []
        known = Knowing(load(model), plain.token_ids)
        report = toys.answer(ChatCache(model), PROMPT, toys.guard(known, notes=notes), limit=None, eos=eos, tokens=8)
        want = plain.token_ids[: plain.token_ids.index(eos[0])] if eos else plain.token_ids
        assert report.token_ids == want and report.accepted and not notes
        assert report.finish == ("stop" if eos else "length")


class Knowing:
    """The chain, whose drafts are replaced by what comes, so that ends fall inside a draft."""

    def __init__(self, inner: SequentialDrafter, text: list[int]) -> None:
        self.inner, self.text, self.needs, self.shape = inner, text, inner.needs, inner.shape
        self.reset, self.advance, self.rewind, self.close, self.fork = (
            inner.reset,
            inner.advance,
            inner.rewind,
            inner.close,
            inner.fork,
        )

    def propose(self, context) -> Draft | None:
        draft = self.inner.propose(context)
        assert draft is not None and draft.tokens.shape[0] == context.nodes
        done = len(context.tokens) - len(PROMPT)
        return Draft(torch.tensor(self.text[done : done + context.nodes]))


@pytest.mark.thorough
def test_the_law_under_rejection(tmp_path: Path) -> None:
    """Chi-square of the joint law of two tokens, of which the second was drafted, over 300 seeds."""
    few, n = 5, 300
    toys.checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {f"model.layers.2.{k}": v for k, v in layers.layer(torch.Generator().manual_seed(5)).items()}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:few].clone() * (0.4 if name.startswith("lm") else 1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": few}))
    model = layers.target(tmp_path)
    settings = Settings(temperature=1.0, top_p=1.0)
    guarded = toys.guard(load(model))
    counts: Counter[tuple[int, ...]] = Counter()
    accepted = proposals = 0
    for seed in range(n):
        report = toys.answer(
            ChatCache(model), [1, 2], guarded, settings=settings, seed=seed, rule="rejection", limit=3, tokens=1
        )
        model.rewind(0)
        guarded.reset()
        counts[tuple(report.token_ids[:2])] += 1
        accepted, proposals = accepted + report.accepted, proposals + report.proposed
    assert 0.2 < accepted / proposals < 0.95
    chi = 0.0
    for a in range(few):
        model.rewind(0)
        rows = model.forward([1, 2, a]).logits.double().softmax(-1)
        for b in range(few):
            expected = n * float(rows[1, a] * rows[2, b])
            chi += (counts[a, b] - expected) ** 2 / expected
    freedom = few**2 - 1
    assert chi < freedom + 5 * (2 * freedom) ** 0.5


# ---------------------------------------------------------------------------------------------------- what fits


def test_what_is_said_of_a_model(folder: Path, three: Path, tmp_path: Path) -> None:
    one = layers.target(folder).info
    assert Mtp().matches(one).fit == Fit.EXACT and Mtp().matches(one).reason == "one prediction layer in the checkpoint"
    assert Mtp().matches(layers.target(three).info).reason == "3 prediction layers in the checkpoint"
    bare = replace(one, tensors=frozenset(name for name in one.tensors if ".2." not in name))
    assert not Mtp().matches(bare).ready
    for told in ({"num_nextn_predict_layers": 1}, {"text_config": {"mtp_num_hidden_layers": 1}}):
        answer = Mtp().matches(replace(bare, config={**one.config, **told}))
        assert not answer.ready
        assert answer.reason == "the config promises one prediction layer, the file lacks it"
    assert not Mtp().matches(replace(bare, architecture="gemma4")).ready
    tower = "vision_tower.encoder.layers.2.layer_norm1.weight"  # is none of them
    assert Mtp().matches(replace(bare, tensors=bare.tensors | {tower})).reason.startswith("needs prediction layers")
    for name in ("model.layers.2.transformer.eh_proj.weight", "mtp.layers.0.enorm.weight"):
        assert "of a kind that is not known" in Mtp().matches(replace(bare, tensors=bare.tensors | {name})).reason


@pytest.mark.parametrize("root", ["mtp.", "model.mtp.", "language_model.mtp."])
def test_layers_are_found_by_name(root: str) -> None:
    names = {f"{root}fc.weight", *(f"{root}layers.{i}.input_layernorm.weight" for i in range(2))}
    layout = find(names, 4)
    assert layout is not None and (layout.prefix, layout.count, layout.first) == (root, 2, 0)
    assert find({f"{root}fc.weight"}, 4) is None
    assert find({"model.layers.4.input_layernorm.weight"}, 4) is None


def test_a_copy_that_kept_its_layers(folder: Path, tmp_path: Path) -> None:
    bare = toys.checkpoint(tmp_path / "bare")
    model = layers.target(bare)
    answer = Mtp().check(model.info, str(folder))
    assert answer.fit == Fit.EXACT and answer.nbytes > 0
    drafter = Mtp().load(model, answer, {})
    want = toys.answer(ChatCache(layers.target(folder)), PROMPT, toys.guard(load(layers.target(folder))))
    got = toys.answer(ChatCache(model), PROMPT, toys.guard(drafter))
    assert (got.token_ids, got.accepted) == (want.token_ids, want.accepted)
    for change, reason in (
        ({"width": 64}, "made for a width of 32, this model has 64"),
        ({"vocab": 300}, "vocabulary of 259"),
        ({"layers": 3}, "number of layers of 2"),
        ({"tokenizer": "other"}, "tokenizer"),
    ):
        refused = Mtp().check(replace(model.info, **change), str(folder))
        assert refused.fit == Fit.NO and reason in refused.reason
    assert "no prediction layer" in Mtp().check(model.info, str(bare)).reason


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"eh_proj.weight": torch.zeros(32, 96)}, "eh_proj.weight is 32x96, the config says 32x64"),
        ({"enorm.weight": None}, "no tensor model.layers.2.enorm.weight"),
        ({"mlp.down_proj.weight": None}, "no tensor model.layers.2.mlp.down_proj.weight"),
        ({"self_attn.indexer.weight": torch.zeros(4)}, "another kind: nothing is known of its tensor"),
    ],
)
def test_broken_layers_are_told(change: dict, told: str, folder: Path, tmp_path: Path) -> None:
    model = layers.target(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in change.items():
        tensors.pop(f"model.layers.2.{name}", None)
        if tensor is not None:
            tensors[f"model.layers.2.{name}"] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError) as caught:
        load_at(model, tmp_path)
    assert told in caught.value.message and caught.value.hint


def load_at(model: TargetModel, path: Path) -> None:
    moved: ModelInfo = replace(model.info, path=str(path))
    model.info = moved
    load(model)


def test_copies_of_the_ends_are_not_read(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.shared_head.head.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    opened = open_checkpoint(tmp_path)
    assert Mtp().matches(info(opened)).fit == Fit.EXACT
    opened.close()
    load_at(layers.target(folder), tmp_path)


def test_no_number_is_no_draft(folder: Path) -> None:
    model = layers.target(folder)
    drafter = load(model)
    hear(drafter, model, PROMPT)
    spoilt = torch.full((1, 1, 32), torch.nan)
    drafter.advance(Committed(len(PROMPT), torch.tensor([3]), torch.empty(0, dtype=torch.int64), spoilt))
    assert proposed(drafter, [*PROMPT, 3]) is None
