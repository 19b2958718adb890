"""Every method on the starter at temperature 0.8: with one seed one text, however little its weights have learnt."""

from __future__ import annotations

from pathlib import Path

import pytest
import starter
import toys
import untrained

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling
from outrider.core.library.library import resolve
from outrider.core.session.engine import Engine

pytestmark = pytest.mark.real

PROMPT = "Write a poem in which every line begins with the words: the red apple."


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter is not in the local library: outrider models pull starter")
    return Engine()


def ask(engine: Engine, drafter: DrafterChoice, rule: str = "match") -> Report:
    request = Generate(
        1,
        ModelChoice(model="starter", dtype="fp32", device="cpu"),
        messages=[Message("user", PROMPT)],
        sampling=Sampling(temperature=0.8, seed=11, max_tokens=32),
        drafter=drafter,
        rule=rule,
    )
    return engine.generate(request, lambda event: None, toys.Still())


@pytest.fixture(scope="module")
def plain(engine: Engine) -> Report:
    return ask(engine, DrafterChoice(name="none"))


@pytest.mark.parametrize("name", ["suffix", "prompt_lookup", "lookahead", "layerskip"])
def test_methods_that_need_nothing(engine: Engine, plain: Report, name: str) -> None:
    report = ask(engine, DrafterChoice(name=name, tokens=6))
    assert report.token_ids == plain.token_ids
    assert report.proposed > 0


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["eagle", "dflash", "medusa"])
def test_weights_that_have_learnt_nothing(engine: Engine, plain: Report, name: str, tree: bool, tmp_path: Path) -> None:
    weights = getattr(untrained, name)(tmp_path / name)
    options = {"eagle": {"tree": "tree" if tree else "chain"}, "dflash": {"tree": tree}}.get(name, {})
    report = ask(engine, DrafterChoice(name=name, weights=str(weights), tokens=12 if tree else 4, options=options))
    assert report.token_ids == plain.token_ids
    assert report.proposed > 0 and report.drafters[name] > 0


def test_a_composite_of_a_cheap_one_and_one_that_has_learnt_nothing(
    engine: Engine, plain: Report, tmp_path: Path
) -> None:
    weights = untrained.eagle(tmp_path / "eagle")
    report = ask(engine, DrafterChoice(name="composite", weights=str(weights)))
    assert report.token_ids == plain.token_ids
    assert {"suffix", "eagle"} & set(report.drafters)


def test_a_smaller_model(engine: Engine, plain: Report, tmp_path: Path) -> None:
    cut = starter.folder(tmp_path / "cut", layers=2)
    report = ask(engine, DrafterChoice(name="draft_model", weights=str(cut), tokens=3))
    assert report.token_ids == plain.token_ids
    assert report.proposed > 0
