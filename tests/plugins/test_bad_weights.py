"""Files that are no good, for every method that reads any: refused with one sentence, and the chat goes on undrafted.

One rule for tensors that nothing is known of: in a drafter's own files they are refused by name, since they change what it
computes; beside the heads of a whole model they are that model's. Copies and tables that follow from the config are let be.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import layers
import pytest
import torch
import toys
from goods import GOODS, VOCAB, target
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import DrafterError, OutriderError
from outrider.core.drafting import Drafter, registry
from outrider.core.library import discovery
from outrider.core.model.model import TargetModel
from outrider.core.session.chat_cache import ChatCache

PROMPT = [5, 9, 13, 9, 5, 9, 13, 200, 31, 9]
TRACE = re.compile(r"Traceback|File \"|\w(Error|Exception)\b|torch\.|<class|<built-in|object at|\n")
Tensors = dict[str, Tensor]


WHOLE = ("mtp_copy", "mtp_parallel", "draft_model")  # files of a whole model
# one for every piece of code that opens files
FEW = ("eagle3", "dflash", "medusa", "mtp_parallel", "assistant", "draft_model")
every = pytest.mark.parametrize("name", list(GOODS))
few = pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.thorough) for name in GOODS]
)


@pytest.fixture(scope="module", autouse=True)
def asked_once() -> Iterator[None]:
    """What is installed does not change meanwhile."""
    found = registry.entries()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entries", lambda: found)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All of them on disk, never to be changed."""
    root = tmp_path_factory.mktemp("good")
    return {name: good.make(root / name) for name, good in GOODS.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TargetModel:
    return layers.target(toys.checkpoint(tmp_path_factory.mktemp("target") / "toy"))


@pytest.fixture
def folder(name: str, made: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a good one."""
    return shutil.copytree(made[name], tmp_path / "drafter")


def build(name: str, folder: Path, model: TargetModel, **other: Any) -> Drafter:
    """As the engine does for `--drafter NAME --drafter-weights FOLDER`."""
    return registry.build(GOODS[name].method, target(name, model, **other), {"weights": str(folder)})


def told(name: str, folder: Path, model: TargetModel, **other: Any) -> str:
    """The one sentence by which a bad drafter is refused."""
    with pytest.raises(OutriderError) as caught:
        build(name, folder, model, **other)
    return sentence(caught.value)


def sentence(error: OutriderError) -> str:
    """What an error says, if a person can read it."""
    assert error.message.endswith(".") and not TRACE.search(error.message), error.message
    assert error.hint
    return error.message


def tensors(name: str, folder: Path) -> Tensors:
    return load_file(folder / GOODS[name].weights)


def write(name: str, folder: Path, changed: Mapping[str, Tensor]) -> None:
    file = folder / GOODS[name].weights
    file.unlink()  # the old one may still be mapped
    save_file(dict(changed), file)


def owned(name: str, all_: Tensors) -> dict[str, Tensor]:
    """The drafter's own tensors, one of those that differ in a number only."""
    own = {key: part for key, part in all_.items() if key.startswith(GOODS[name].own)}
    alike = {re.sub(r"\d+", "N", key): key for key in reversed(own)}
    return {key: own[key] for key in alike.values()}


def settings(name: str, folder: Path) -> dict[str, Any]:
    return json.loads((folder / GOODS[name].settings).read_text())


def change(name: str, folder: Path, at: tuple[str, ...], value: Any) -> None:
    """Another value in the config; None at a key that is to go."""
    whole = settings(name, folder)
    inner = whole
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    (folder / GOODS[name].settings).write_text(json.dumps(whole))


def numbers(inner: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a config holds whole numbers."""
    for key, value in inner.items():
        if isinstance(value, Mapping):
            yield from numbers(value, (*at, key))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*at, key)


@every
def test_as_it_should_be_it_loads_and_drafts(name: str, made: dict[str, Path], model: TargetModel) -> None:
    cache = ChatCache(target(name, model))
    loaded = registry.load(GOODS[name].method, cache.target, {"weights": str(made[name])}, pytest.fail)
    assert toys.answer(cache, PROMPT, loaded, limit=8).proposed


# ---------------------------------------------------------------------------------------------------- tensors


@every
def test_a_missing_tensor(name: str, folder: Path, model: TargetModel) -> None:
    whole = tensors(name, folder)
    for key in owned(name, whole):
        write(name, folder, {other: part for other, part in whole.items() if other != key})
        if key in GOODS[name].spare:
            build(name, folder, model)
        else:
            assert told(name, folder, model)


@every
def test_a_tensor_of_another_shape(name: str, folder: Path, model: TargetModel) -> None:
    whole = tensors(name, folder)
    for key, part in owned(name, whole).items():
        if part.ndim and not key.endswith(("embed_tokens.weight", "lm_head.weight")):
            write(name, folder, {**whole, key: torch.cat((part, part[:1]))})
            assert told(name, folder, model)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch.int8, "whole numbers"),
        (torch.int64, "whole numbers"),
        (torch.float8_e4m3fn, "8-bit floats"),
        (torch.complex64, "complex|C64"),
    ],
    ids=str,
)
@every
def test_numbers_that_are_no_weights(
    name: str, kind: torch.dtype, words: str, folder: Path, model: TargetModel
) -> None:
    whole = tensors(name, folder)
    key = next(key for key, part in owned(name, whole).items() if part.ndim == 2 and part.is_floating_point())
    write(name, folder, {**whole, key: whole[key].to(kind)})
    assert re.search(words, told(name, folder, model))


@every
def test_a_tensor_that_nobody_knows(name: str, folder: Path, model: TargetModel) -> None:
    whole = tensors(name, folder)
    write(name, folder, {**whole, "surprise.weight": torch.ones(3)})
    if name in WHOLE:
        build(name, folder, model)
    else:
        assert "surprise.weight" in told(name, folder, model)
    if name in WHOLE[:2]:
        key = next(iter(owned(name, whole))).rsplit(".", 2)[0] + ".surprise.weight"
        write(name, folder, {**whole, key: torch.ones(3)})
        assert "surprise" in told(name, folder, model)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("eagle1", "layers.0.self_attn.rotary_emb.inv_freq"),
        ("eagle1", "embed_tokens.weight"),
        ("eagle3", "midlayer.self_attn.rotary_emb.inv_freq"),
        ("dflash", "layers.0.self_attn.rotary_emb.inv_freq"),
        ("dflash", "rotary_emb.inv_freq"),
        ("dflash2", "lm_head.weight"),
        ("mtp_copy", "model.layers.2.self_attn.rotary_emb.inv_freq"),
        ("mtp_copy", "model.layers.2.embed_tokens.weight"),
        ("assistant", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("draft_model", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_copies_and_tables_are_let_be(name: str, key: str, folder: Path, model: TargetModel) -> None:
    extra = torch.ones(VOCAB, layers.WIDTH) if "inv_freq" not in key else torch.ones(4)
    write(name, folder, {**tensors(name, folder), key: extra})
    build(name, folder, model)


def _unmarked(d2t: Tensor, t2d: Tensor) -> Tensors:
    return {"t2d": t2d.roll(1)}


REDUCED: dict[str, tuple[Callable[[Tensor, Tensor], Tensors], str]] = {
    "too short": (lambda d2t, t2d: {"d2t": d2t[:-1]}, "d2t"),
    "too long": (lambda d2t, t2d: {"d2t": torch.cat((d2t, d2t[-1:]))}, "d2t"),
    "beyond the end": (lambda d2t, t2d: {"d2t": d2t + VOCAB}, "d2t leads outside the vocabulary"),
    "before the start": (lambda d2t, t2d: {"d2t": d2t - VOCAB}, "d2t leads outside the vocabulary"),
    "floats": (lambda d2t, t2d: {"d2t": d2t.float()}, "d2t holds no whole numbers"),
    "bits": (lambda d2t, t2d: {"d2t": d2t > 0}, "d2t holds no whole numbers"),
    "other marks": (_unmarked, "t2d marks other tokens than d2t leads to"),
    "no marks": (lambda d2t, t2d: {"t2d": t2d & False}, "t2d marks other tokens than d2t leads to"),
}


@pytest.mark.parametrize("fault", list(REDUCED))
@pytest.mark.parametrize("name", ["eagle3", "eagle3_speculators", "peagle", "dflash_speculators"])
def test_the_table_of_a_reduced_head(name: str, fault: str, folder: Path, model: TargetModel) -> None:
    whole, (broken, words) = tensors(name, folder), REDUCED[fault]
    write(name, folder, {**whole, **broken(whole["d2t"], whole["t2d"])})
    assert words in told(name, folder, model)


# ---------------------------------------------------------------------------------------------------- another model


OTHERS: list[tuple[dict[str, int], str, tuple[str, ...]]] = [  # and whose files do not tell it
    ({"width": 64}, "64|48|96|32", ("draft_model",)),
    ({"vocab": 300}, "300", ("draft_model", "mtp_parallel", "dflash2")),
    (
        {"layers": 5},
        r"\b5\b",
        ("draft_model", "eagle", "peagle", "medusa", "hydra", "assistant", "dflash2", "dflash_spec"),
    ),
]


@pytest.mark.parametrize(
    ("name", "other", "words"),
    [(name, other, words) for other, words, blind in OTHERS for name in GOODS if not name.startswith(blind)],
)
def test_a_target_of_another_size(
    name: str, other: dict[str, int], words: str, made: dict[str, Path], model: TargetModel
) -> None:
    assert re.search(words, told(name, made[name], model, **other))


@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa", "hydra", "mtp_copy", "assistant", "draft_model"])
def test_another_tokenizer(name: str, folder: Path, model: TargetModel) -> None:
    spelt = json.loads(toys.tokenizer_json())
    spelt["model"]["vocab"] = {f"<{index}>": index for index in range(256)}
    spelt["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(spelt))
    assert "tokenizer" in told(name, folder, model)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("eagle3", ("eagle_aux_hidden_state_layer_ids",), [0, 1, 9], "does not have"),
        ("eagle3", ("eagle_aux_hidden_state_layer_ids",), [0, 1], "names 2 layers and reads 3 states"),
        ("eagle3", ("eagle_aux_hidden_state_layer_ids",), [0, 1, -3], "does not have"),
        ("eagle3", ("eagle_aux_hidden_state_layer_ids",), {"a": 1}, "makes no sense"),
        ("eagle3", ("num_target_layers",), 5, "made for 5 layers"),
        ("peagle", ("pard_token",), VOCAB, "names no mask token|mask token in the config"),
        ("peagle", ("num_hidden_layers",), 2, "holds 3 layers and the config says 2"),
        ("dflash", ("num_target_layers",), 5, "layers 5"),
        ("dflash", ("dflash_config", "target_layer_ids"), [0, 7], "reads layer 8"),
        ("dflash", ("dflash_config", "target_layer_ids"), [0], "fc takes 2 target states"),
        ("dflash", ("dflash_config", "mask_token_id"), VOCAB, "no token of"),
        ("dflash2", ("block_size",), 7, "two block sizes, 7 and 5"),
        ("dflash2", ("dflash_config", "conv_kernel_size"), 4, "conv_kernel_size of 4, the tensors have 3"),
        ("dflash2", ("dflash_config", "block_size"), 65, "a block of 65 does not fit"),
        ("dspark", ("markov_rank",), 8, "markov_rank of 8, the tensors have 6"),
        ("dflash_speculators", ("draft_vocab_size",), 19, "the config says 19"),
        ("hydra", ("hidden_state_offset",), 9, "9"),
        ("hydra", ("hidden_state_offset",), "9", "hidden_state_offset"),
        ("mtp_parallel", ("n_future_tokens",), 2, "n_layers|layers of 3"),
        ("medusa", ("medusa_choices",), [[0, 1]], "medusa_choices"),
        ("medusa", ("medusa_choices",), "all", "medusa_choices"),
    ],
)
def test_a_config_that_contradicts_weights_or_target(
    name: str, at: tuple[str, ...], value: Any, words: str, folder: Path, model: TargetModel
) -> None:
    change(name, folder, at, value)
    assert re.search(words, told(name, folder, model))


# ---------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("value", [-1, "64", 2.5, 10**12, [3]], ids=str)
@every
def test_a_number_that_is_none(name: str, value: Any, folder: Path, model: TargetModel) -> None:
    good = (folder / GOODS[name].settings).read_text()
    meant = {-1: "vocab_size" if name == "mtp_parallel" else "", 10**12: "selector_top_k"}  # no limit, and all of them
    for at in numbers(json.loads(good)):
        if at[-1] not in GOODS[name].unread and (isinstance(value, list) or at[-1] != meant.get(value)):
            change(name, folder, at, value)
            assert told(name, folder, model), at
            (folder / GOODS[name].settings).write_text(good)


@pytest.mark.parametrize("value", ["x", -1.0, float("nan"), [1.0], True], ids=str)
@every
def test_reals_that_are_none(name: str, value: Any, folder: Path, model: TargetModel) -> None:
    whole = settings(name, folder)
    inner = next((key for key in ("transformer_layer_config", "text_config") if key in whole), None)
    for key in ("rms_norm_eps", "norm_eps"):
        if key in (whole[inner] if inner else whole):
            change(name, folder, (inner, key) if inner else (key,), value)
            assert "rms_norm_eps" in told(name, folder, model)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "yarn", "factor": "x"},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0], "long_factor": [1.0, 2.0, 3.0], "factor": 2.0},
        {"rope_type": "corkscrew"},
        {"rope_type": 7},
        [1],
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["eagle3", "dflash", "draft_model"])
def test_a_rope_that_is_none(name: str, scaling: object, folder: Path, model: TargetModel) -> None:
    change(name, folder, ("rope_scaling",), scaling)
    assert re.search("rope|Rope|wrong kind", told(name, folder, model))


@pytest.mark.thorough
@every
def test_whatever_stands_in_a_config_is_told_or_means_nothing(name: str, folder: Path, model: TargetModel) -> None:
    good = (folder / GOODS[name].settings).read_text()

    def places(inner: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for key, value in inner.items():
            yield (*at, key)
            if isinstance(value, Mapping):
                yield from places(value, (*at, key))

    for at in places(json.loads(good)):
        for value in (-1, 0, "64", 2.5, 10**12, True, None, [3], {}, "x", [], float("nan")):
            change(name, folder, at, value)
            try:
                build(name, folder, model)
            except OutriderError as error:
                sentence(error)
            (folder / GOODS[name].settings).write_text(good)


# ---------------------------------------------------------------------------------------------------- files


def _cut(size: int) -> Callable[[Path, Path], object]:
    return lambda weights, config: _rewritten(weights, weights.read_bytes()[:size])


def _rewritten(file: Path, data: bytes) -> None:
    file.unlink()  # the old one may still be mapped
    file.write_bytes(data)


def _loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


FILES: dict[str, Callable[[Path, Path], object]] = {
    "no weights": lambda weights, config: weights.unlink(),
    "weights of no bytes": _cut(0),
    "weights cut in the header": _cut(60),
    "weights cut in the body": _cut(-7),
    "weights and more": lambda weights, config: _rewritten(weights, weights.read_bytes() + b"more"),
    "a header too long": lambda weights, config: _rewritten(weights, (1 << 62).to_bytes(8, "little") + b"{}" * 40),
    "a web page": lambda weights, config: _rewritten(weights, b"<!DOCTYPE html><html>" + b" " * 99),
    "weights that are a folder": lambda weights, config: (weights.unlink(), weights.mkdir()),
    "weights that lead to themselves": lambda weights, config: _loop(weights),
    "weights that lead nowhere": lambda weights, config: (weights.unlink(), weights.symlink_to("nowhere")),
    "an empty folder": lambda weights, config: [file.unlink() for file in weights.parent.iterdir()],
    "no folder": lambda weights, config: shutil.rmtree(weights.parent),
    "a folder that leads to itself": lambda weights, config: (
        shutil.rmtree(weights.parent),
        weights.parent.symlink_to(weights.parent),
    ),
    "a config of nothing": lambda weights, config: config.write_text(""),
    "a config that is no JSON": lambda weights, config: config.write_text("{'a': 1"),
    "a config that is a list": lambda weights, config: config.write_text("[]"),
    "a config without end": lambda weights, config: config.write_text('{"a":' + "[" * 100_000),
    "a config of bytes": lambda weights, config: config.write_bytes(b"\xff\xfe\0"),
    "a config that is a folder": lambda weights, config: (config.unlink(), config.mkdir()),
    "another kind of file": lambda weights, config: (shutil.rmtree(weights.parent), weights.parent.write_text("a b")),
    "some model": lambda weights, config: (
        shutil.rmtree(weights.parent),
        toys.checkpoint(weights.parent, extra=[f"<|more{index}|>" for index in range(300)]),
    ),
}


@pytest.mark.parametrize("fault", list(FILES))
@few
def test_broken_files(name: str, fault: str, folder: Path, model: TargetModel) -> None:
    good = GOODS[name]
    FILES[fault](folder / good.weights, folder / good.settings)
    assert told(name, folder, model)


@pytest.mark.parametrize("name", ["eagle3", "medusa", "assistant"])
def test_files_that_no_method_takes(name: str, folder: Path, model: TargetModel) -> None:
    """Weights without the name of a method: the reason of each."""
    FILES["weights cut in the body"](folder / GOODS[name].weights, folder / GOODS[name].settings)
    with pytest.raises(DrafterError) as caught:
        discovery.accepting(target(name, model).info, str(folder))
    assert all(f"{each.method}: " in sentence(caught.value) for each in GOODS.values())


class Runs:
    """What a pickle may hold: a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("form", ["zip", "older", "bare"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("eagle1", "pytorch_model.bin"),
        ("eagle3_speculators", "pytorch_model.bin"),
        ("medusa", "medusa_lm_head.pt"),
        ("hydra", "hydra_lm_head.pt"),
        ("mtp_parallel", "consolidated.pth"),
        *((other, "pytorch_model.bin") for other in ("dflash", "mtp_copy", "assistant", "draft_model")),
    ],
)
def test_code_in_a_pickle_is_not_run(
    name: str, file: str, form: str, folder: Path, model: TargetModel, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    (folder / GOODS[name].weights).unlink()
    if form == "bare":
        (folder / file).write_bytes(pickle.dumps(Runs(trace), 2))
    else:
        torch.save({"fc.weight": Runs(trace)}, folder / file, _use_new_zipfile_serialization=form == "zip")
    assert re.search("(could|can) run code", told(name, folder, model))
    assert not trace.exists()
    pickle.loads(pickle.dumps(Runs(trace)))  # the trap is one
    assert trace.exists()
