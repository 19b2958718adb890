"""Files of the larger families whose metadata and tensors contradict each other, or that need what the engine has not."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_writer import write_gguf

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.formats.gguf.reader import GGUFFile
from outrider.core.library import plan
from outrider.core.model.families import read_spec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder

REAL = Path(__file__).resolve().parents[2] / "data" / "gguf"


class Copy:
    """A real file that can be changed; `None` removes a key or a tensor."""

    def __init__(self, name: str) -> None:
        file = GGUFFile(REAL / f"{name}.gguf")
        self.name, self.metadata = name, file.metadata
        self.tensors: dict[str, tuple[tuple[int, ...], str, bytes]] = {}
        for tensor in file.tensors.values():
            with file.raw(tensor) as raw:
                self.tensors[tensor.name] = (tensor.shape, tensor.kind, bytes(raw))
        file.close()

    def write(self, folder: Path, **changes: Any) -> Path:
        """The file with keys below the architecture's name changed."""
        told = {f"{self.name}.{key.replace('__', '.')}": value for key, value in changes.items()}
        metadata = {key: value for key, value in (self.metadata | told).items() if value is not None}
        return write_gguf(folder / "changed.gguf", metadata, self.tensors)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen35", {"ssm__time_step_rank": 3}, "has '3' as qwen35.ssm.time_step_rank"),
        ("qwen35", {"ssm__group_count": None}, "lacks qwen35.ssm.group_count"),
        ("qwen35", {"ssm__inner_size": 256}, "too few for 4 heads"),
        ("qwen35", {"attention__recurrent_layers": [True, False]}, "as qwen35.attention.recurrent_layers"),
        ("qwen35", {"nextn_predict_layers": 4}, "promises 0 layers and holds 4"),
        ("gpt-oss", {"expert_count": 3}, "does not hold all experts"),
        ("gpt-oss", {"expert_count": 1 << 31}, "counts 2147483648 experts"),
        ("gpt-oss", {"expert_count": None}, "lacks gpt-oss.expert_count"),
        ("gpt-oss", {"attention__sliding_window": 0}, "has '0' as gpt-oss.attention.sliding_window"),
        ("deepseek2", {"expert_gating_func": 1}, "a router that does not use a sigmoid"),
        ("deepseek2", {"expert_count": 7}, "is not 7 experts"),
        ("deepseek2", {"attention__head_count": 2}, "does not fit its other half"),
        ("deepseek2", {"attention__key_length_mla": 8}, "has '8' as deepseek2.attention.key_length_mla"),
        ("deepseek2", {"attention__temperature_scale": 0.1}, "scales its queries by position"),
        ("gemma4", {"attention__head_count_kv": [2, 1, 2, 2]}, "layers of one kind with different key heads"),
        ("gemma4", {"feed_forward_length": [64, 64, 64, 65]}, "as gemma4.feed_forward_length"),
        ("gemma4", {"attention__sliding_window_pattern": [True]}, "as gemma4.attention.sliding_window_pattern"),
        ("gemma4", {"attention__key_length": 16}, "rope_freqs.weight does not fit heads of 16"),
        (
            "muse-glimmer",
            {"attention__head_count": 3},
            "64 rows of model.layers.0.self_attn.q_proj.weight are not 3 heads",
        ),
        ("muse-glimmer", {"logit_scale": None}, "lacks muse-glimmer.logit_scale"),
    ],
)
def test_metadata_that_cannot_be_used(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        open_checkpoint(Copy(name).write(tmp_path, **changes))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "message"),
    [
        ("qwen35", "blk.0.ssm_out.weight", (64, 32), "is not 4 heads of 16 wide"),
        ("qwen35", "blk.0.ssm_conv1d.weight", (512,), "is not a filter for each channel"),
        ("qwen35", "blk.0.ssm_ba.weight", (8, 64), "has no place in a qwen3_5 model"),
        ("gpt-oss", "blk.1.ffn_up_exps.weight", None, "lacks its other half"),
        ("gpt-oss", "blk.1.ffn_down_exps.weight", (128, 64), "does not hold all experts"),
        ("deepseek2", "blk.0.attn_v_b.weight", None, "lacks its other half"),
        ("deepseek2", "blk.0.attn_v_b.weight", (4, 24, 31), "does not fit its other half"),
        ("deepseek2", "blk.1.ffn_up_exps.weight", (128, 64), "is not 8 experts"),
        ("gemma4", "blk.0.ffn_gate_up_exps.weight", (8, 31, 64), "is not 8 experts"),
        ("muse-glimmer", "blk.2.attn_k_norm.weight", None, "scales its queries and keys one by one"),
    ],
)
def test_tensors_that_do_not_fit(
    name: str, tensor: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path
) -> None:
    copy = Copy(name)
    copy.tensors.pop(tensor, None)
    if shape is not None:
        size = 1
        for axis in shape:
            size *= axis
        copy.tensors[tensor] = (shape, "F32", bytes(4 * size))
    with pytest.raises(ModelError, match=message):
        open_checkpoint(copy.write(tmp_path))


def test_a_file_with_only_the_layers_that_draft(tmp_path: Path) -> None:
    copy = Copy("qwen35")
    copy.tensors = {name.replace("blk.3.", "blk.4."): row for name, row in copy.tensors.items() if "blk.2." not in name}
    copy.tensors = {name: row for name, row in copy.tensors.items() if name.startswith("blk.4.") or "blk." not in name}
    with pytest.raises(ModelError, match="holds only the layers that draft for a model"):
        open_checkpoint(copy.write(tmp_path, block_count=5, nextn_predict_layers=1))


def test_a_decay_that_is_none(tmp_path: Path) -> None:
    copy = Copy("qwen35")
    shape, kind, data = copy.tensors["blk.0.ssm_a"]
    copy.tensors["blk.0.ssm_a"] = (shape, kind, bytes(len(data)))
    checkpoint = open_checkpoint(copy.write(tmp_path))
    with pytest.raises(BrokenFileError, match=r"linear_attn.A_log holds numbers that cannot be"):
        checkpoint.load("model.layers.0.linear_attn.A_log")


@pytest.mark.parametrize("name", sorted(path.stem for path in REAL.glob("*.gguf")))
def test_flipped_bits_in_the_head_end_in_an_error_or_a_model(name: str, tmp_path: Path) -> None:
    whole = (REAL / f"{name}.gguf").read_bytes()
    start, head = whole.index(b".attention.") - 60, whole.index(b"tokenizer.ggml.model")
    table = whole.rindex(b"output_norm.weight") + 60
    rng = random.Random(name)
    rejected = 0
    for turn in range(60):
        data = bytearray(whole)
        place = rng.randrange(start, head) if turn % 2 else rng.randrange(table - 6000, table)
        data[place] ^= 1 << rng.randrange(8)
        path = tmp_path / "flipped.gguf"
        path.write_bytes(data)
        try:
            checkpoint = open_checkpoint(path)
            read_spec(checkpoint.config)
            for published in checkpoint.names()[::7]:
                assert tuple(checkpoint.load(published).shape) == checkpoint.shape(published)
            checkpoint.close()
        except ModelError as error:
            assert error.message
            rejected += 1
    assert rejected > 15


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "published"),
    [
        ("qwen35", "blk.0.ffn_down.bias", (64,), "model.layers.0.mlp.down_proj.bias"),
        ("gemma4", "blk.1.ffn_up.bias", (64,), "model.layers.1.mlp.up_proj.bias"),
        ("deepseek2", "blk.0.attn_q_b.bias", (128,), "model.layers.0.self_attn.q_b_proj.bias"),
        ("muse-glimmer", "output.bias", (256,), "lm_head.bias"),
    ],
)
def test_a_tensor_that_nobody_reads(
    name: str, tensor: str, shape: tuple[int, ...], published: str, tmp_path: Path
) -> None:
    copy = Copy(name)
    copy.tensors[tensor] = shape, "F32", struct.pack("<f", 1.0) * shape[0]
    checkpoint = open_checkpoint(copy.write(tmp_path))
    with pytest.raises(ModelError, match=re.escape(published)) as caught:
        load_decoder(checkpoint, WeightFormat(torch.float32, torch.device("cpu")), 32)
    assert "does not use" in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        path.stem if path.stem == "qwen35" else pytest.param(path.stem, marks=pytest.mark.thorough)
        for path in sorted(REAL.glob("*.gguf"))
    ],
)
def test_values_of_another_kind(name: str, tmp_path: Path) -> None:
    """Each key of the architecture's own, and some others: a sentence, or a model that can be planned for."""
    copy = Copy(name)
    for key in [key for key in copy.metadata if key.startswith(f"{name}.")]:
        for value in (float("nan"), 0, 3, 4_000_000_000, True, "x", [1, 2]):
            path = copy.write(tmp_path, **{key.removeprefix(f"{name}.").replace(".", "__"): value})
            try:
                checkpoint = open_checkpoint(path)
            except ModelError as error:
                assert error.hint, key
                continue
            try:
                spec = read_spec(checkpoint.config)
                assert plan.states(spec, 64, "fp32") >= 0 and plan.extra_state_bytes(spec, 64, "fp32") >= 0
            except ModelError as error:
                assert error.hint, key
            finally:
                checkpoint.close()
