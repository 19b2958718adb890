"""What is known of a model before any weight is read. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a target before any weight is read."""

    name: str
    architecture: str
    vocab: int  # rows of the output layer; may be padded beyond the tokenizer
    width: int
    layers: int
    tokenizer: str  # fingerprint; equal means shared token ids
    config: Mapping[str, object] = field(default_factory=dict)
    path: str = ""  # where the checkpoint is
    tensors: frozenset[str] = frozenset()  # published names of all that it holds, heads for drafting included
