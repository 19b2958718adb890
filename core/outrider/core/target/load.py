"""From a checkpoint on disk to a decoder in memory: layer by layer, so that loading needs little beside the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.core.errors import ModelError, UsageError

from . import rope
from .decoder import Decoder, Layer, Weights
from .families import read_spec
from .linear import Linear, packs
from .spec import TargetSpec

if TYPE_CHECKING:
    from outrider.core.weights.checkpoint import Checkpoint

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


class _Reader:
    """Reads tensors of one checkpoint with checks, in the dtype and on the device that the decoder wants."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint, self._dtype, self._device = checkpoint, dtype, device
        self._names = frozenset(checkpoint.names())
        self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def tensor(self, name: str, *shape: int) -> Tensor:
        if name not in self._names:
            raise ModelError(f"{self._checkpoint.path.name} has no tensor {name}.", "Download the model again, whole.")
        tensor = self._checkpoint.load(name, self._dtype)
        if tuple(tensor.shape) != shape:
            found = "x".join(map(str, tensor.shape))
            raise ModelError(
                f"{self._checkpoint.path.name}: {name} is {found}, the config says {'x'.join(map(str, shape))}.",
                "The config belongs to another model; download both again.",
            )
        self.nbytes += tensor.nbytes
        return tensor.to(self._device)

    def linear(self, parts: list[tuple[str, int]], fan_in: int, bias: bool = False) -> Linear:
        """One linear layer, `parts` (name, rows) stacked along the output."""
        weight = torch.cat([self.tensor(f"{name}.weight", rows, fan_in) for name, rows in parts])
        shift = torch.cat([self.tensor(f"{name}.bias", rows) for name, rows in parts]) if bias else None
        return Linear(weight, shift, pack=packs(self._dtype, self._device))


def _layer(read: _Reader, spec: TargetSpec, index: int) -> Layer:
    at, width = f"model.layers.{index}.", spec.width
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    attention, mlp = at + "self_attn.", at + "mlp."
    return Layer(
        input_norm=read.tensor(at + "input_layernorm.weight", width),
        qkv=read.linear(
            [(attention + "q_proj", q), (attention + "k_proj", kv), (attention + "v_proj", kv)],
            width,
            spec.attention_bias,
        ),
        out=read.linear([(attention + "o_proj", width)], q, spec.output_bias),
        mlp_norm=read.tensor(at + "post_attention_layernorm.weight", width),
        gate_up=read.linear(
            [(mlp + "gate_proj", spec.mlp_width), (mlp + "up_proj", spec.mlp_width)], width, spec.mlp_bias
        ),
        down=read.linear([(mlp + "down_proj", width)], spec.mlp_width, spec.mlp_bias),
    )


@torch.inference_mode()
def load_decoder(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    progress: Progress | None = None,
) -> Decoder:
    """A decoder with room for `context` positions (slack included). Raises ModelError, BrokenFileError.

    `progress` is called after each layer and may raise to stop.
    """
    spec = read_spec(checkpoint.config)
    if spec.activation not in ("silu", "swish"):
        raise ModelError(f"The activation {spec.activation!r} is not known.", "Take another checkpoint.")
    read = _Reader(checkpoint, dtype, device)
    tell = progress or (lambda done, total: None)
    embedding = read.tensor("model.embed_tokens.weight", spec.vocab, spec.width)
    layers = []
    for index in range(spec.layers):
        layers.append(_layer(read, spec, index))
        tell(index + 1, spec.layers + 1)
    tied = "lm_head.weight" not in read
    head = embedding if tied else read.tensor("lm_head.weight", spec.vocab, spec.width)
    cos, sin = rope.table(spec.rope, spec.context, context, context, dtype)
    weights = Weights(
        embedding=embedding,
        layers=tuple(layers),
        norm=read.tensor("model.norm.weight", spec.width),
        head=Linear(head, pack=packs(dtype, device)),
        cos=cos.to(device),
        sin=sin.to(device),
        nbytes=read.nbytes,
    )
    tell(spec.layers + 1, spec.layers + 1)
    return Decoder(spec, weights)
