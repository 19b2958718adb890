"""GGUF files that go beside a model and are none: drafters, projectors, importance matrices, adapters.

A header tells first, where there is one to read. A drafter may have the header of its model (an MTP block does), so there the
name decides: by a word of its own, since `Flora-7B` is no LoRA, and `Qwen3.6-27B-MTP-Q4_K_M` is a whole model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from outrider.core.base.errors import ModelError

from .gguf import reader

Kind = Literal["", "drafter", "projector", "imatrix", "adapter"]  # "": a model

TITLES = {
    "drafter": "a drafter",
    "projector": "a projector for pictures or sound",
    "imatrix": "an importance matrix",
    "adapter": "an adapter (LoRA)",
}
HINTS = {
    "drafter": "Give the model that it drafts for.",
    "projector": "Give the model that it goes with.",
    "imatrix": "It is used to quantise a model and holds no weights: give the model.",
    "adapter": "Merge it into the model that it was trained for, and give the merged model.",
}
_WORDS = re.compile(r"[^a-z0-9]+")
_DRAFTER = re.compile(r"(?:eagle|dflash|dspark|medusa|hydra|speculator|drafter|draft|assistant)\d*")
_TYPES: dict[str, Kind] = {
    "adapter": "adapter",
    "imatrix": "imatrix",
    "mmproj": "projector",
    "clip-vision": "projector",
}


def by_name(path: str) -> Kind:
    """What a GGUF file is by its name and its folders."""
    pure = PurePosixPath(path)
    words = _WORDS.split(pure.stem.casefold())
    if any(word.startswith("mmproj") for word in words):
        return "projector"
    if any(word.startswith("imatrix") for word in words):
        return "imatrix"
    if {"lora", "adapter"} & set(words) and "merged" not in words:
        return "adapter"
    folders = [part.casefold() for part in pure.parent.parts]
    drafts = words[0] == "mtp" or "mtp" in folders or any(_DRAFTER.fullmatch(word) for word in (*words, *folders))
    return "drafter" if drafts else ""


def by_header(metadata: Mapping[str, Any]) -> Kind:
    """What a GGUF file is by its metadata."""
    architecture = str(metadata.get("general.architecture", "")).casefold()
    kind = _TYPES.get(str(metadata.get("general.type", "")).casefold())
    if kind:
        return kind
    if architecture == "clip":
        return "projector"
    return "drafter" if any(_DRAFTER.fullmatch(word) for word in _WORDS.split(architecture)) else ""


def of_file(path: Path, shown: str = "") -> Kind:
    """What a GGUF file on disk is. `shown`: its path below the folder that holds the model."""
    named = by_name(shown or path.name)
    try:
        general = reader.general(path)
    except ModelError:  # opening it says what is wrong
        return named
    told = by_header(general)
    if told or "general.architecture" not in general:
        return told or named
    return "drafter" if named == "drafter" else ""
