"""The starter model, whole path: right answers, and in fp32 the same text whichever drafter rides."""

from __future__ import annotations

from pathlib import Path

import pytest
import starter
import torch
import toys

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import DrafterChoice, Generate, Message, ModelChoice, Report, Sampling
from outrider.core.library.library import resolve
from outrider.core.session.engine import Engine

pytestmark = pytest.mark.real

COPY = (
    "Repeat this list, one item a line, and nothing else: red apple, green apple, yellow apple, red pear, green pear, "
    "yellow pear, red plum, green plum, yellow plum."
)
SHIPPED = ("eagle", "dflash", "medusa")  # drafters that come with Outrider for this model
PROMPTS = ["What is the capital of France?", COPY, "Write a Python function that reverses a string."]


@pytest.fixture(scope="module", autouse=True)
def in_library() -> None:
    """The starter must have been pulled by the set-up."""
    try:
        resolve("starter", download=False)
    except ModelError:
        pytest.skip("the starter is not in the local library: outrider models pull starter")


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DrafterChoice]:
    cut = starter.folder(tmp_path_factory.mktemp("cut"), layers=3)
    return {
        "none": DrafterChoice(name="none"),
        "prompt_lookup": DrafterChoice(name="prompt_lookup", tokens=6),
        "draft_model": DrafterChoice(name="draft_model", weights=str(cut), tokens=2),
        "auto": DrafterChoice(name="auto"),
    } | {name: DrafterChoice(name=name) for name in SHIPPED}


def ask(engine: Engine, prompt: str, drafter: DrafterChoice, sampling: Sampling, dtype: str = "fp32") -> Report:
    request = Generate(
        1,
        ModelChoice(model="starter", dtype=dtype, device="cpu"),
        messages=[Message("user", prompt)],
        sampling=sampling,
        drafter=drafter,
    )
    return engine.generate(request, lambda event: None, toys.Still())


def test_it_knows_paris(engine: Engine, drafters: dict[str, DrafterChoice]) -> None:
    report = ask(engine, PROMPTS[0], drafters["none"], Sampling(temperature=0, max_tokens=32))
    assert "Paris" in report.text
    assert report.finish == "stop"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_same_for_every_drafter(
    engine: Engine, drafters: dict[str, DrafterChoice], prompt: str
) -> None:
    sampling = Sampling(temperature=0, max_tokens=48)
    reports = {name: ask(engine, prompt, drafter, sampling) for name, drafter in drafters.items()}
    assert {tuple(report.token_ids) for report in reports.values()} == {tuple(reports["none"].token_ids)}
    assert reports["draft_model"].proposed > 0
    assert all(set(reports[name].drafters) <= {name, "none"} for name in SHIPPED)
    if prompt == PROMPTS[-1]:  # long enough for some of their guesses to be right
        assert all(reports[name].passes < reports["none"].passes for name in SHIPPED)
    if prompt == COPY:
        assert reports["prompt_lookup"].passes < 0.7 * reports["none"].passes


@pytest.mark.parametrize("seed", range(1, 6))
def test_sampled_text_depends_on_the_seed_alone(engine: Engine, drafters: dict[str, DrafterChoice], seed: int) -> None:
    sampling = Sampling(temperature=0.8, seed=seed, max_tokens=32)
    reports = {name: ask(engine, COPY, drafter, sampling) for name, drafter in drafters.items()}
    assert {tuple(report.token_ids) for report in reports.values()} == {tuple(reports["none"].token_ids)}


@pytest.fixture(scope="module")
def bf16() -> Engine:
    return Engine()


def test_bf16_speaks_too(drafters: dict[str, DrafterChoice], bf16: Engine) -> None:
    # Not the question about France: its two likeliest first tokens are 0.08 apart, less than bf16 may move them.
    question = "Name three primary colours."
    report = ask(bf16, question, drafters["prompt_lookup"], Sampling(temperature=0, max_tokens=32), "bf16")
    assert "Red" in report.text and "Blue" in report.text


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="only matrix units are known to sum every row alike")
@pytest.mark.parametrize("prompt", PROMPTS)
def test_bf16_text_is_the_same_too(drafters: dict[str, DrafterChoice], prompt: str, bf16: Engine) -> None:
    sampling = Sampling(temperature=0, max_tokens=96)
    reports = [ask(bf16, prompt, drafters[name], sampling, "bf16") for name in ("none", "prompt_lookup", "draft_model")]
    assert {tuple(report.token_ids) for report in reports} == {tuple(reports[0].token_ids)}


def test_a_second_turn_reuses_the_first(engine: Engine, drafters: dict[str, DrafterChoice], tmp_path: Path) -> None:
    first = ask(engine, PROMPTS[0], drafters["none"], Sampling(temperature=0, max_tokens=16))
    assert engine.model is not None
    cache = engine.model.cache
    request = Generate(
        1,
        ModelChoice(model="starter", dtype="fp32", device="cpu"),
        messages=[Message("user", PROMPTS[0]), Message("assistant", first.text), Message("user", "And of Spain?")],
    )
    ids = engine.prompt_ids(engine.model, request)
    shared = cache.reuse(ids)
    assert shared >= first.prompt_tokens + len(first.token_ids)
