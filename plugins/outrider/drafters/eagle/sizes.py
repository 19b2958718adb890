"""What an EAGLE draft takes of the target's shape when it is trained."""

from __future__ import annotations

from outrider.core.errors import ModelError
from outrider.core.target.spec import AttentionSpec, DenseSpec, RopeSpec
from outrider.core.train.teacher import Teacher


def mixer_of(teacher: Teacher) -> AttentionSpec:
    """Attention of the draft: heads as the target has them, turned in the plain way."""
    found = next((layer.mixer for layer in teacher.spec.layers if isinstance(layer.mixer, AttentionSpec)), None)
    if found is None:
        raise ModelError(
            f"{teacher.info.name} has no plain attention whose heads an EAGLE draft could take.",
            "Train medusa instead.",
        )
    theta = found.rope.theta if found.rope is not None else 10000.0
    return AttentionSpec(
        found.heads, found.kv_heads, found.head_dim, RopeSpec(theta, found.head_dim), found.head_dim**-0.5
    )


def inner_of(teacher: Teacher) -> int:
    """Width of the MLP inside: that of the target's own, or three times its width where it has none."""
    found = [layer.channel.width for layer in teacher.spec.layers if isinstance(layer.channel, DenseSpec)]
    return found[-1] if found else 3 * teacher.info.width
