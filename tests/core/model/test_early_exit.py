"""Verifying from an exit layer on: the same numbers from fewer layers, and a whole pass for any other tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import golden
import pytest
import torch
import toys
from torch import Tensor

from outrider.core.model.capture import Capture
from outrider.core.model.model import TargetModel

PROMPT, DRAFT, EXIT, LAYERS = [5, 9, 13, 9, 5, 9, 13], [7, 21, 30, 2], 2, 4
AT = len(PROMPT) - 1


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> toys.Counted:
    return toys.Counted(monkeypatch)


def ready(target: TargetModel | None = None, states: Sequence[int] = (), prompt: Sequence[int] = PROMPT) -> TargetModel:
    """All of the prompt but the root is committed."""
    target = target or toys.target(layers=LAYERS)
    target.forward(prompt[:-1], last=True, states=states)
    target.commit(len(prompt) - 1)
    return target


def drafted(target: TargetModel, tokens: Sequence[int], at: int = AT, layers: int = EXIT) -> list[Tensor]:
    """Early steps of one token each."""
    return [target.early(torch.tensor([token]), at + step, layers) for step, token in enumerate(tokens)]


def rows_of(target: TargetModel, stop: int) -> list[Tensor]:
    """Keys and values of all layers up to a row."""
    return [part[:stop].clone() for state in target.cache.states if state is not None for part in state.parts]  # type: ignore[attr-defined]


IDS = [PROMPT[-1], *DRAFT]


@pytest.mark.parametrize("known", [len(IDS), len(IDS) - 1])
@pytest.mark.parametrize("states", [(), (0, 1, 2, 3, 4), (1,), (2, 4)])
def test_the_numbers_of_a_whole_pass(known: int, states: tuple[int, ...], counted: toys.Counted) -> None:
    want_of = ready(states=states)
    want = want_of.forward(IDS, states=states)
    target = ready(states=states)
    drafted(target, IDS[:known])
    counted.calls.clear()
    got = target.forward(IDS, states=states)
    late = (len(IDS), LAYERS - EXIT)
    assert counted.calls == ([late] if known == len(IDS) else [(1, EXIT), late])
    assert got.from_exit and not want.from_exit
    torch.testing.assert_close(got.logits, want.logits, atol=1e-4, rtol=1e-4)
    assert (got.hidden is None) == (not states)
    if got.hidden is not None and want.hidden is not None:
        torch.testing.assert_close(got.hidden, want.hidden, atol=1e-4, rtol=1e-4)
    stop = AT + len(IDS)
    for one, other in zip(rows_of(target, stop), rows_of(want_of, stop), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_draft_longer_than_what_is_verified() -> None:
    target = ready()
    drafted(target, IDS)
    got = target.forward(IDS[:2])
    assert got.from_exit
    torch.testing.assert_close(got.logits, ready().forward(IDS[:2]).logits, atol=1e-4, rtol=1e-4)


def test_several_tokens_at_once_and_a_draft_that_turned_back() -> None:
    """Early passes may hold several tokens, and a later one may write over what an earlier one left."""
    target = ready()
    drafted(target, [IDS[0], 40, 41])
    target.early(torch.tensor(IDS[1:3]), AT + 1, EXIT)
    drafted(target, IDS[3:], AT + 3)
    got = target.forward(IDS)
    assert got.from_exit
    torch.testing.assert_close(got.logits, ready().forward(IDS).logits, atol=1e-4, rtol=1e-4)


def commit_and_rewind(target: TargetModel) -> None:
    target.forward(IDS)
    target.commit(AT + 1)
    drafted(target, IDS[1:], AT + 1)
    target.rewind(AT)


def in_another_conversation(target: TargetModel) -> None:
    cache = target.decoder.new_cache(64)
    with target.using(cache):
        ready(target)
        drafted(target, IDS)


WHOLE: dict[str, Callable[[TargetModel], object]] = {
    "nothing": lambda target: None,
    "other tokens": lambda target: drafted(target, [IDS[0], 1, *IDS[2:]]),
    "another root": lambda target: drafted(target, [1, *IDS[1:]]),
    "too few": lambda target: drafted(target, IDS[:3]),
    "a gap": lambda target: [drafted(target, IDS[:2]), drafted(target, IDS[3:], AT + 3)],
    "another place": lambda target: [drafted(target, IDS), drafted(target, PROMPT[AT - 1 : AT], AT - 1)],
    "two exits": lambda target: [drafted(target, IDS), drafted(target, IDS[2:], AT + 2, 1)],
    "a pass between": lambda target: [drafted(target, IDS), target.forward(IDS[:2])],
    "a rewind": commit_and_rewind,
    "another conversation": in_another_conversation,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_pass_for_other_tokens(name: str) -> None:
    target = ready()
    WHOLE[name](target)
    got = target.forward(IDS)
    assert not got.from_exit
    torch.testing.assert_close(got.logits, ready().forward(IDS).logits)


def test_a_tree_and_a_tensor_of_ids() -> None:
    whole = ready().forward(IDS, parents=(-1, 0, 0, 2)).logits
    target = ready()
    drafted(target, IDS)
    got = target.forward(IDS, parents=(-1, 0, 0, 2))
    assert not got.from_exit
    torch.testing.assert_close(got.logits, whole)
    drafted(target, IDS)
    assert not target.forward(torch.tensor(IDS)).from_exit


def test_states_that_nobody_wanted_so_far() -> None:
    """A drafter that comes in the middle wants states from below the exit: they are kept from the next draft on."""
    target = ready()
    drafted(target, IDS)
    assert not target.forward(IDS, states=(1,)).from_exit
    drafted(target, IDS)
    assert target.forward(IDS, states=(1,)).from_exit


@pytest.mark.parametrize("states", [(), (1,)])
def test_states_that_nobody_wants_any_more(states: tuple[int, ...]) -> None:
    """They are asked for by the pass before, and no longer by the one that computes the last token's early layers."""
    target = ready(states=(0, 1))
    drafted(target, IDS[:-1])
    got = target.forward(IDS, states=states)
    assert got.from_exit
    torch.testing.assert_close(got.logits, ready().forward(IDS).logits, atol=1e-4, rtol=1e-4)


def test_what_a_drafter_writes_to_its_residuals_stays_its_own() -> None:
    target = ready()
    for residual in drafted(target, IDS):
        residual.fill_(torch.nan)
    got = target.forward(IDS)
    assert got.from_exit
    torch.testing.assert_close(got.logits, ready().forward(IDS).logits, atol=1e-4, rtol=1e-4)


def test_captured_passes_and_those_of_one_width_are_whole() -> None:
    made = toys.target(layers=LAYERS)
    for target in (
        TargetModel(made.decoder, made.info, 256, Capture()),
        TargetModel(made.decoder, made.info, 256, exact=4),
    ):
        target = ready(target)
        drafted(target, IDS)
        got = target.forward(IDS)
        assert not got.from_exit
        torch.testing.assert_close(got.logits, ready().forward(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("name", golden.WEIGHTS)
def test_every_family(name: str, tight: bool) -> None:
    """Rings, latents, experts, layers that read what others keep, and what is added from a second embedding."""
    model, late = golden.Golden(name, tight=tight), 0
    cache, text = model.new_cache(), [*model.prompt, *model.text]
    target, at, count = cache.target, len(model.prompt), len(model.text)
    ready(target, (1,), text[: at + 1])
    for start in range(at, at + count - 5, 5):
        ids = text[start : start + 5]
        drafted(target, ids[:4], start, 2)
        got = target.forward(ids, states=(1,))
        late += got.from_exit
        assert got.logits.argmax(-1).tolist() == text[start + 1 : start + 6]
        target.commit(start + 5, range(5))
    assert late == (0 if name in golden.RECURRENT else len(range(at, at + count - 5, 5)))
