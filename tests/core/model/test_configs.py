"""Values in a config that are of another type or out of range: one sentence that names key and value, or a usable spec."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pytest

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import info, open_checkpoint
from outrider.core.formats.config import ConfigReader, text_config
from outrider.core.library import plan
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec

HOSTILE = sorted((Path(__file__).parents[2] / "data" / "hostile").glob("*.config.json"))
FORMS = [file for name in golden.WEIGHTS for file in sorted((golden.FOLDER / name).glob("config*.json"))]
VALUES: list[Any] = [float("nan"), float("inf"), -1, 0, 1e12, True, "x", [], {}, None, 1000, [1], {"type": "linear"}]
OTHERS = (
    "model_type",
    "full_attn_idxs",
    "hybrid_override_pattern",
    "num_experts",
)  # asked for where another key is null
Place = tuple[str, ...]


@pytest.mark.parametrize("file", HOSTILE, ids=lambda file: file.name)
def test_configs_that_once_ended_in_a_bug(file: Path, tmp_path: Path) -> None:
    family = file.name.split("-", 1)[1].removesuffix(".config.json")
    shutil.copy(file, tmp_path / "config.json")
    (tmp_path / "model.safetensors").symlink_to(golden.FOLDER / family / "model.safetensors")
    changed = {
        key for key, value in json.loads(file.read_text()).items() if value != golden.config(family).get(key, value)
    }
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelError) as caught:
        plan.of_checkpoint(checkpoint)
        info(checkpoint)
    assert any(key in caught.value.message for key in changed) and caught.value.hint


def places(config: dict[str, Any], at: Place = ()) -> Iterator[Place]:
    for key, value in config.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from places(value, (*at, key))


def put(config: dict[str, Any], at: Place, value: Any) -> dict[str, Any]:
    made = copy.deepcopy(config)
    inner = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return made


def used(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Keys that the reader of this family asks for."""
    asked: set[str] = set()
    value = ConfigReader._value
    with monkeypatch.context() as patch:
        patch.setattr(ConfigReader, "_value", lambda self, key, default: (asked.add(key), value(self, key, default))[1])
        read_spec(config)
    return asked


@pytest.mark.parametrize("file", FORMS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_whatever_a_used_key_holds(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence that is short and names a key, or a spec that a plan can be made of; nothing grows with absurd numbers."""
    config = text_config(json.loads(file.read_text()))
    keys = used(config, monkeypatch)
    there = list(places(config))
    absent = [(key,) for key in sorted(keys) if all(key not in place for place in there)]
    for at in [place for place in there if place[-1] in keys] + absent:
        for value in VALUES:
            try:
                spec = read_spec(put(config, at, value))
            except ModelError as error:
                assert error.hint and len(error.message) < 500 and "\n" not in error.message, (at, value)
                assert any(key in error.message for key in (*keys, *OTHERS)), (at, value, error.message)
            else:
                assert (
                    plan.states(spec, 64, "fp32") >= 0 and plan.extra_state_bytes(spec, 64, "fp32") >= 0 and hash(spec)
                ), at


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        ("llama", {"num_attention_heads": "x"}, r"num_attention_heads \('x'\): it must be a whole number from 1 to"),
        ("llama", {"num_key_value_heads": 3}, r"num_key_value_heads \(3\): it must divide num_attention_heads, which"),
        ("llama", {"hidden_size": 1e12}, r"hidden_size \(1000000000000\.0\)"),
        ("llama", {"num_hidden_layers": 10**12}, r"num_hidden_layers \(1000000000000\): it must .* from 1 to 4096"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu', and known are silu"),
        ("llama", {"attention_bias": "no"}, r"attention_bias \('no'\): it must be true or false"),
        ("llama", {"rope_parameters": {"rope_type": "corkscrew"}}, r"rope_parameters\.rope_type \('corkscrew'\)"),
        ("llama", {"rope_parameters": [1]}, r"rope_parameters \(\[1\]\): it must be a table"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, r"no usable 'rope_parameters\.factor'"),
        ("llama", {"head_dim": 15}, r"heads of 15 dims, which cannot turn in pairs \(head_dim"),
        ("gemma4_e", {"num_kv_shared_layers": 6}, r"num_kv_shared_layers \(6\)"),
        ("gemma4_e", {"layer_types": ["full_attention"]}, r"layer_types \(\['full_attention'\]\): it has 1 entries"),
        ("qwen3_moe", {"num_experts_per_tok": 1000}, r"num_experts_per_tok \(1000\): it must .* from 1 to 6"),
        ("deepseek_v3", {"n_group": 3}, r"n_group \(3\): it must divide n_routed_experts, which is 8"),
        ("deepseek_v3", {"n_group": 8}, r"n_group \(8\): a group .* must have at least 2"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "linear_num_key_heads .2.: it must divide linear_num_value"),
        ("granitemoehybrid", {"mamba_n_groups": 3}, "mamba_n_groups .3.: it must divide mamba_n_heads"),
        ("nemotron_h", {"num_hidden_layers": 3}, "num_hidden_layers .3.: layers_block_type names 4 layers"),
        ("nemotron_h", {"layers_block_type": None, "hybrid_override_pattern": "MX*-"}, "hybrid_override_pattern"),
        (
            "granitemoehybrid",
            {"time_step_limit": [0.01, 0.1]},
            r"time_step_limit \(\[0\.01, 0\.1\]\): time steps are not",
        ),
        ("nemotron_h", {"time_step_limit": [0.0]}, r"time_step_limit \(\[0\.0\]\): it must be two numbers"),
        ("mimo_v2_flash", {"v_head_dim": 25}, r"v_head_dim \(25\): it must .* from 1 to 24"),
        ("phi3_longrope", {"head_dim": 64}, r"long_factor .*: it must have 24 numbers"),
        (
            "smollm3",
            {"no_rope_layers": [1, 1, 1, 2]},
            r"no_rope_layers \(\[1, 1, 1, 2\]\): it makes no sense as a list",
        ),
    ],
)
def test_the_sentence_names_key_and_value(family: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        read_spec({**golden.config(family), **change})


def test_time_steps_of_nemotron_are_not_clamped() -> None:
    """As mamba_ssm and vLLM have it, not as transformers: see the reader."""
    config = golden.config("nemotron_h")
    assert read_spec({**config, "time_step_min": 0.05, "time_step_limit": [0.0, float("inf")]}) == read_spec(config)


@pytest.mark.parametrize("value", [10**12, "MM", {"a": 1}, [], float("nan")], ids=repr)
def test_what_drafters_are_told_of_a_model_is_checked(value: Any, tmp_path: Path) -> None:
    config = {**golden.config("nemotron_h"), "layers_block_type": value, "num_hidden_layers": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(golden.FOLDER / "nemotron_h" / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    if isinstance(value, str):
        assert info(checkpoint).layers == 2
        return
    with pytest.raises(BrokenFileError, match="layers_block_type"):
        info(checkpoint)


@pytest.mark.parametrize("value", [10**12, [], True], ids=repr)
def test_numbers_that_end_in_zero_are_whole(value: Any) -> None:
    config = golden.config("llama")
    assert read_spec({**config, "hidden_size": float(config["hidden_size"])}) == read_spec(config)
    with pytest.raises(ModelError, match="hidden_size"):
        read_spec({**config, "hidden_size": value})


def test_a_published_config_that_leaves_out_what_is_usual() -> None:
    """As google/gemma-3-4b-it has it."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    text |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    spec = read_spec({"model_type": "gemma3", "text_config": text})
    mixer = spec.layers[5].mixer
    assert isinstance(mixer, AttentionSpec) and mixer.rope is not None
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.scale, mixer.window) == (8, 4, 256, 1 / 16, 0)
    assert (mixer.rope.theta, mixer.rope.kind, mixer.rope.settings) == (1e6, "linear", {"factor": 8.0})
    assert (spec.vocab, spec.context, spec.tied) == (262_208, 131_072, True)
