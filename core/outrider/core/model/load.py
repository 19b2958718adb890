"""From a checkpoint on disk to a decoder in memory: layer by layer, so that loading needs little beside the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from outrider.core.base.errors import UsageError
from outrider.core.model.blocks.block import Weights
from outrider.core.model.cache.layout import Tables
from outrider.core.model.families.spec import AttentionSpec, LatentSpec, TargetSpec
from outrider.core.model.kernels.forms import WeightFormat

from .blocks import rope
from .build import Builder
from .decoder import Decoder
from .families import read_spec
from .unread import refuse_unread

if TYPE_CHECKING:
    from outrider.core.formats.checkpoint import Checkpoint

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
Progress = Callable[[int, int], None]  # layers done, layers in all


def choose_device(name: str) -> torch.device:
    """`auto` is the first CUDA GPU if there is one. Raises UsageError for a device that is not here."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name} is not a device.", "Use auto, cpu, cuda or cuda:N.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} CUDA GPUs here.", "Use --device cpu.")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name} is not supported.", "Use auto, cpu, cuda or cuda:N.")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bf16 where the hardware computes in it, else fp32 on a CPU and fp16 on a GPU."""
    if name != "auto":
        if name not in DTYPES:
            raise UsageError(f"--dtype {name} is not known.", "Use auto, fp32, bf16 or fp16.")
        return DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32


@torch.inference_mode()
def load_decoder(checkpoint: Checkpoint, form: WeightFormat, context: int, progress: Progress | None = None) -> Decoder:
    """A decoder with room for `context` positions (slack included). Raises ModelError, also for tensors that nobody reads, and
    BrokenFileError.

    `progress` is called after each layer and may raise to stop.
    """
    spec = read_spec(checkpoint.config)
    build = Builder(checkpoint, spec, form)
    report = progress or (lambda done, total: None)
    total = len(spec.layers) + 1
    embedding = build.embedding()
    head = build.head(embedding)  # the largest matrix while there is most room
    blocks = []
    held, read = build.nbytes, build.parameters
    for index in range(len(spec.layers)):
        blocks.append(build.block(index))
        report(index + 1, total)
    held, read = build.nbytes - held, build.parameters - read
    weights = Weights(
        embedding=embedding,
        blocks=tuple(blocks),
        norm=build.final_norm(),
        head=head,
        tables=tables(spec, context, form.dtype, form.device),
        rows=context,
        extra=build.extra_embedding(),
        embed_norm=build.plain_norm() if spec.embed_norm else None,
        nbytes=build.nbytes,
        parameters=build.parameters,
        each=held / max(1, read),
        form=form,
    )
    refuse_unread(build)
    report(total, total)
    return Decoder(spec, weights)


def tables(spec: TargetSpec, rows: int, dtype: torch.dtype, device: torch.device) -> Tables:
    """Rope tables of every kind of layer, `rows` positions long."""
    tables_by_key: Tables = {}
    for layer in spec.layers:
        mixer = layer.mixer
        if isinstance(mixer, AttentionSpec) and mixer.rope is not None:
            key = (mixer.rope, mixer.head_dim)
        elif isinstance(mixer, LatentSpec):
            key = (mixer.rope, mixer.rope_dim)
        else:
            continue
        if key not in tables_by_key:
            cos, sin = rope.table(*key, spec.context, rows, dtype, rows)
            tables_by_key[key] = cos.to(device), sin.to(device)
    return tables_by_key
