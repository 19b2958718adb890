"""Products of a training: few shapes come up whatever the lengths, and nothing else changes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.core.train.evened import evened
from outrider.core.train.parts import Mlp, attended

CPU = torch.device("cpu")


class Shapes(TorchDispatchMode):
    """Shapes of what is multiplied, by the name of the product."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "linear") or "attention" in name:
            self.seen.add((name, *(tuple(part.shape) for part in args if isinstance(part, Tensor))))
        return func(*args, **(kwargs or {}))


def learn(mlp: Mlp, x: Tensor) -> Tensor:
    """A loss with all kinds of products, and its gradients."""
    mlp.zero_grad()
    heads = mlp(x).unflatten(-1, (2, -1))
    seen = torch.ones(len(x), len(x), dtype=torch.bool).tril().triu(-20)
    y = attended(heads, heads, heads, 0.2) + attended(heads, heads, heads, 0.2, seen)
    q = heads.transpose(0, 1)
    y = y + ((q @ q.transpose(1, 2)) @ q).transpose(0, 1) / len(x)
    loss = F.cross_entropy(y.flatten(1).float() @ torch.eye(x.shape[1]), torch.arange(len(x)) % x.shape[1])
    loss.backward()
    return loss.detach()


def test_few_shapes_are_multiplied() -> None:
    """oneDNN keeps memory for each."""
    mlp = Mlp(32, 48)
    with Shapes() as shapes, torch.autocast("cpu", torch.bfloat16), evened(CPU):
        for rows in range(65, 128, 3):
            learn(mlp, torch.randn(rows, 32))
    once = len(shapes.seen)
    with shapes, torch.autocast("cpu", torch.bfloat16), evened(CPU):
        for rows in range(66, 128, 3):
            learn(mlp, torch.randn(rows, 32))
    assert len(shapes.seen) == once


def test_losses_and_gradients_stay() -> None:
    torch.manual_seed(0)
    mlp, x = Mlp(32, 48), torch.randn(83, 32)
    want, gradients = learn(mlp, x), [part.grad.clone() for part in mlp.parameters() if part.grad is not None]
    with evened(CPU):
        torch.testing.assert_close(learn(mlp, x), want)
    for part, gradient in zip(mlp.parameters(), gradients, strict=True):
        torch.testing.assert_close(part.grad, gradient)
