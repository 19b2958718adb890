"""From a checkpoint to its prediction layers: each is a block of the model's own family between norms and a projection."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Target
from outrider.core.drafting.files import DraftFiles, further_layers
from outrider.core.drafting.layers import DraftLayers, WeightReader, load_layers

from .layout import COPIES, Layout, find
from .readings import CHAIN, choices_of
from .sequential import Layer, SequentialDrafter


def load(target: Target, files: DraftFiles, options: Mapping[str, object]) -> SequentialDrafter:
    """The prediction layers in a checkpoint, kept as the target's are. Raises ModelError, BrokenFileError, UsageError."""
    layout = find(files.holds, target.info.layers)
    if layout is None:
        raise ModelError(f"{files.name} holds no prediction layers.", "Take a copy of the model that kept them.")
    chosen = choices_of(options, CHAIN)
    spec = further_layers(target.info.config, layout.first, layout.count)
    read = WeightReader(files, spec, target, form=target.form, prefix=layout.prefix)
    first = load_layers(read, [layout.first])
    loaded = [first, *(load_layers(read, [layout.first + more], ropes=first.tables) for more in range(1, layout.count))]
    layers = [_layer(read, layout, layout.first + index, layer) for index, layer in enumerate(loaded)]
    left = [name for name in read.unread if layout.owns(name) and not name.endswith(COPIES)]
    if left:
        raise ModelError(
            f"{files.name} has a prediction layer of another kind: nothing is known of its tensor {min(left)}.",
            "Take another drafter, or open an issue with the model's name.",
        )
    return SequentialDrafter(target, layers, raw=chosen["state"] == "raw", prenorm=chosen["feedback"] == "prenorm")


def _layer(read: WeightReader, layout: Layout, index: int, layer: DraftLayers) -> Layer:
    width = read.spec.width
    return Layer(
        layer,
        read.norm(layout.embed_norm.format(index)),
        read.norm(layout.hidden_norm.format(index)),
        read.linear(layout.mix.format(index), width, 2 * width),
        read.norm(layout.out_norm.format(index)),
        layout.hidden_first,
    )
