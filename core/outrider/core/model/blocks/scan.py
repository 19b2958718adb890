"""Linear recurrences over one matrix a head: `S <- a S + k w^T`, read as `S^T q`; token by token, or by chunks.

Within a chunk each token reads what the chunk found, faded, and what its earlier tokens wrote, so that one chunk is a few
matrix products (arXiv 2405.21060; arXiv 2412.06464 where writes depend on what is read).

Letters: `S` tokens, `N` chunks, `C` tokens of a chunk, `H` heads, `dk` and `dv` sizes of keys and values.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.core.model.cache.states import Count

CHUNK = 64


class Fading(NamedTuple):
    """How far a memory has faded within chunks, all factors at most 1."""

    since: Tensor  # [N, H, C, 1] from the start of the chunk to each token, its own fading included
    between: Tensor  # [N, H, C, C] from an earlier token (column) to a later one or itself; 0 for later columns
    rest: Tensor  # [N, H, C, 1] from each token to the end


def by_tokens(
    memory: Tensor, q: Tensor, k: Tensor, w: Tensor, decay: Tensor, count: Count | None = None
) -> tuple[Tensor, Tensor]:
    """Reads [S, H, dv] and the memory [H, dk, dv] at the end, for q, k [S, H, dk], w [S, H, dv] and decay [S, H].

    `count`: only so many of the tokens are there, [1] where only the device knows; what the others read is of no use.
    """
    memory = memory.clone()
    if isinstance(count, Tensor):  # tokens that do not count leave the memory as it is
        idle = torch.arange(k.shape[0], device=count.device)[:, None] >= count
        k, decay = k.masked_fill(idle[..., None], 0), decay.masked_fill(idle, 1)
    elif count is not None:
        q, k, w, decay = q[:count], k[:count], w[:count], decay[:count]
    reads = []
    for query, key, write, factor in zip(
        q[:, :, None], k[..., None], w[:, :, None], decay[..., None, None], strict=True
    ):
        memory.mul_(factor).baddbmm_(key, write)
        reads.append(query @ memory)  # [H, 1, dv]
    return torch.stack(reads)[:, :, 0], memory


def after(kernels: ModuleType, memory: Tensor, steps: Any, count: Count) -> Tensor:
    """The memory [H, dk, dv] after the first tokens of a walk of those kernels (`ops.walker`)."""
    result = torch.empty_like(memory)
    number = count if isinstance(count, Tensor) else torch.tensor([count], device=memory.device)
    kernels.settle(memory, steps, number, result)
    return result


def chunked(x: Tensor) -> Tensor:
    """[S, H, d] -> [N, H, C, d], zeros after the last token."""
    rows = x.shape[0]
    padded = F.pad(x, (0, 0, 0, 0, 0, -rows % CHUNK))
    return padded.view(-1, CHUNK, *x.shape[1:]).transpose(1, 2).contiguous()


def fading(logs: Tensor) -> Fading:
    """From the logarithm of each token's factor, [N, H, C, 1], at most 0.

    Summed up in float64: the sums grow large where a head forgets fast, and small differences of them count.
    """
    total = logs.double().cumsum(-2)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=logs.device).triu(1)
    between = (total - total.transpose(-1, -2)).to(logs.dtype).masked_fill_(later, float("-inf")).exp_()
    rest = (total[..., -1:, :] - total).to(logs.dtype).exp_()
    return Fading(total.to(logs.dtype).exp_(), between, rest)


def by_chunks(
    memory: Tensor, q: Tensor, k: Tensor, w: Tensor, fade: Fading, against: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Reads [N C, H, dv] and the memory [H, dk, dv] at the end, for chunked q, k [N, H, C, dk] and w [N, H, C, dv].

    With `against` [N, H, C, dk], what is written is not w but w - against S, S being the memory before the chunk.
    """
    near = (q @ k.transpose(-1, -2)) * fade.between  # [N, H, C, C]
    far = q * fade.since
    left = (k * fade.rest).transpose(-1, -2)  # [N, H, dk, C]
    kept = fade.since[..., -1:, :]  # [N, H, 1, 1]
    reads = []
    for n in range(q.shape[0]):
        written = w[n] if against is None else torch.baddbmm(w[n], against[n], memory, alpha=-1)
        reads.append(torch.baddbmm(far[n] @ memory, near[n], written))
        memory = torch.baddbmm(memory * kept[n], left[n], written)
    return torch.stack(reads).transpose(1, 2).flatten(0, 1), memory
