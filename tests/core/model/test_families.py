"""What the golden folders do not show of a family: other published forms, sizes without experts, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from golden import FOLDER, decoder
from safetensors.torch import load_file, save_file

from outrider.core.base.errors import ModelError
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import DenseSpec


def changed(name: str, *without: str, **settings: Any) -> dict[str, Any]:
    """A folder's config with other settings."""
    kept = {key: value for key, value in golden.config(name).items() if key not in without}
    return {**kept, **settings}


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("nemotron_h", lambda: changed("nemotron_h", "layers_block_type", hybrid_override_pattern="ME*-")),
        ("nemotron_h", lambda: changed("nemotron_h", layers_block_type=["mamba", "moe", "attention", "mlp"])),
        ("granitemoehybrid", lambda: changed("granitemoehybrid", layer_types=["mamba", "attention", "mamba"])),
        ("granitemoehybrid", lambda: changed("granitemoehybrid", mamba_d_head="auto")),
        (
            "mimo_v2_flash",
            lambda: changed("mimo_v2_flash", "sliding_window", "mlp_layer_types", sliding_window_size=15),
        ),
        ("mimo_v2_flash", lambda: changed("mimo_v2_flash", "rope_parameters", rope_theta=5e6)),
    ],
)
def test_forms_of_a_config(name: str, config) -> None:
    assert read_spec(config()) == read_spec(golden.config(name))


def test_mimo_is_qwen2_beside_other_layers(tmp_path: Path) -> None:
    config = json.loads((FOLDER / "qwen2" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mimo", "num_nextn_predict_layers": 1}))
    tensors = load_file(FOLDER / "qwen2" / "model.safetensors")
    save_file({**tensors, "model.mtp_layers.0.input_proj.weight": torch.ones(64, 128)}, tmp_path / "model.safetensors")
    known = golden.tensors("qwen2")
    model = decoder(tmp_path, torch.float64, 48)
    assert model.spec.family == "mimo"
    logits = model.run(known["input_ids"][0], model.new_cache(48)).logits
    golden.assert_close(logits, known["f64.logits"][0], atol=5e-6)


def test_granite_without_experts(tmp_path: Path) -> None:
    """The same as with experts that give nothing."""
    tensors = load_file(FOLDER / "granitemoehybrid" / "model.safetensors")
    silent = {k: torch.zeros_like(v) if "moe.output_linear" in k else v for k, v in tensors.items()}
    without = {k: v for k, v in tensors.items() if "block_sparse_moe" not in k}
    logits = []
    for experts, weights in ((4, silent), (0, without)):
        folder = tmp_path / str(experts)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(changed("granitemoehybrid", num_local_experts=experts)))
        save_file(weights, folder / "model.safetensors")
        model = decoder(folder, torch.float64, 48)
        logits.append(model.run(torch.arange(48), model.new_cache(48)).logits)
    torch.testing.assert_close(logits[1], logits[0], atol=1e-9, rtol=0)


def test_granite_with_position_and_no_mamba() -> None:
    config = changed(
        "granitemoehybrid", position_embedding_type="rope", layer_types=["attention"] * 3, num_local_experts=0
    )
    layer = read_spec(config).layers[0]
    rope = getattr(layer.mixer, "rope", None)
    assert rope is not None and rope.theta == 10000.0 and layer.channel == DenseSpec(64)


def test_nemotrons_older_name_of_the_head_size() -> None:
    mixer = read_spec(changed("nemotron_h", "head_dim", attention_head_dim=32)).layers[2].mixer
    assert getattr(mixer, "head_dim", None) == 32


def test_latent_experts_are_refused() -> None:
    with pytest.raises(ModelError, match="latent experts"):
        read_spec(changed("nemotron_h", moe_latent_size=16))
