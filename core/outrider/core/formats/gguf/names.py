"""From GGUF names and metadata to published tensor names and a config dict. Loads no torch.

`tables` has an entry for each architecture, `settings` reads the metadata, `places` says how stored tensors become published
ones.
"""

from __future__ import annotations

from typing import Any

from outrider.core.base.errors import BrokenFileError, ModelError

from .metadata import BLOCK, Metadata
from .places import Place, Source, plain
from .reader import AGAIN, GGUFFile
from .tables import ARCHITECTURES, ASIDE, OUTER, Architecture


def architecture(file: GGUFFile) -> Architecture:
    """The table entry of a file. Raises ModelError for an architecture that is not in the table."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise BrokenFileError(f"{file.path} does not name its architecture.", AGAIN)
    found = ARCHITECTURES.get(name)
    if found is None or (file.metadata.get(f"{name}.expert_count") and not found.experts):
        kind = f"{name} with experts" if found else name
        raise ModelError(
            f"{file.path} holds a model of architecture {kind!r}, which is not read.",
            f"GGUF files of these architectures are: {', '.join(ARCHITECTURES)}.",
        )
    return found


def config(file: GGUFFile, kind: Architecture) -> dict[str, Any]:
    """The metadata as a published config dict. Raises BrokenFileError where a value is missing or contradicts the tensors."""
    read = Metadata(file)
    found: dict[str, Any] = {
        "model_type": kind.model_type,
        "architectures": [kind.title],
        "vocab_size": read.vocab,
        "hidden_size": read.width,
        "num_hidden_layers": read.layers,
        "num_attention_heads": read.heads,
        "max_position_embeddings": read.count("context_length"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **kind.settings(read),
    }
    for key in ("bos", "eos", "padding"):
        token = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token, int) and 0 <= token < read.vocab:
            found["pad_token_id" if key == "padding" else f"{key}_token_id"] = token
    return found


def published(file: GGUFFile, kind: Architecture, config: dict[str, Any]) -> dict[str, Place]:
    """Published name -> where it is, in file order. Raises ModelError for a tensor that has no place in the model."""
    source, found = Source(file, config), {}
    for stored, tensor in file.tensors.items():
        if stored in ASIDE:
            continue
        name, key = _name(stored, kind, config)
        made = kind.rules.get(key, plain)(source, name, tensor) if name else {}
        if not name or any(key in found for key in made):
            raise ModelError(
                f"{file.path}: tensor {stored!r} has no place in a {kind.model_type} model.",
                "Take another file of this model; this one needs a newer reader or is broken.",
            )
        found |= made
    return found


def _name(stored: str, kind: Architecture, config: dict[str, Any]) -> tuple[str, str]:
    """The published name, empty where there is none, and the key of the table that says so."""
    match = BLOCK.fullmatch(stored)
    key, table = (match[2], kind.block) if match else (stored, OUTER)
    stem, _, ending = key.rpartition(".")
    name = table.get(key, "")
    if not name and stem in table and ending in ("weight", "bias"):
        key, name = stem, f"{table[stem]}.{ending}"
    if not match or not name or name.startswith("mtp."):
        return name, key
    ahead = int(match[1]) - config["num_hidden_layers"]
    if ahead >= 0 and "mtp_num_hidden_layers" in config:
        return f"mtp.layers.{ahead}.{name}", key
    return f"model.layers.{int(match[1])}.{name}", key
