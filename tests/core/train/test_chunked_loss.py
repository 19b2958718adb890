"""The loss that is made a few rows at a time, against the formula written out."""

from __future__ import annotations

import pupils
import pytest
import torch

from outrider.core.train.chunked_loss import LIKELIEST, SLICE, Asked, Law, ask, likeliest
from outrider.core.train.draft_vocabulary import Words

ROWS, WORDS, WIDTH = SLICE + 21, LIKELIEST + 30, 12


def law(dtype: torch.dtype = torch.float64) -> tuple[Law, torch.Tensor]:
    luck = torch.Generator().manual_seed(2)
    x, rows = some(dtype)
    logits = (x @ rows.t()).detach() + 3 * torch.randn(ROWS, WORDS, generator=luck, dtype=dtype)
    columns, shares = likeliest(logits)
    weights = torch.rand(ROWS, generator=luck, dtype=dtype)
    return Law(columns, shares, weights > 0.3), weights


def some(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    luck = torch.Generator().manual_seed(3)
    x, rows = (torch.randn(count, WIDTH, generator=luck, dtype=dtype) for count in (ROWS, WORDS))
    return x.requires_grad_(), rows.requires_grad_()


def test_a_law_is_its_likeliest_words() -> None:
    logits = torch.tensor([[0.5, 3.0, -1.0, 2.0]]).repeat(1, 40) + torch.arange(160) * 1e-3
    columns, shares = likeliest(logits)
    assert columns.shape == shares.shape == (1, LIKELIEST)
    assert columns[0, 0] == 157 and set((columns[0, :40] % 4).tolist()) == {1}
    assert shares.sum().item() == pytest.approx(1.0) and bool((shares.diff() <= 0).all())
    whole = logits.double().softmax(-1)[0, columns[0]]
    torch.testing.assert_close(shares[0].double(), whole / whole.sum())


@pytest.mark.parametrize("cap", [None, 4.0])
def test_loss_and_gradients_are_those_of_the_formula(cap: float | None) -> None:
    (x, rows), (said, weights) = some(), law()
    made = ask(x, rows, said, weights, cap)
    (2 * made.loss).backward()
    found = [part.grad.clone() for part in (x, rows) if part.grad is not None]
    x.grad = rows.grad = None
    logits = x @ rows.t()
    logits = logits if cap is None else torch.tanh(logits / cap) * cap
    dense = torch.zeros(ROWS, WORDS, dtype=torch.float64).scatter(1, said.columns, said.shares)
    wanted = (-(dense * logits.log_softmax(-1)).sum(-1) * weights).sum()
    (2 * wanted).backward()
    torch.testing.assert_close(made.loss, wanted.detach())
    for ours, part in zip(found, (x, rows), strict=True):
        torch.testing.assert_close(ours, part.grad)
    best = (logits.argmax(-1) == dense.argmax(-1)) & said.held
    assert torch.equal(made.right, best) and 0 < int(best.sum()) < ROWS
    torch.testing.assert_close(said.spread(logits), dense)
    torch.testing.assert_close((said.loss(logits) * weights).sum(), wanted)


def test_frozen_rows_and_halves() -> None:
    (x, rows), (said, weights) = some(torch.float32), law(torch.float32)
    full = ask(x, rows, said, weights)
    with torch.autocast("cpu", torch.bfloat16):
        half: Asked = ask(x, rows.detach().bfloat16(), said, weights)
    half.loss.backward()
    assert x.grad is not None and x.grad.dtype == torch.float32 and rows.grad is None
    assert half.loss.dtype == torch.float32
    assert half.loss.item() == pytest.approx(full.loss.item(), rel=2e-2)


def test_a_target_says_what_it_says_over_the_words() -> None:
    teacher = pupils.teacher()
    ids = torch.arange(0, teacher.info.vocab, 2)
    words, last = Words(teacher, ids), teacher.read([n * 7 % teacher.info.vocab for n in range(SLICE + 9)], (6,))[:, 0]
    said, logits = words.law(last), teacher.logits(last)
    torch.testing.assert_close(said.spread(logits[:, ids]), logits[:, ids].softmax(-1), rtol=1e-4, atol=1e-6)
    assert torch.equal(said.held, logits.argmax(-1) % 2 == 0) and 0 < int(said.held.sum()) < len(last)
