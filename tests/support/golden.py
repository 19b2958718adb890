"""The golden checkpoints: tiny models of every family with the outputs of a reference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from golden_files import assert_close as assert_close
from golden_files import sketch as sketch
from golden_files import unpacked
from safetensors.torch import load_file
from torch import Tensor

from outrider.core.drafting import ModelInfo
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.core.formats.config import text_config
from outrider.core.model.blocks.rope import table
from outrider.core.model.decoder import Decoder
from outrider.core.model.families import read_spec
from outrider.core.model.families.spec import AttentionSpec, LatentSpec
from outrider.core.model.kernels.forms import WeightFormat
from outrider.core.model.load import load_decoder
from outrider.core.model.model import MAX_DRAFT_ROWS, TargetModel
from outrider.core.session.chat_cache import ChatCache

FOLDER = unpacked() / "golden"
CPU = torch.device("cpu")
CONTEXT = 64
NAMES = sorted(p.name for p in FOLDER.iterdir())


def config(name: str) -> dict[str, Any]:
    """The text settings of one checkpoint."""
    return text_config(json.loads((FOLDER / name / "config.json").read_text()))


def mixers(name: str) -> list[object]:
    """The spec of each layer's token mixer."""
    return [layer.mixer for layer in read_spec(config(name)).layers]


WEIGHTS = [name for name in NAMES if not name.endswith(("_nested", "_mxfp4"))]  # the others store the same ones anew
SLIDING = [n for n in WEIGHTS if any(isinstance(some, AttentionSpec) and some.window for some in mixers(n))]
RECURRENT = [n for n in WEIGHTS if not all(isinstance(some, AttentionSpec | LatentSpec) for some in mixers(n))]


def decoder(folder: Path, dtype: torch.dtype, context: int) -> Decoder:
    """The model of one folder."""
    checkpoint = open_checkpoint(folder)
    try:
        return load_decoder(checkpoint, WeightFormat(dtype, CPU), context)
    finally:
        checkpoint.close()


def tensors(name: str) -> Mapping[str, Tensor]:
    """The reference's inputs, and sketches of its outputs: see `golden_files.py`."""
    known = load_file(FOLDER / name / "golden.safetensors")
    return known | {"logits": known["f64.logits"]}


def tolerance(name: str) -> float:
    """How far float32 logits may be off."""
    return 2e-3 if name.startswith(("qwen3_next", "qwen3_5")) else 5e-4


class Golden:
    """A golden checkpoint as a target, with its greedy continuation.

    `tight`: rings on its sliding layers, and as little slack as drafts of 7 tokens need, so that prompts are wide passes.
    """

    def __init__(self, name: str, *, tight: bool = False) -> None:
        folder = FOLDER / name
        # the dynamic kinds fix their table by the context: the reference was made at the length of the text
        settings = config(name)
        made_for = settings["max_position_embeddings"]
        original = (settings.get("rope_parameters") or {}).get("original_max_position_embeddings", made_for)
        self.decoder = decoder(folder, torch.float32, CONTEXT + MAX_DRAFT_ROWS)
        short = decoder(folder, torch.float32, min(CONTEXT, original))
        self.decoder.weights.tables.update({key: self._longer(key, short) for key in short.weights.tables})
        self.info = ModelInfo(name, "golden", 256, 64, len(self.decoder.weights.blocks), "bytes")
        self.prompt = tensors(name)["greedy.prompt_ids"][0].tolist()
        self.text = tensors(name)["greedy.new_ids"][0].tolist()
        self._tight = tight

    def _longer(self, key, short):
        rope, head = key
        return table(rope, head, short.spec.context, CONTEXT + MAX_DRAFT_ROWS, torch.float32, short.weights.rows)

    def new_cache(self) -> ChatCache:
        """A new conversation."""
        target = TargetModel(self.decoder, self.info, CONTEXT)
        if self._tight:
            target.cache = self.decoder.new_cache(CONTEXT + MAX_DRAFT_ROWS, slack=8, rings=0)
        return ChatCache(target)
