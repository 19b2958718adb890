"""What a model's publisher recommends: used where it makes sense, left out and told where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import toys

from outrider.core.base.protocol import Generate, ModelChoice, Notice, Sampling
from outrider.core.formats.recommended import of_gguf, recommended
from outrider.core.sampling.sample import fill
from outrider.core.session.engine import Engine


def test_every_setting_that_there_is() -> None:
    made, refused = recommended(
        {
            "temperature": 0.6,
            "top_k": 20.0,
            "top_p": 0.8,
            "min_p": 0,
            "repetition_penalty": 1.05,
            "presence_penalty": 1.5,
            "frequency_penalty": -0.5,
            "do_sample": True,
            "eos_token_id": [1, 2],
            "transformers_version": "4.51",
        }
    )
    assert refused == []
    assert made == Sampling(
        temperature=0.6,
        top_k=20,
        top_p=0.8,
        min_p=0.0,
        repeat_penalty=1.05,
        presence_penalty=1.5,
        frequency_penalty=-0.5,
    )


@pytest.mark.parametrize(
    ("generation", "left"),
    [
        ({"do_sample": False, "temperature": 0.6}, Sampling(temperature=0.0)),  # greedy, as in transformers
        ({"do_sample": None, "temperature": 0.6, "top_k": None}, Sampling(temperature=0.6)),
        ({"top_k": -1}, Sampling(top_k=0)),  # off
        ({"top_k": 0, "top_p": 1}, Sampling(top_k=0, top_p=1.0)),
        ({}, Sampling()),
    ],
)
def test_what_it_comes_to(generation: dict[str, Any], left: Sampling) -> None:
    assert recommended(generation) == (left, [])


NONSENSE = [
    *(
        ("temperature", value)
        for value in (-1, float("nan"), float("inf"), "0.7", True, [0.7], {}, 10**400, 101, 1e300)
    ),
    *(("top_k", value) for value in (-2, 50.5, "50", float("nan"), float("inf"), 10**400, False)),
    *(("top_p", value) for value in (0, -0.1, 1.0001, "x" * 999, float("nan"))),
    *(("min_p", value) for value in (-1, 2, "0", float("-inf"))),
    *(("repetition_penalty", value) for value in (0, -1, 1e-45, float("nan"), "1.1", 1e9)),
    *(("presence_penalty", value) for value in (1e9, "a")),
    *(("frequency_penalty", value) for value in (float("nan"), None.__class__)),
    *(("do_sample", value) for value in ("false", 0, 1, [])),
]


@pytest.mark.parametrize(("key", "value"), NONSENSE, ids=str)
def test_what_makes_no_sense_is_left_out_and_told(key: str, value: Any) -> None:
    made, refused = recommended({key: value, "eos_token_id": 2})
    assert made == Sampling()
    (sentence,) = refused
    assert key in sentence and repr(value)[:30] in sentence and len(sentence) < 200 and sentence.endswith(".")


def test_the_keys_of_a_gguf_file() -> None:
    metadata = {
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "general.sampling.penalty_repeat": 1.1,
        "general.sampling.min_p": float("nan"),
        "general.name": "x",
    }
    made, refused = recommended(of_gguf(metadata))
    assert made == Sampling(temperature=0.5, top_k=40, repeat_penalty=1.1)
    assert refused == ["This model recommends min_p nan, which is left out: min-p must be from 0 to 1."]
    assert of_gguf({"general.sampling.mirostat": 2}) == {}


def test_numbers_beyond_the_machine() -> None:
    assert fill(Sampling(temperature=1e-40), Sampling()).temperature == 0.0
    assert fill(Sampling(temperature=9e-7), Sampling()).temperature == 0.0
    assert fill(Sampling(), Sampling(temperature=1e-30)).temperature == 0.0
    assert fill(Sampling(temperature=1e-6), Sampling()).temperature == 1e-6
    biases = {1: float("inf"), 2: -1e39, 3: 5.0}
    assert fill(Sampling(logit_bias=biases), Sampling()).logit_bias == ((1, 1e4), (2, -1e4), (3, 5.0))


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        (Sampling(seed=1 << 63), "--seed must be from 0 to 9223372036854775807, not 9223372036854775808"),
        (Sampling(seed=10**23), "not 100000000000000000000000"),
        (Sampling(repeat_penalty=1e-45), "--repeat-penalty must be from 0.01 to 100, not 1e-45"),
        (Sampling(top_k=1 << 31), "--top-k must be from 0 to 2147483647"),
        (Sampling(temperature=1e300), "--temperature must be from 0 to 100, not 1e+300"),
        (Sampling(logit_bias={5: float("nan")}), "--logit-bias 5=nan"),
    ],
)
def test_bounds_are_told_with_all_their_digits(sampling: Sampling, told: str) -> None:
    assert told in (sampling.problem() or "")


@pytest.mark.parametrize(
    ("generation", "wanted", "notices"),
    [
        ('{"repetition_penalty": 1.3, "temperature": 0.7}', Sampling(temperature=0.7, repeat_penalty=1.3), 0),
        ('{"temperature": -1, "top_p": 0, "top_k": "x", "min_p": NaN}', Sampling(temperature=0.7), 4),
        ('{"do_sample": false}', Sampling(temperature=0.0), 0),
    ],
)
def test_an_answer_and_its_report(tmp_path: Path, monkeypatch, generation: str, wanted: Sampling, notices: int) -> None:
    """A word is said once about what is left out, and the report has what held."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path / "home"))
    folder = toys.checkpoint(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(generation)
    said: list[object] = []
    choice = ModelChoice(model=str(folder), dtype="fp32", device="cpu", threads=1)
    engine = Engine()
    request = Generate(1, choice, prompt="ab", sampling=Sampling(max_tokens=2))
    _, report = (engine.generate(request, said.append, toys.Still()) for _ in range(2))
    assert len([one for one in said if isinstance(one, Notice) and "recommends" in one.text]) == notices
    assert report.sampling is not None and report.sampling.temperature == wanted.temperature
    assert report.sampling.repeat_penalty == wanted.repeat_penalty
