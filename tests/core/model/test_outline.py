"""A load without weights: it accepts what a load accepts, refuses what it refuses, in its words, and needs no compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from golden import CPU, FOLDER, NAMES
from toys import checkpoint as toy

from outrider.core.base.errors import ModelError
from outrider.core.formats.checkpoint import Checkpoint, open_checkpoint
from outrider.core.model import outline
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder


@pytest.mark.parametrize("name", NAMES)
def test_every_family_passes(name: str) -> None:
    outline.check(open_checkpoint(FOLDER / name))


def lacking(path: Path, tensor: str) -> Checkpoint:
    checkpoint = open_checkpoint(path)
    names = [name for name in checkpoint.names() if not name.endswith(tensor)]
    checkpoint.names = lambda: names  # type: ignore[method-assign]
    return checkpoint


@pytest.mark.parametrize(
    "tensor", ["embed_tokens.weight", "lm_head.weight", "1.mlp.down_proj.weight", "0.input_layernorm.weight"]
)
def test_a_missing_tensor_is_refused_as_a_load_refuses_it(tmp_path: Path, tensor: str) -> None:
    path = toy(tmp_path / "toy")
    with pytest.raises(ModelError) as loaded:
        load_decoder(lacking(path, tensor), WeightFormat(torch.float32, CPU), 64)
    with pytest.raises(ModelError) as checked:
        outline.check(lacking(path, tensor))
    assert checked.value.message == loaded.value.message


def test_the_compiler_of_torch_stays_out(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from outrider.core.model import outline\n"
    code += "from outrider.core.formats.checkpoint import open_checkpoint\n"
    code += f"outline.check(open_checkpoint(Path({str(FOLDER / 'gemma3')!r}))); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
