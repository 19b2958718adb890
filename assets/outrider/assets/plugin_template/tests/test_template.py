"""Whether the drafter keeps the contract: Outrider's own conformance kit, on a real model.

`pytest tests`, with OUTRIDER_TEST_MODEL to name another model than the starter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from outrider_template import Template
from outrider_template.start import write

from outrider.core.conformance import check, failures
from outrider.core.drafting import Fit

if TYPE_CHECKING:
    from outrider.core.model.model import TargetModel
    from outrider.core.session.loading import Model


@pytest.fixture(scope="session")
def model() -> Model:
    """A loaded model; the starter is brought if it is not here."""
    from outrider.core.base.protocol import ModelChoice
    from outrider.core.session.engine import Engine

    choice = ModelChoice(model=os.environ.get("OUTRIDER_TEST_MODEL", "starter"), dtype="fp32")
    return Engine().load(choice, 0, lambda event: None, lambda: False)


@pytest.fixture
def target(model: Model) -> TargetModel:
    """What lends its weights to the kit."""
    return model.cache.target


@pytest.fixture
def prompts(model: Model) -> list[list[int]]:
    """Texts to draft on."""
    return [model.tokenizer.encode_raw("One sheep, two sheep, three sheep, four")]


def test_it_keeps_the_contract(target: TargetModel, prompts: Sequence[Sequence[int]], tmp_path: Path) -> None:
    """Every check that this drafter gives something to judge."""
    write(tmp_path, target.info)
    match = Template().check(target.info, str(tmp_path))
    assert match.fit == Fit.EXACT
    assert failures(check(target, lambda target: Template().load(target, match, {}), prompts, trusted=True)) == []


def test_it_fits_no_other_model(target: TargetModel, tmp_path: Path) -> None:
    """A reason that a person can read."""
    write(tmp_path, replace(target.info, vocab=target.info.vocab + 1))
    match = Template().check(target.info, str(tmp_path))
    assert match.fit == Fit.NO and "vocabulary" in match.reason
