"""From a checkpoint to its prediction layers: each is a block of the model's own family between norms and a projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from outrider.core.base.errors import ModelError
from outrider.core.drafting import Target
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.build import Builder
from outrider.core.model.cache.states import MAX_DRAFT_ROWS
from outrider.core.model.families import read_spec
from outrider.core.model.load import tables

from .chain import Chain, Layer
from .layout import COPIES, Layout, find
from .readings import CHAIN, told
from .size import extended

if TYPE_CHECKING:
    from outrider.core.formats.checkpoint import Checkpoint


def load(target: Target, checkpoint: Checkpoint, options: Mapping[str, object]) -> Chain:
    """The prediction layers in a checkpoint, kept as the target's are. Raises ModelError, BrokenFileError, UsageError."""
    layout = find(frozenset(checkpoint.names()), target.info.layers)
    if layout is None:
        name = checkpoint.path.name
        raise ModelError(f"{name} holds no prediction layers.", "Take a copy of the model that kept them.")
    chosen = told(options, CHAIN)
    layers = _build(target, checkpoint, layout)
    reach = tables(layers[0].spec, target.context + MAX_DRAFT_ROWS, target.dtype, target.device)
    return Chain(target, layers, reach, raw=chosen["state"] == "raw", prenorm=chosen["feedback"] == "prenorm")


@torch.inference_mode()
def _build(target: Target, checkpoint: Checkpoint, layout: Layout) -> list[Layer]:
    spec = extended(read_spec(target.info.config), layout)
    build = Builder(checkpoint, spec, target.form)
    build.prefix = layout.prefix
    layers = [_layer(build, layout, layout.first + index) for index in range(layout.count)]
    left = [name for name in build.unread if layout.owns(name) and not name.endswith(COPIES)]
    if left:
        raise ModelError(
            f"{build.origin} has a prediction layer of another kind: nothing is known of its tensor {min(left)}.",
            "Take another drafter, or open an issue with the model's name.",
        )
    return layers


def _layer(build: Builder, layout: Layout, index: int) -> Layer:
    width = build.spec.width

    def norm(name: str) -> Norm:
        made = build.norm(name.format(index))
        assert made is not None
        return made

    return Layer(
        build.spec,
        build.block(index),
        norm(layout.embed_norm),
        norm(layout.hidden_norm),
        build.linear(layout.mix.format(index), width, 2 * width),
        norm(layout.out_norm),
        layout.hidden_first,
    )
