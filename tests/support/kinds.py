"""Every method on golden targets of four kinds: full attention, sliding windows, latents, states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import golden
import toys
import untrained

KINDS = {"full": "qwen3", "sliding": "gemma3", "latent": "deepseek_v3", "states": "qwen3_5"}

Weights = Callable[[Path, untrained.Size], Path] | None
METHODS: dict[str, Weights] = {
    "suffix": None,
    "prompt_lookup": None,
    "lookahead": None,
    "layerskip": None,
    "mtp": None,
    "eagle": untrained.eagle,
    "dflash": untrained.dflash,
    "medusa": untrained.medusa,
    "draft_model": lambda folder, size: golden.FOLDER / "llama",
}
REFUSED = {("layerskip", "states"), ("mtp", "full"), ("mtp", "sliding")}  # method and kind that it cannot ride on


def weights(method: str, kind: str, folder: Path) -> str | None:
    """Path of the weights that a method takes on a target of that kind, written into `folder`; None if it takes none."""
    make = METHODS[method]
    layers = len(golden.mixers(KINDS[kind]))
    return None if make is None else str(make(folder, replace(untrained.TINY, layers=layers)))


def dressed(kind: str, folder: Path) -> Path:
    """A golden target as the engine loads it: with a tokenizer of 256 bytes."""
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(golden.FOLDER / KINDS[kind] / name)
    (folder / "tokenizer.json").write_text(toys.tokenizer_json())
    return folder
