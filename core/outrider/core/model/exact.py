"""Exact mode: a token's numbers depend on its position and the tokens before it alone, not on what shares its pass.

Products and sums of another shape are added up in another order, so that the last bits of a row differ with the number of rows.
Passes that decode therefore have one width and read keys and values of one shape, padded and masked. Where every step of a
model treats each row by itself, in one order whatever comes with it, as those in C do, nothing has to be padded.
"""

from __future__ import annotations

import torch

from outrider.core.model.blocks.attention import Attention
from outrider.core.model.blocks.block import Block
from outrider.core.model.blocks.mlp import Dense
from outrider.core.model.blocks.norm import Norm
from outrider.core.model.kernels.interface import Fused
from outrider.core.model.kernels.linear import Linear, Stacked
from outrider.core.model.kernels.packed_linear import Packed

from .decoder import Decoder
from .kernels import ops

LEAST = 8  # rows; a power of two: kernels for tiles of rows have no odd rows then, which some of them add up otherwise


def width(tokens: int) -> int:
    """Rows of every pass where drafts have at most so many tokens: the next power of two."""
    return max(LEAST, 1 << tokens.bit_length())


def apart(decoder: Decoder) -> bool:
    """Whether each row of a pass that decodes is computed by itself by every step of the model, on a CPU."""
    weights, spec = decoder.weights, decoder.spec
    fast = ops.fused(torch.empty(0, dtype=decoder.dtype, device=decoder.device))
    if decoder.device.type != "cpu" or fast is None or weights.extra is not None or spec.logit_cap is not None:
        return False
    ends = _norm(weights.norm) and _norm(weights.embed_norm) and _linear(weights.head)
    return ends and all(_block(block, fast, decoder.dtype) for block in weights.blocks)


def _block(block: Block, fast: Fused, dtype: torch.dtype) -> bool:
    if block.beside is not None or block.per_layer is not None:
        return False
    norms = (block.before_mixer, block.after_mixer, block.before_channel, block.after_channel)
    mixer, channel = block.mixer, block.channel
    if not all(map(_norm, norms)) or not isinstance(mixer, Attention) or not isinstance(channel, Dense):
        return False
    attends = mixer.heads is not None and fast.attends(mixer.heads, dtype) and not mixer.spec.gate
    return attends and all(map(_linear, (mixer.mix, mixer.out, channel.gate_up, channel.down)))


def _linear(linear: Linear) -> bool:
    if isinstance(linear, Stacked):
        return all(map(_linear, linear.parts))
    return isinstance(linear, Packed)


def _norm(norm: Norm | None) -> bool:
    return norm is None or not norm.centred
