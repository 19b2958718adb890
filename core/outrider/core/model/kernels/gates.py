"""Gated activations inside Triton kernels. Imported only where Triton is."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def activated(gate, up, KIND: tl.constexpr, kind: tl.constexpr):
    """A gated activation of two float32 halves, rounded to `kind` where torch rounds it."""
    if KIND == 2:
        gate = tl.where(gate > 7.0, 7.0, gate)
        up = tl.where(up > 7.0, 7.0, tl.where(up < -7.0, -7.0, up))
        y = (up + 1.0) * gate / (1.0 + tl.exp(tl.minimum(gate * -1.702, 80.0)))
    else:
        slope = -1.0
        if KIND == 1:  # (1 + tanh z) / 2 is the sigmoid of 2 z
            slope = -1.5957691216057308 * (1.0 + 0.044715 * gate * gate)
        y = (gate / (1.0 + tl.exp(tl.minimum(gate * slope, 80.0)))).to(kind).to(tl.float32) * up
    return y
