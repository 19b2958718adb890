"""Whole models over quantised weights: as stored, rounded while loading, and expanded give what they should."""

from __future__ import annotations

import golden
import pytest
import torch
from torch import Tensor

from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.formats.quantized import quantise
from outrider.core.model.decoder import Decoder
from outrider.core.model.kernels import forms
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.kernels.linear import Expanding, Int4
from outrider.core.model.kernels.packed_linear import Packed
from outrider.core.model.load import load_decoder

KINDS = ["llama", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5_nested", "deepseek_v3", "gemma4_moe", "gemma4_e", "lfm2"]
CPU = torch.device("cpu")


def load(name: str, form: WeightFormat) -> Decoder:
    checkpoint = open_checkpoint(golden.FOLDER / name)
    try:
        return load_decoder(checkpoint, form, 64)
    finally:
        checkpoint.close()


def logits(decoder: Decoder, ids: Tensor) -> Tensor:
    return decoder.run(ids, decoder.new_cache(64)).logits.float()


def test_experts_that_stay_packed_give_the_reference() -> None:
    """MXFP4 rows, gate and up interleaved, biases: nothing is expanded before the product."""
    reference = golden.tensors("gpt_oss_mxfp4")
    decoder = load("gpt_oss_mxfp4", WeightFormat(torch.float32, CPU, keep="all"))
    mlp = decoder.weights.blocks[0].channel
    assert isinstance(mlp.experts[0].gate_up, (Packed, Expanding))  # type: ignore[union-attr]
    found = logits(decoder, reference["input_ids"][0])
    golden.assert_close(found, reference["logits"][0], atol=5e-4)
    plain = load("gpt_oss_mxfp4", WeightFormat(torch.float32, CPU, keep="none"))
    assert decoder.weights.parameters == plain.weights.parameters
    assert decoder.weights.nbytes < 0.8 * plain.weights.nbytes


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bits", [8, 4])
def test_rounding_while_loading(name: str, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes go through fusing, splitting and reordering as the plain numbers they stand for do."""
    ids = golden.tensors(name)["input_ids"][0][:16]
    decoder = load(name, WeightFormat(torch.float32, CPU, quantize=bits))
    found = logits(decoder, ids)
    assert decoder.weights.nbytes < load(name, WeightFormat(torch.float32, CPU)).weights.nbytes
    monkeypatch.setattr(forms, "quantise", lambda weight, bits: quantise(weight, bits).expand())
    want = logits(load(name, WeightFormat(torch.float32, CPU, quantize=bits)), ids)
    torch.testing.assert_close(found, want, atol=golden.tolerance(name), rtol=0)
    assert float((golden.sketch(want) - golden.tensors(name)["logits"][0][:16]).abs().max()) > 0.01, (
        "nothing was rounded"
    )


@pytest.mark.parametrize("bits", [8, 4])
def test_the_cpu_kernels_give_what_the_expanded_weights_give(bits: int) -> None:
    reference = golden.tensors("qwen3")
    ids = reference["input_ids"][0][:16]
    fast = load("qwen3", WeightFormat(torch.bfloat16, CPU, quantize=bits))
    slow = load("qwen3", WeightFormat(torch.float32, CPU, quantize=bits))
    got, want = logits(fast, ids), logits(slow, ids)
    assert not isinstance(fast.weights.blocks[0].mixer.mix, Expanding)  # type: ignore[union-attr]
    assert float((got - want).square().mean().sqrt() / want.std()) < 0.05


def test_the_head_keeps_eight_bits_and_routers_all() -> None:
    decoder = load("qwen3_moe", WeightFormat(torch.bfloat16, CPU, quantize=4))
    mlp = decoder.weights.blocks[-1].channel
    assert isinstance(decoder.weights.blocks[0].mixer.mix, (Packed, Int4))  # type: ignore[union-attr]
    assert decoder.weights.head.nbytes > 256 * 64  # a byte for each weight, and scales
    assert mlp.router.linear.nbytes == 2 * mlp.router.linear.features.numel()  # type: ignore[union-attr]
