"""Token embeddings of few ids: what is kept gives what is expanded."""

import torch
from pytest import MonkeyPatch

from outrider.core.formats.quantized import quantise
from outrider.core.model.kernels import linear
from outrider.core.model.kernels.linear import Table


def test_kept_rows_are_the_expanded_ones(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "KEPT", 6)
    generator = torch.Generator().manual_seed(1)
    table = Table(quantise(torch.randn(40, 64, generator=generator), 4), torch.bfloat16)
    for _ in range(20):
        ids = torch.randint(40, (5,), generator=generator)
        assert torch.equal(table.few(ids), table(ids))


def test_a_pass_wider_than_all_that_is_kept(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "KEPT", 4)
    table = Table(quantise(torch.randn(40, 64, generator=torch.Generator().manual_seed(2)), 8), torch.float32)
    for start in (0, 3, 20):
        ids = torch.arange(start, start + 16)
        assert torch.equal(table.few(ids), table(ids))


def test_what_is_kept_may_be_trained_behind() -> None:
    table = Table(quantise(torch.randn(8, 32, generator=torch.Generator().manual_seed(3)), 8), torch.float32)
    ids = torch.tensor([1, 5])
    with torch.inference_mode():
        table.few(ids)
    scale = torch.ones(32, requires_grad=True)
    (table.few(ids) * scale).sum().backward()
    assert scale.grad is not None
    assert torch.allclose(scale.grad, table(ids).sum(0))
