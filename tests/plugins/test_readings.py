"""Files that can be meant in more than one way: each is offered, the usual one first, and the one they were made with wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dflash_files
import eagles
import layers
import pairs
import pytest
import toys

from outrider.core.base.errors import UsageError
from outrider.core.drafting import Committed, Fit, Match
from outrider.core.formats.checkpoint import open_checkpoint
from outrider.drafters.dflash import DFlash
from outrider.drafters.eagle import Eagle
from outrider.drafters.mtp import Mtp

GOLDENS = [  # with the reading that their makers used, how many others there are, and tokens of an answer
    ("eagle3_specforge", Eagle(), {"states": "output", "feedback": "postnorm"}, 3, 24),
    ("dflash_speculators", DFlash(), {"window": "anchor", "causal": "sliding"}, 3, 40),
    ("gemma4_assistant", Mtp(), {"position": "last"}, 1, 24),
]


@pytest.mark.parametrize(("name", "method", "right", "others", "tokens"), GOLDENS, ids=[row[0] for row in GOLDENS])
def test_the_reading_that_files_were_made_with_gets_most_accepted(
    name: str, method: Any, right: Mapping[str, object], others: int, tokens: int
) -> None:
    pair = pairs.Pair(name)
    opened = open_checkpoint(Path(pair.info.path))
    pair.info = replace(pair.info, architecture=opened.config["model_type"], config=opened.config)
    opened.close()
    match = method.check(pair.info, str(pair.folder))
    readings = method.readings(pair.info, match)
    assert readings[0] == right and len(readings) == 1 + others
    usual, *rest = (accepted(pair, method, match, reading, tokens) for reading in readings)
    assert usual > max(rest)
    assert usual == accepted(pair, method, match, {}, tokens)  # what is taken where nothing is told


def accepted(pair: pairs.Pair, method: Any, match: Match, reading: Mapping[str, object], tokens: int) -> float:
    """Draft tokens of a round."""
    rounds: list[int] = []
    for prompt in range(len(pair.prompts)):
        target = pair.target()
        drafter = method.load(target, match, {"tree": "chain", **reading} if isinstance(method, Eagle) else reading)
        report, watch = pairs.ride(pair, drafter, prompt, 7, target, limit=tokens)
        assert report.token_ids == pair.texts[prompt][:tokens]
        rounds += [number for _, draft, number in watch.rows if draft is not None and number >= 0]
    return sum(rounds) / len(rounds)


# ---------------------------------------------------------------------------------------------------- eagle


@pytest.mark.parametrize(
    ("told", "ways"),
    [
        ([0, 1, 2], {"output": (1, 2, 3), "boundary": (0, 1, 2)}),
        ([1, 3, 5], {"output": (2, 4, 6), "boundary": (1, 3, 5)}),
        ([2, 4, 5], {"boundary": (2, 4, 5), "output": (3, 5, 6)}),  # what those read that name none
        ([4, 6, 8], {"boundary": (4, 6, 8)}),  # there is no ninth
    ],
)
def test_nested_layers_count_from_either_end(told: list[int], ways: Mapping[str, Any], tmp_path: Path) -> None:
    target = toys.target(layers=8)
    folder = eagles.folder(tmp_path, "eagle3", states=None)
    eagles.change(folder, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": told}})
    match = Eagle().check(target.info, str(folder))
    assert Eagle().readings(target.info, match) == [{"states": way} for way in ways]
    assert {way: eagles.load(folder, target, states=way).needs.hidden for way in ways} == ways
    assert eagles.load(folder, target).needs.hidden == next(iter(ways.values()))
    if len(ways) == 1:
        with pytest.raises(UsageError, match="The option states is 'output'"):
            eagles.load(folder, target, states="output")


@pytest.mark.parametrize(
    ("kind", "more", "readings"),
    [
        ("eagle1", {}, [{}]),
        ("eagle3", {}, [{}]),
        ("norm_output", {}, [{"feedback": "postnorm"}, {"feedback": "prenorm"}]),
        ("full_head", {}, [{"feedback": "prenorm"}, {"feedback": "postnorm"}]),
        ("norm_before_residual", {}, [{"residual": "normed"}, {"residual": "plain"}]),
        ("norm_before_residual", {"norm_before_residual": False}, [{}]),
        ("norm_before_residual", {"norm_before_residual": True, "norm_output": True}, [{}]),
    ],
)
def test_what_an_eagle_leaves_open(
    kind: str, more: Mapping[str, Any], readings: list[Mapping[str, object]], tmp_path: Path
) -> None:
    target, folder = toys.target(), eagles.folder(tmp_path, kind)
    eagles.change(folder, more)
    match = Eagle().check(target.info, str(folder))
    assert Eagle().readings(target.info, match) == readings
    chains = [tuple(drafted(folder, target, reading)) for reading in ({}, *readings)]
    assert chains[0] == chains[1]
    assert len(set(chains)) == len(readings)


def drafted(folder: Path, target: Any, reading: Mapping[str, object]) -> list[int]:
    drafter = eagles.load(folder, target, **reading)
    target.rewind(0)
    ids, states = eagles.conversation(target, drafter.needs.hidden, 9)
    drafter.advance(Committed(0, ids, eagles.NONE, states))
    draft = drafter.propose(pairs.context(ids.tolist(), 6))
    assert draft is not None
    return draft.tokens.tolist()


@pytest.mark.parametrize("options", [{"residual": "both"}, {"states": "output"}])
def test_readings_that_an_eagle_has_not(options: dict[str, object], tmp_path: Path) -> None:
    folder = eagles.folder(tmp_path, "eagle3", states=None)
    with pytest.raises(UsageError, match=f"The option {next(iter(options))}"):
        eagles.load(folder, toys.target(layers=8), **options)


# ---------------------------------------------------------------------------------------------------- dflash


@pytest.mark.parametrize(
    ("kind", "more", "ways"),
    [
        ("dflash", {}, {}),
        ("dspark", {}, {}),
        ("speculators", {}, {"window": ["anchor", "slot"], "causal": ["sliding", "none"]}),
        (
            "speculators",
            {"sliding_window_non_causal": False},
            {"window": ["anchor", "slot"], "causal": ["sliding", "all"]},
        ),
        ("speculators", {"sliding_window_non_causal": True}, {"window": ["anchor", "slot"]}),
    ],
)
def test_what_a_dflash_leaves_open(kind: str, more: Mapping[str, Any], ways: Mapping[str, Any], tmp_path: Path) -> None:
    folder = dflash_files.write(tmp_path / "some", {**dflash_files.config(kind), **more}, dflash_files.tensors(kind))
    match = DFlash().check(toys.target().info, str(folder))
    assert match.fit == Fit.EXACT, match.reason
    readings = DFlash().readings(toys.target().info, match)
    assert {name: list(dict.fromkeys(reading[name] for reading in readings)) for name in readings[0]} == ways
    plans = [DFlash().load(toys.target(), match, reading)._parts.network.plan for reading in ({}, *readings)]
    assert plans[0] == plans[1]
    assert len({plan.sights for plan in plans}) == len(readings)


def test_a_dspark_that_does_not_say_where_it_starts(tmp_path: Path) -> None:
    config = {**dflash_files.config("speculators"), "speculators_model_type": "dspark"}
    folder = dflash_files.write(tmp_path / "some", config, dflash_files.tensors("speculators"))
    match = DFlash().check(toys.target().info, str(folder))
    starts = [reading["sample_from_anchor"] for reading in DFlash().readings(toys.target().info, match)]
    assert starts[:2] == [True, False]
    drafters = [DFlash().load(toys.target(), match, {"sample_from_anchor": start}) for start in (True, False)]
    assert drafters[0].shape.depth == drafters[1].shape.depth + 1


# ---------------------------------------------------------------------------------------------------- mtp


def test_what_prediction_layers_leave_open(tmp_path: Path) -> None:
    model = layers.target(layers.checkpoint(tmp_path / "one"))
    match = Mtp().matches(model.info)
    readings = Mtp().readings(model.info, match)
    assert readings[0] == {"state": "normed", "feedback": "postnorm"} and len(readings) == 4
    with pytest.raises(UsageError, match="feedback 'both' is not known"):
        Mtp().load(model, match, {"feedback": "both"})
