"""What a draft under training takes of the target's shape, and of a draft that it goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.drafting import ModelInfo
from outrider.core.model.families.spec import AttentionSpec, DenseSpec, RopeSpec
from outrider.core.train import warm_start
from outrider.core.train.teacher import Teacher

from .format import Container, open_files, read


def mixer_of(teacher: Teacher) -> AttentionSpec:
    """Attention of the draft: heads as the target has them, turned in the plain way."""
    mixer = next((layer.mixer for layer in teacher.spec.layers if isinstance(layer.mixer, AttentionSpec)), None)
    if mixer is None:
        raise ModelError(
            f"{teacher.info.name} has no plain attention whose heads an EAGLE draft could take.",
            "Train medusa instead.",
        )
    theta = mixer.rope.theta if mixer.rope is not None else 10000.0
    return AttentionSpec(
        mixer.heads, mixer.kv_heads, mixer.head_dim, RopeSpec(theta, mixer.head_dim), mixer.head_dim**-0.5
    )


def inner_of(teacher: Teacher) -> int:
    """Width of the MLP inside: that of the target's own, or three times its width where it has none."""
    widths = [layer.channel.width for layer in teacher.spec.layers if isinstance(layer.channel, DenseSpec)]
    return widths[-1] if widths else 3 * teacher.info.width


@torch.no_grad()
def raw_embedding(teacher: Teacher) -> Tensor:
    """The target's embedding as it is published, without a scale: [V, d] in bf16."""
    ids = torch.arange(teacher.info.vocab, device=teacher.device)
    return teacher.target.embed_raw(ids).to("cpu", torch.bfloat16).contiguous()


@contextmanager
def opened(folder: Path, model: ModelInfo, version: int) -> Iterator[tuple[Container, Callable[[str], Tensor | None]]]:
    """A draft to go on from, and how its tensors are read. Raises ModelError if it is of another kind, or for another model."""
    with open_files(folder) as files:
        container = read(files)
        problem = container.misfit(model)
        if problem:
            raise ModelError(f"{problem}.", "Name another drafter to go on from.")
        warm_start.same(container.name, {"version": (container.version, version)})
        if container.mask is not None or {"fc_norm.0.weight", "input_norm.weight"} & files.holds:
            raise warm_start.refused(container.name, "norms or masks of a newer kind")

        yield container, lambda name: files.load(name) if name in files.holds else None


def sizes(container: Container) -> tuple[AttentionSpec, int]:
    """Attention and width of the MLP of a draft that is there. Raises ModelError for what is read and not trained."""
    layer = container.spec.layers[0]
    mixer, channel = layer.mixer, layer.channel
    assert isinstance(mixer, AttentionSpec) and isinstance(channel, DenseSpec)
    plain = mixer.rope is not None and mixer.rope == RopeSpec(mixer.rope.theta, mixer.head_dim)
    if not plain or mixer.output_bias or mixer.window or channel.bias or channel.activation != "silu":
        raise warm_start.refused(container.name, "a layer of another kind than a fresh draft's")
    return mixer, channel.width
