"""What a model's prediction layers look like, and how much they weigh, from its spec alone. Loads no torch."""

from __future__ import annotations

from dataclasses import replace

from outrider.core.base.errors import ModelError
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, ExpertsSpec, LatentSpec, LayerSpec, TargetSpec

from .layout import Layout


def extended(spec: TargetSpec, layout: Layout) -> TargetSpec:
    """The model's spec with its prediction layers: like its last attention layer, as they were trained. Raises ModelError."""
    like = [layer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec | LatentSpec)]
    if not like:
        raise ModelError("This model has no attention layer to shape its prediction layer by.", "Take another drafter.")
    return replace(spec, layers=(*spec.layers[: layout.first], *like[-1:] * layout.count))


def nbytes(spec: TargetSpec, layout: Layout) -> int:
    """Bytes of the layers' matrices at 16 bits a weight."""
    return 2 * layout.count * (2 * spec.width**2 + _weights(extended(spec, layout).layers[-1], spec.width))


def _weights(layer: LayerSpec, width: int) -> int:
    mixer, channel, count = layer.mixer, layer.channel, 0
    if isinstance(mixer, AttentionSpec):
        count += width * mixer.head_dim * ((3 if mixer.gate else 2) * mixer.heads + 2 * mixer.kv_heads)
    elif isinstance(mixer, LatentSpec):
        count += width * (mixer.kv_rank + mixer.rope_dim + (mixer.q_rank or 0) + mixer.heads * mixer.value_dim)
        count += (mixer.q_rank or width) * mixer.heads * (mixer.nope_dim + mixer.rope_dim)
        count += mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.value_dim)
    if isinstance(channel, DenseSpec):
        count += 3 * width * channel.width
    elif isinstance(channel, ExpertsSpec):
        count += width * (3 * channel.experts * channel.width + 3 * channel.shared + channel.experts)
        count += width if channel.shared_gate else 0
    return count
