"""Tensors of a checkpoint that a decoder has not read: the harmless ones are known, any other is refused by name.

A tensor that is left out silently, say a bias that the family's reader does not know, gives fluent text of another model.
"""

from __future__ import annotations

import re

from outrider.core.base.errors import ModelError
from outrider.core.model.families.spec import AttentionSpec

from .reader import Reader

_SHOWN = 3  # names in the error
# encoders of other inputs beside the text model, and what brings their outputs to its width
_TOWERS = re.compile(
    r"(?:.*\.)?(?:visual|(?:vision|audio)_(?:tower|model|encoder|embedder)|image_newline|embed_(?:vision|audio)"
    r"|(?:multi_modal|mm)_projector)(?:\.|$)"
)
# heads in the target's own file, and prediction layers: for the drafters that read them
_DRAFTERS = re.compile(r"(?:extra_heads|medusa_head)\.|(?:.*\.)?mtp(?:_layers)?\.")
# tables made from the config, causal masks kept as buffers, and scales of quantised activations or of a quantised K/V cache:
# Outrider computes with plain activations and keeps plain keys and values
_BUFFERS = re.compile(
    r"(?:rotary_emb\.(?:\w*inv_freq|cos_cached|sin_cached)|(?:attn|attention)\.(?:masked_)?bias"
    r"|\.(?:input|output|activation|[kqv]|kv)_scale)$"
)
_LAYER = re.compile(r"layers\.(\d{1,6})\.(.+)")
_KEYS = ("k_proj.", "v_proj.", "k_norm.", "v_norm.")


def refuse_unread(reader: Reader) -> None:
    """Raise ModelError if the checkpoint holds tensors of the text model that were not read."""
    left = sorted(name for name in reader.unread if not _harmless(reader, name))
    if not left:
        return
    listed = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
    raise ModelError(
        f"{reader.origin} holds tensors that Outrider does not use in a {reader.spec.family} model: {listed}. "
        "Without them the model would answer wrongly.",
        "Take another checkpoint of this model, or open an issue with its name and its config.json.",
    )


def _harmless(reader: Reader, name: str) -> bool:
    """Whether the model gives the same text without this tensor."""
    below = name.removeprefix(reader.prefix)
    if below == name and "lm_head" not in name:
        return True  # beside the text model: another part of a multimodal one, or a head for another task
    if _TOWERS.match(name) or _DRAFTERS.match(name) or _BUFFERS.search(name):
        return True
    return _another_layers(reader, below) or reader.adds_nothing(name)


def _another_layers(reader: Reader, below: str) -> bool:
    """Whether a tensor belongs to a prediction layer after the model's own, or to keys that a layer takes from another."""
    match = _LAYER.fullmatch(below)
    if match is None:
        return False
    number, layers = int(match[1]), reader.spec.layers
    if number >= len(layers):
        return any(reader.has(f"layers.{number}.{part}.weight") for part in ("eh_proj", "enorm"))
    mixer = layers[number].mixer
    shares = isinstance(mixer, AttentionSpec) and mixer.source is not None
    return shares and match[2].removeprefix(f"{reader.names.attention}.").startswith(_KEYS)
