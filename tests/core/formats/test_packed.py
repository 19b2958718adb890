"""Quantised safetensors layouts against scalar references, written value by value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.core.base.errors import BrokenFileError, ModelError
from outrider.core.formats.packed import layout, recipes
from outrider.core.formats.safetensors import SafetensorsCheckpoint

GOLDEN = golden.FOLDER / "gpt_oss_mxfp4"
OUT, IN, G = 16, 64, 32  # outputs, inputs, group


def checkpoint(folder: Path, tensors: dict[str, Tensor], method: str, **more: object) -> SafetensorsCheckpoint:
    config = {"model_type": "llama", "quantization_config": {"quant_method": method, **more}}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return SafetensorsCheckpoint(folder)


def agrees(made: SafetensorsCheckpoint, name: str = "x.weight") -> None:
    """What the headers promise is what comes, and it is the plain weight."""
    layout, grouped = made.layout(name), made.grouped(name)
    assert (layout is None) == (grouped is None)
    if grouped is not None:
        assert layout == grouped.layout
        torch.testing.assert_close(grouped.expand(), made.load(name))


def words(codes: list[int], bits: int) -> int:
    """Values into one int32, the first in the lowest bits."""
    word = sum(code << (bits * place) for place, code in enumerate(codes))
    return word - (1 << 32) if word >> 31 else word


def random_codes(rows: int, columns: int, bits: int) -> list[list[int]]:
    g = torch.Generator().manual_seed(rows * columns + bits)
    return torch.randint(0, 1 << bits, (rows, columns), generator=g).tolist()


def numbers(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(7)) * 0.1 + 0.01


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_compressed_tensors(tmp_path: Path, bits: int, zeros: bool) -> None:
    n = 32 // bits
    codes, middles = random_codes(OUT, IN, bits), random_codes(OUT, IN // G, bits)
    scale = numbers(OUT, IN // G)
    packed = torch.tensor([[words(row[k : k + n], bits) for k in range(0, IN, n)] for row in codes], dtype=torch.int32)
    tensors = {"x.weight_packed": packed, "x.weight_scale": scale, "x.weight_shape": torch.tensor([OUT, IN])}
    if zeros:
        columns = [[middles[r][c] for r in range(OUT)] for c in range(IN // G)]
        rows = [[words(column[k : k + n], bits) for column in columns] for k in range(0, OUT, n)]
        tensors["x.weight_zero_point"] = torch.tensor(rows, dtype=torch.int32)
    half = 1 << (bits - 1)
    want = [
        [(codes[r][c] - (middles[r][c // G] if zeros else half)) * float(scale[r, c // G]) for c in range(IN)]
        for r in range(OUT)
    ]
    made = checkpoint(
        tmp_path, tensors, "compressed-tensors", config_groups={"group_0": {"weights": {"num_bits": bits}}}
    )
    assert made.names() == ["x.weight"]
    assert made.shape("x.weight") == (OUT, IN)
    torch.testing.assert_close(made.load("x.weight"), torch.tensor(want))
    agrees(made)


def test_awq(tmp_path: Path) -> None:
    codes, middles = random_codes(IN, OUT, 4), random_codes(IN // G, OUT, 4)
    scales = numbers(IN // G, OUT)
    places = (0, 4, 1, 5, 2, 6, 3, 7)  # output k of eight lies at this place

    def pack(rows: list[list[int]]) -> Tensor:
        out = []
        for row in rows:
            line = []
            for k in range(0, OUT, 8):
                eight = [0] * 8
                for output, place in enumerate(places):
                    eight[place] = row[k + output]
                line.append(words(eight, 4))
            out.append(line)
        return torch.tensor(out, dtype=torch.int32)

    want = [[(codes[c][r] - middles[c // G][r]) * float(scales[c // G, r]) for c in range(IN)] for r in range(OUT)]
    made = checkpoint(
        tmp_path, {"x.qweight": pack(codes), "x.qzeros": pack(middles), "x.scales": scales}, "awq", bits=4
    )
    assert made.names() == ["x.weight"]
    torch.testing.assert_close(made.load("x.weight"), torch.tensor(want))
    agrees(made)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq(tmp_path: Path, bits: int, ordered: bool, version: str) -> None:
    n = 32 // bits
    codes, middles = random_codes(IN, OUT, bits), random_codes(IN // G, OUT, bits)
    scales = numbers(IN // G, OUT)
    group = [c // G for c in range(IN)] if ordered else [(c * 7) % (IN // G) for c in range(IN)]
    packed = [[words([codes[c + j][r] for j in range(n)], bits) for r in range(OUT)] for c in range(0, IN, n)]
    zeros = [[words(row[k : k + n], bits) for k in range(0, OUT, n)] for row in middles]
    tensors = {
        "x.qweight": torch.tensor(packed, dtype=torch.int32),
        "x.qzeros": torch.tensor(zeros, dtype=torch.int32),
        "x.scales": scales,
    }
    if not ordered:
        tensors["x.g_idx"] = torch.tensor(group, dtype=torch.int32)
    one = 1 if version == "gptq" else 0
    want = [
        [(codes[c][r] - middles[group[c]][r] - one) * float(scales[group[c], r]) for c in range(IN)] for r in range(OUT)
    ]
    made = checkpoint(tmp_path, tensors, "gptq", bits=bits, checkpoint_format=version, desc_act=not ordered)
    torch.testing.assert_close(made.load("x.weight"), torch.tensor(want))
    agrees(made)


@pytest.mark.parametrize("shape", [(), (1,), (200,), (200, 1), (2, 3)], ids=str)
def test_fp8_scales_of_every_kind(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight = (torch.randn(200, 300, generator=torch.Generator().manual_seed(1)) * 20).to(torch.float8_e4m3fn)
    scale = numbers(*shape) if shape else torch.tensor(0.03)
    name = "x.weight_scale_inv" if shape == (2, 3) else "x.weight_scale"
    made = checkpoint(tmp_path, {"x.weight": weight, name: scale}, "fp8")

    def at(row: int, column: int) -> float:
        if shape in ((), (1,)):
            return float(scale)
        if shape == (2, 3):
            return float(scale[row // 128, column // 128])
        return float(scale.reshape(-1)[row])

    got = made.load("x.weight", torch.float32)
    for row, column in [(0, 0), (127, 127), (128, 128), (199, 299), (5, 256), (130, 3)]:
        assert float(got[row, column]) == pytest.approx(float(weight[row, column].float()) * at(row, column))
    agrees(made)


def test_mxfp4_equals_the_reference() -> None:
    made = SafetensorsCheckpoint(GOLDEN)
    want = load_file(GOLDEN / "golden.safetensors")["dequantised.layer0.gate_up_proj"]
    got = made.load("model.layers.0.mlp.experts.gate_up_proj")
    assert torch.equal(got, want)
    assert made.shape("model.layers.0.mlp.experts.gate_up_proj") == tuple(want.shape)
    assert not any(name.endswith(("_blocks", "_scales")) for name in made.names())
    grouped = made.grouped("model.layers.0.mlp.experts.gate_up_proj")
    assert grouped is not None
    assert grouped.layout == made.layout("model.layers.0.mlp.experts.gate_up_proj")
    assert torch.equal(grouped.expand().view(want.shape[0], want.shape[2], want.shape[1]).transpose(1, 2), want)


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    tensors = {
        "x.weight_packed": torch.zeros(OUT, IN // 8, dtype=torch.int32),
        "x.weight_scale": torch.ones(OUT + 1, IN // G),
    }
    with pytest.raises(BrokenFileError, match=r"x\.weight_packed"):
        checkpoint(tmp_path, tensors, "compressed-tensors").load("x.weight")


def test_unknown_methods_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="by exotic, which is not read"):
        checkpoint(tmp_path, {"x.weight": torch.zeros(2, 2)}, "exotic")


def test_plain_weights_are_left_alone() -> None:
    assert recipes({"a.weight": ("BF16", (4, 4)), "b.weight": ("F8_E4M3", (4, 4))}, {}) == ({}, set())


VALUES: list[Any] = [float("nan"), float("inf"), -1, 0, 3, 16, 1e12, True, "x", [], [1], {}, {"weights": 3}, None]
PACKED = {
    "a.qweight": ("I32", (8, 64)),
    "a.qzeros": ("I32", (2, 8)),
    "a.scales": ("F16", (2, 64)),
    "b.weight_packed": ("I32", (64, 8)),
    "b.weight_scale": ("F16", (64, 2)),
    "c_blocks": ("U8", (2, 4, 2, 16)),
    "c_scales": ("U8", (2, 4, 2)),
    "d.weight": ("F8_E4M3", (64, 64)),
    "d.weight_scale": ("F32", (64, 1)),
}


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("key", ["bits", "w_bit", "desc_act", "config_groups", "checkpoint_format"])
def test_settings_of_another_kind(key: str, value: Any) -> None:
    for config in ({key: value}, {"config_groups": {"group_0": {"weights": {"num_bits": value}}}}):
        try:
            made, _ = recipes(PACKED, config)
        except ModelError as error:
            assert "quantization_config" in error.message and error.hint
        else:
            assert all(recipe.bits in (1, 2, 4, 8) for recipe in made.values())


@pytest.mark.parametrize("name", sorted(PACKED))
@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2, 2, 2)], ids=str)
def test_parts_with_another_number_of_axes(name: str, shape: tuple[int, ...]) -> None:
    stored = {**PACKED, name: (PACKED[name][0], shape)}
    try:
        made, _ = recipes(stored, {})
        assert all(layout(recipe, stored) is None or recipe.shape for recipe in made.values())
    except BrokenFileError as error:
        assert "axes" in error.message
