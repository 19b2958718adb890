"""What a decoder is, frozen: built once from a checkpoint's config by the reader of its family."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding: `kind` as published under `rope_type`, `scaling` its other keys."""

    theta: float
    width: int  # rotated dims of a head
    kind: str = "default"
    scaling: dict[str, Any] = field(default_factory=dict)
    divisors: tuple[float, ...] | None = None  # [width / 2] factors of the inverse frequencies, as GGUF stores them


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """The switches of the one decoder. Sizes are counts; `eps` is that of every norm."""

    family: str
    layers: int
    width: int  # d
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int
    eps: float
    rope: RopeSpec
    context: int  # tokens the checkpoint was made for
    tied: bool
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"

    @property
    def groups(self) -> int:
        """Query heads for each key/value head."""
        return self.heads // self.kv_heads
