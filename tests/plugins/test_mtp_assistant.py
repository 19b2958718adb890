"""Gemma 4's assistants: both readings draft what their references drafted; nothing is kept but the newest state."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import golden
import layers
import pairs
import pytest
import torch
import toys
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import ModelError, UsageError
from outrider.core.base.protocol import DrafterChoice
from outrider.core.drafting import Committed, Fit
from outrider.core.drafting.chain import ChainSampler
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.mtp import Mtp
from outrider.drafters.mtp.assistant import Assistant

PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
NARROW, VOCAB = 16, 259  # width of the toy assistant, vocabulary of the toy checkpoint


def load(model: TargetModel, path: Path, **options: object) -> Assistant:
    drafter = Mtp().load(model, Mtp().check(model.info, str(path)), options)
    assert isinstance(drafter, Assistant)
    return drafter


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Rows of logits that tokens were picked by."""
    rows: list[Tensor] = []
    add = ChainSampler.add
    monkeypatch.setattr(ChainSampler, "add", lambda self, row: rows.append(row) or add(self, row))
    return rows


# ---------------------------------------------------------------------------------------------------- golden


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    made = pairs.Pair("gemma4_assistant")
    opened = open_checkpoint(Path(made.info.path))
    made.info = replace(made.info, architecture="gemma4", config=opened.config, tensors=frozenset(opened.names()))
    opened.close()
    return made


@pytest.mark.parametrize(("reading", "key"), [("last", "rounds"), ("newest", "rounds_transformers")])
def test_every_round_is_the_reference(pair: pairs.Pair, reading: str, key: str, seen: list[Tensor]) -> None:
    for prompt, notes in enumerate(pair.notes["prompts"]):
        seen.clear()
        drafter = load(pair.target(), pair.folder, position=reading)
        watch, cache = pairs.Watch(drafter), ChatCache(drafter._target)  # type: ignore[arg-type]
        report = toys.answer(cache, pair.prompts[prompt], toys.guard(watch), tokens=4, limit=70)
        assert report.token_ids[:64] == pair.texts[prompt]
        for number, told in enumerate(notes[key]):
            committed, draft, accepted = watch.rows[number]
            count = len(told["draft"])  # the reference's last draft is cut by its limit
            assert draft is not None and committed == told["committed"]
            assert draft.tokens.tolist()[:count] == told["draft"] and min(accepted, count) == told["accepted"]
            if "tensors" in told:
                want = pair.tensors[told["tensors"] + "logits"]
                golden.assert_close(torch.stack(seen[4 * number :][:4]), want, atol=1e-3)


def test_the_first_reading_is_the_default(pair: pairs.Pair) -> None:
    model = pair.target()
    assert not load(model, pair.folder)._newest and load(model, pair.folder, position="newest")._newest
    with pytest.raises(UsageError, match="position 'first' is not known"):
        load(model, pair.folder, position="first")


def test_rings_are_read_too(pair: pairs.Pair) -> None:
    """A sliding layer that keeps a ring shows one row less; that costs a draft now and then, never the text."""
    model = pair.target()
    model.cache = pair.decoder.new_cache(pairs.CONTEXT + MAX_DRAFT_ROWS, slack=8, rings=0)
    drafter = load(model, pair.folder)
    assert any(model.kv(layer)[0].shape[1] < 64 for layer in drafter.needs.kv)
    report = toys.answer(ChatCache(model), pair.prompts[1], toys.guard(drafter), tokens=4, limit=64)
    assert report.token_ids == pair.texts[1] and report.accepted > 0.5 * report.proposed


def test_clusters_that_do_not_fit_are_told(pair: pairs.Pair, tmp_path: Path) -> None:
    config, stored = json.loads((pair.folder / "config.json").read_text()), load_file(pair.folder / "model.safetensors")
    order = stored["masked_embedding.token_ordering"]
    for change, tensors, told in (
        ({"num_centroids": 15}, {}, "does not fit 15 clusters"),
        ({"centroid_intermediate_top_k": 17}, {}, "does not fit"),
        ({}, {"masked_embedding.token_ordering": order[:128].clone()}, "does not fit 16 clusters of 256"),
        ({}, {"masked_embedding.token_ordering": order.clone().fill_(3)}, "does not name every token once"),
        ({}, {"masked_embedding.centroids.weight": torch.zeros(16, 8)}, "16x8, the config says 16x32"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        save_file({**stored, **tensors}, tmp_path / "model.safetensors")
        with pytest.raises(ModelError) as caught:
            load(pair.target(), tmp_path)
        assert told in caught.value.message and caught.value.hint


# ---------------------------------------------------------------------------------------------------- a toy of its own


def config(**text: Any) -> dict[str, Any]:
    """An assistant of one full layer for the toy checkpoint."""
    inner = {
        "model_type": "gemma4_text",
        "hidden_size": NARROW,
        "vocab_size": VOCAB,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 1,
        "head_dim": layers.SIZE,
        "intermediate_size": 24,
        "layer_types": ["full_attention"],
        "sliding_window": 16,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": layers.THETA}},
        "rms_norm_eps": layers.EPS,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    return {"model_type": "gemma4_assistant", "backbone_hidden_size": layers.WIDTH, "text_config": {**inner, **text}}


def weights() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(3)
    at, heads = "model.layers.0.", 4 * layers.SIZE
    shapes = {
        "pre_projection": (NARROW, 2 * layers.WIDTH),
        "post_projection": (layers.WIDTH, NARROW),
        "model.embed_tokens": (VOCAB, NARROW),
        f"{at}self_attn.q_proj": (heads, NARROW),
        f"{at}self_attn.o_proj": (NARROW, heads),
        f"{at}mlp.gate_proj": (24, NARROW),
        f"{at}mlp.up_proj": (24, NARROW),
        f"{at}mlp.down_proj": (NARROW, 24),
    }
    made = {f"{name}.weight": torch.randn(shape, generator=g) * shape[1] ** -0.5 for name, shape in shapes.items()}
    norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    for name, size in {**{f"{at}{n}_layernorm": NARROW for n in norms}, f"{at}self_attn.q_norm": layers.SIZE}.items():
        made[f"{name}.weight"] = torch.rand(size, generator=g) + 0.5
    made["model.norm.weight"] = torch.rand(NARROW, generator=g) + 0.5
    return {**made, f"{at}layer_scalar": torch.tensor([0.7])}


def save(folder: Path, told: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(told))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> TargetModel:
    made = layers.target(toys.checkpoint(tmp_path / "target"))
    made.info = replace(made.info, architecture="gemma4")
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(tmp_path / "assistant", config(), weights())


def formula(model: TargetModel, token: int, state: Tensor, position: int) -> tuple[Tensor, Tensor]:
    """Logits [V] and next state [1, d] in float64, over the keys and values of the rows up to `position`."""
    w, at = {name: tensor.double() for name, tensor in weights().items()}, "model.layers.0."

    def norm(x: Tensor, name: str) -> Tensor:
        return layers.norm(x, w[f"{at}{name}.weight"])

    keys, values, length = model.kv(1)
    k, v = (part[:, : position + 1].double().repeat_interleave(2, 0) for part in (keys, values))
    assert length == position + 1
    x = torch.cat((model.embed(torch.tensor([token])).double(), state.double()), -1) @ w["pre_projection.weight"].T
    q = norm((norm(x, "input_layernorm") @ w[f"{at}self_attn.q_proj.weight"].T).view(4, -1), "self_attn.q_norm")
    q = layers.turn(q.expand(position + 1, -1, -1), neighbours=False)[-1]
    mixed = torch.einsum("hc,hcd->hd", torch.einsum("hd,hcd->hc", q, k).softmax(-1), v).flatten()[None]
    x = x + norm(mixed @ w[f"{at}self_attn.o_proj.weight"].T, "post_attention_layernorm")
    y = norm(x, "pre_feedforward_layernorm")
    gate = torch.nn.functional.gelu(y @ w[f"{at}mlp.gate_proj.weight"].T, approximate="tanh")
    y = (gate * (y @ w[f"{at}mlp.up_proj.weight"].T)) @ w[f"{at}mlp.down_proj.weight"].T
    x = (x + norm(y, "post_feedforward_layernorm")) * 0.7
    x = layers.norm(x, w["model.norm.weight"])
    return (x @ w["model.embed_tokens.weight"].T)[0], x @ w["post_projection.weight"].T


def test_logits_are_the_formula(model: TargetModel, folder: Path, seen: list[Tensor]) -> None:
    drafter = load(model, folder)
    states = model.forward(PROMPT[:-1], states=(2,)).hidden
    assert states is not None
    model.commit(len(PROMPT) - 1)
    drafter.advance(Committed(0, torch.tensor(PROMPT), torch.empty(0, dtype=torch.int64), states))
    draft = drafter.propose(pairs.context(PROMPT, 3))
    assert draft is not None
    for length in (len(PROMPT), 4):
        other = drafter.fork()
        other.rewind(length)
        assert (other.propose(pairs.context(PROMPT[:length], 3)) is None) == (length == 4)
    token, state = PROMPT[-1], model.norm(states[-1:, 0])
    for row, got in zip(seen, draft.tokens.tolist(), strict=False):
        logits, state = formula(model, token, state, len(PROMPT) - 2)
        torch.testing.assert_close(row.double(), logits, atol=1e-4, rtol=1e-4)
        token = int(logits.argmax())
        assert token == got
    spoilt = torch.full((1, 1, 32), torch.nan)
    drafter.advance(Committed(len(PROMPT), torch.tensor([3]), torch.empty(0, dtype=torch.int64), spoilt))
    assert drafter.propose(pairs.context([*PROMPT, 3], 3)) is None


@pytest.mark.parametrize("settings", [toys.GREEDY, Settings(temperature=0.8, top_p=0.95)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("reading", ["last", "newest"])
def test_the_text_is_the_targets(model: TargetModel, folder: Path, reading: str, settings: Settings) -> None:
    """Two turns, switched on between rounds in the first; then the end of the context."""
    plain = ChatCache(TargetModel(model.decoder, model.info, 60))
    cache = ChatCache(TargetModel(model.decoder, model.info, 60))
    guarded = toys.guard(load(cache.target, folder, position=reading), name="mtp")
    control, ids = toys.Still({4: DrafterChoice(name="mtp", tokens=4)}), PROMPT
    for limit, drafters in ((12, {"none": None, "mtp": guarded}), (None, guarded)):
        want = toys.answer(plain, ids, settings=settings, limit=limit)
        got = toys.answer(cache, ids, drafters, settings=settings, limit=limit, control=control)
        assert got.token_ids == want.token_ids and got.proposed and got.finish == "length"
        ids = [*ids, *got.token_ids, 8]
    assert not guarded.failed


def test_what_does_not_fit_is_told(model: TargetModel, folder: Path) -> None:
    info = model.info
    answer = Mtp().check(info, str(folder))
    assert answer.fit == Fit.EXACT and answer.nbytes > 0 and answer.reason == "assistant is an assistant of this model"
    for change, reason in (
        ({"width": 64}, "made for a width of 32, this model has 64"),
        ({"vocab": 300}, "made for a vocabulary of 259, this model has 300"),
        ({"architecture": "llama"}, "is an assistant of Gemma 4, this model is llama"),
    ):
        refused = Mtp().check(replace(info, **change), str(folder))
        assert refused.fit == Fit.NO and reason in refused.reason


@pytest.mark.parametrize(
    ("told", "change", "reason"),
    [
        ({"layer_types": ["sliding_attention"]}, {}, "no sliding layers of window 16 with heads of 8"),
        ({"num_attention_heads": 3}, {}, "is 32x16, the config says 24x16"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, {}, "no tensor model.layers.1."),
        ({}, {"pre_projection.weight": torch.zeros(NARROW, 32)}, "pre_projection.weight is 16x32"),
        ({}, {"model.layers.0.self_attn.q_norm.weight": torch.zeros(4)}, "q_norm.weight is 4, the config says 8"),
    ],
)
def test_broken_files_are_told(
    model: TargetModel, tmp_path: Path, told: dict, change: dict[str, Tensor], reason: str
) -> None:
    path = save(tmp_path / "broken", config(**told), {**weights(), **change})
    with pytest.raises(ModelError) as caught:
        load(model, path)
    assert reason in caught.value.message and caught.value.hint
