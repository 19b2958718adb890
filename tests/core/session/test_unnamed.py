"""Ids that the tokenizer has no token for never come out, whichever way tokens are chosen."""

from __future__ import annotations

from types import SimpleNamespace

import crowd
import pytest
import torch
import toys
from replay import Replay

from outrider.core.conformance.law import few
from outrider.core.conformance.rig import Rig
from outrider.core.drafting.decoder_state import DecoderState
from outrider.core.model.model import TargetModel
from outrider.core.sampling.sample import Settings
from outrider.core.session.chat_cache import ChatCache
from outrider.drafters.draft_model import ModelDrafter

NAMED = 40  # of 48 rows
HOLES = [3, 17]
UNNAMED = [*HOLES, *range(NAMED, 48)]
PROMPT = [5, 9, 13, 9, 5, 9, 13]
SETTINGS = {
    "greedy": toys.GREEDY,
    "sampled": toys.SAMPLED,
    "filtered": Settings(temperature=1.5, top_k=12, top_p=0.9, min_p=0.01),
    "penalised": Settings(temperature=1.0, top_p=1.0, repeat_penalty=1.2, frequency_penalty=0.5),
    "forced": Settings(temperature=1.0, top_p=1.0, logit_bias=tuple((token, 1e4) for token in UNNAMED)),
}


def padded(capture: Replay | None = None, exact: int | None = None, *, hide: bool = True) -> TargetModel:
    """The toy, whose rows of no token are its favourites."""
    toy = toys.target()
    with torch.inference_mode():
        toy.decoder.weights.head.weight[UNNAMED] *= 3
    if hide:
        toy.decoder.hide(UNNAMED)
    return TargetModel(toy.decoder, toy.info, toy.context, capture, exact=exact)


def strangers(target: TargetModel, settings: Settings, **more: object) -> int:
    ids = toys.answer(ChatCache(target), PROMPT, toys.guard(toys.Anything()), settings=settings, **more).token_ids  # type: ignore[arg-type]
    assert len(ids) == 40
    return len(set(UNNAMED) & set(ids))


@pytest.mark.parametrize("name", SETTINGS)
def test_every_way_of_choosing(name: str) -> None:
    settings = SETTINGS[name]
    assert strangers(padded(hide=False), settings)  # they would come
    assert not strangers(padded(), settings)
    assert not strangers(padded(), settings, rule="rejection")
    assert not strangers(padded(), settings, rule="typical")
    assert not strangers(padded(Replay()), settings)
    assert not strangers(padded(exact=4), settings)


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_a_drafter_that_likes_them(rule: str) -> None:
    """Same weights, nothing hidden: what it drafts is overruled where it must be, and the text is the plain one."""
    target = padded()
    plain = toys.answer(ChatCache(target), PROMPT, settings=toys.SAMPLED).token_ids
    draft = ModelDrafter(DecoderState(padded(hide=False).decoder, 300), 48)
    ids = toys.answer(ChatCache(target), PROMPT, toys.guard(draft), settings=toys.SAMPLED, rule=rule).token_ids
    assert not set(UNNAMED) & set(ids)
    assert rule == "rejection" or ids == plain


def test_answers_that_are_made_together() -> None:
    target = padded()
    orders = [
        crowd.order(number, PROMPT, settings=settings, limit=30) for number, settings in enumerate(SETTINGS.values())
    ]
    reports = crowd.together(target, orders)
    assert not set(UNNAMED) & {token for report in reports for token in report.token_ids}


def test_a_draft_model_reads_no_id_that_it_has_no_row_for() -> None:
    """A target with more rows, and a conversation that holds ids of them: the drafter goes on without these."""
    target = toys.target()
    notes: list[str] = []
    small = ModelDrafter(DecoderState(toys.decoder(1, vocab=NAMED), 300), 48)
    prompt = [*PROMPT, 47, 40, 5, 47]
    plain = toys.answer(ChatCache(target), prompt, settings=toys.SAMPLED, limit=80)
    assert any(token >= NAMED for token in plain.token_ids)
    drafted = toys.answer(ChatCache(target), prompt, toys.guard(small, notes=notes), settings=toys.SAMPLED, limit=80)
    assert drafted.token_ids == plain.token_ids and notes == []
    assert drafted.proposed > 0


def test_nothing_is_hidden_where_every_row_has_a_token() -> None:
    decoder = toys.decoder()
    decoder.hide([])
    assert decoder.unnamed is None


def test_checks_of_the_contract_look_at_tokens_alone() -> None:
    """A row's hidden numbers are infinite: they widen no bound of rounding, and are no words of a law."""
    target = padded()
    row = target.forward(PROMPT, last=True).logits[0]
    best, worst = int(row.argmax()), int(row.masked_fill(row.isinf(), torch.inf).argmin())
    rig = SimpleNamespace(target=target)
    ask = SimpleNamespace(ids=PROMPT, settings=toys.GREEDY, seed=1)
    assert not Rig._tied(rig, ask, [], best, worst)  # type: ignore[arg-type]
    settings = few(row, UNNAMED)
    assert settings.temperature < 100 and not {token for token, _ in settings.logit_bias} & set(UNNAMED)
