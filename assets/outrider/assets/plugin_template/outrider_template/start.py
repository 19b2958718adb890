"""Fresh weights of the right sizes for a model, to train: `python -m outrider_template.start MODEL_FOLDER WEIGHTS_FOLDER`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from outrider.core.drafting import ModelInfo
from outrider.core.drafting.files import DraftConfig, open_draft

HEAD = 64  # size of an attention head


def write(folder: Path, model: ModelInfo, seed: int = 0) -> None:
    """A config and random weights, so small that the drafter says what the model's state alone would say."""
    d = model.width
    heads = max(1, d // HEAD)
    config = {
        "model_type": "outrider-template",
        "hidden_size": d,
        "vocab_size": model.vocab,
        "intermediate_size": 4 * d,
        "num_attention_heads": heads,
        "head_dim": d // heads,
        "num_hidden_layers": 1,
    }
    shapes = DraftConfig(config, "the config").layers([0]).shapes() | {"fc.weight": (d, 2 * d), "norm.weight": (d,)}
    random = torch.Generator().manual_seed(seed)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=random) / 4 / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    weights["fc.weight"][:, d:] += torch.eye(d)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    with open_draft(asked.model) as model:
        write(asked.folder, model.model())
