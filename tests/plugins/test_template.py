"""The package that authors of drafters copy: it passes the kit by its own tests, and is what its texts say."""

from __future__ import annotations

import importlib
import runpy
import tomllib
from pathlib import Path

import ahead
import pytest
import torch
import toys
from ahead import Rides, rides

from outrider.core import conformance
from outrider.core.base.errors import ModelError
from outrider.core.drafting import API, Committed, Fit, ModelInfo
from outrider.core.model.model import TargetModel
from outrider.core.session.chat_cache import ChatCache

__all__ = ["rides"]

HERE = Path(__file__).parents[2] / "assets" / "outrider" / "assets" / "plugin_template"
PROMPTS = [[5, 9, 13, 9, 5, 9, 13, 2, 7], [1, 2, 3, 4, 1, 2, 3]]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> TargetModel:
    """Flat enough that several tokens are likely; the package can be imported."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr(conformance, "DRAWS", 160)
    return toys.target(sharp=0.3)


def test_it_passes_its_own_tests(target: TargetModel, tmp_path: Path) -> None:
    theirs = runpy.run_path(str(HERE / "tests" / "test_template.py"))
    theirs["test_it_keeps_the_contract"](target, PROMPTS, tmp_path / "weights")
    theirs["test_it_fits_no_other_model"](target, tmp_path / "other")


def test_its_entry_point_is_a_method(target: TargetModel) -> None:
    group = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["outrider.drafters"]
    ((name, place),) = group.items()
    module, _, attribute = place.partition(":")
    method = getattr(importlib.import_module(module), attribute)()
    assert name == "template" and method.api == API
    match = method.matches(target.info)
    assert match.fit == Fit.EXACT and not match.ready


def test_what_it_says_of_weights_that_do_not_fit(target: TargetModel, tmp_path: Path) -> None:
    from outrider_template import Template
    from outrider_template.start import write

    info = ModelInfo("other", "llama", 48, 64, 2, "")
    write(tmp_path, info)
    match = Template().check(target.info, str(tmp_path))
    assert match.fit == Fit.NO and match.reason.endswith("is made for a width of 64, and toy-0 has 32")
    with pytest.raises(ModelError, match="a width of 64"):
        Template().load(target, match, {})
    match = Template().check(target.info, str(toys.checkpoint(tmp_path / "model")))
    assert match.fit == Fit.NO and match.reason == "model holds no drafter of this kind"


def test_it_drafts_on_the_device_too(rides: Rides, tmp_path: Path, target: TargetModel) -> None:
    from outrider_template import Template
    from outrider_template.start import write

    write(tmp_path, target.info)
    match = Template().check(target.info, str(tmp_path))
    ahead.same(rides, toys.target(), lambda target: Template().load(target, match, {}))


def test_fresh_weights_draft_what_the_state_says_already(target: TargetModel, tmp_path: Path) -> None:
    """A draft is made, of as many tokens as are asked for, and a state that is not known gives none."""
    from outrider_template import Template
    from outrider_template.start import write

    write(tmp_path, target.info)
    drafter = Template().load(target, Template().check(target.info, str(tmp_path)), {})
    report = toys.answer(ChatCache(target), PROMPTS[0], toys.guard(drafter), limit=12, tokens=4)
    assert report.proposed >= 4 and drafter.nbytes > 0
    drafter.reset()
    drafter.advance(Committed(0, torch.tensor(PROMPTS[0]), torch.empty(0, dtype=torch.int64)))
    assert not drafter._state.ready(len(PROMPTS[0]))
