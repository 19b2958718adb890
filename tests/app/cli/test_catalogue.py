"""The catalogue and memory plans as `outrider models` prints them."""

from __future__ import annotations

import json

import pytest

from outrider.app import render
from outrider.app.commands import _catalogue
from outrider.core.base.protocol import KnownDrafter, MemoryPlan, ModelRow


def plan(verdict: str = "fits", **more) -> MemoryPlan:
    parts = {"weights": 65_500_000_000, "states": 2_200_000_000, "overhead": 268_000_000, "total": 67_968_000_000}
    told = {"device": "cpu", "dtype": "bf16", "quantize": "auto", "context": 8192, "free": 24_000_000_000}
    return MemoryPlan(**{**told, **parts, "verdict": verdict, **more})


ROWS = [
    ModelRow(name="starter", path="/models/starter.gguf", nbytes=98_362_432, context=8192, license="Apache-2.0"),
    ModelRow(name="nemotron3-nano-30b-a3b", nbytes=63_155_874_688, tier=1, context=262_144, plan=plan("no")),
    ModelRow(
        name="new", nbytes=24_000_000_000, tier=1, about=True, context=1_048_576, unsupported="not yet", plan=plan()
    ),
    ModelRow(name="half", nbytes=5_000_000, tier=2, partial=5, license="NVIDIA open model", plan=plan()),
    ModelRow(name="small", nbytes=5_000_000, tier=2, plan=plan("tight"), drafters=[KnownDrafter(method="mtp")] * 13),
    ModelRow(name="cut", path="/models/cut.gguf", nbytes=5, problem="It is cut off."),
]


def test_the_catalogue_has_a_line_for_each_model_under_its_tier():
    lines = _catalogue.catalogue(ROWS).split("\n")
    assert lines[0].split() == ["NAME", "SIZE", "CTX", "STATE", "DRAFTERS", "LICENSE"]
    assert [line for line in lines if not line or line[0].isupper()][1:] == [
        *("", "Most used", "", "Much used", "", "Not in the catalogue")
    ]
    cells = {line.split()[0]: line.split()[1:] for line in lines if line}
    assert cells["starter"] == ["98.4", "MB", "8k", "here", "Apache-2.0"]
    assert cells["nemotron3-nano-30b-a3b"] == ["63.2", "GB", "262k", "too", "big"]
    assert cells["new"] == ["~24.0", "GB", "1M", "not", "yet"]
    assert cells["half"] == ["5.0", "MB", "partly", "NVIDIA", "open", "model"]
    assert cells["small"] == ["5.0", "MB", "tight", "13"]
    assert cells["cut"] == ["5", "B", "broken"]
    assert max(map(render.cells, lines)) <= 80


@pytest.mark.parametrize(
    ("made", "ends"),
    [
        (plan(free=70_000_000_000), ["sum             68.0 GB", "free            70.0 GB", "verdict         it fits"]),
        (
            plan("no", instead="--quantize int4 (about 22.9 GB)"),
            ["verdict         it does not fit", "would fit       --quantize int4 (about 22.9 GB)"],
        ),
        (plan("", free=None), ["free            this machine does not tell"]),
        (plan(states=None), ["verdict         it fits"]),
    ],
)
def test_a_plan_is_a_small_table(made, ends):
    lines = _catalogue.plan(made).split("\n")
    assert lines[0] == "Memory on cpu in bf16 at a context of 8,192 tokens:"
    assert lines[1] == "  weights         65.5 GB"
    states = "2.2 GB" if made.states else "not known before it is here"
    assert lines[2] == f"  K/V and states  {states}"
    assert lines[-len(ends) :] == [f"  {line}" for line in ends]


def test_a_plan_says_what_it_was_made_for():
    made = plan(quantize="int4", drafter=1_500_000_000, about=True)
    text = _catalogue.plan(made)
    assert text.startswith("Memory on cpu in int4, bf16 at a context of 8,192 tokens, estimated:\n")
    assert "\n  drafter         1.5 GB\n" in text


def test_drafters_say_where_they_are_and_how_large():
    known = [
        KnownDrafter(method="mtp"),
        KnownDrafter(
            method="eagle", repo="org/eagle", license="MIT", nbytes=800_000_000, about=True, note="for Chinese"
        ),
    ]
    assert _catalogue.drafters(known).split("\n") == [
        "METHOD  DRAFTER                   SIZE AND LICENSE",
        "mtp     in the model's own files",
        "eagle   org/eagle                 about 800 MB, MIT, for Chinese",
    ]


def test_facts_leave_out_what_is_not_known():
    row = ModelRow(name="x", parameters=20_914_757_184, active=3_600_000_000, form="mxfp4", gated=True, about=True)
    facts = {name: text for name, text in _catalogue.facts(row) if text}
    assert facts == {
        "parameters": "about 20.9 B",
        "active": "3.6 B for each token",
        "stored as": "mxfp4",
        "gated": "its terms have to be accepted on the hub first",
    }
    row.detail = {"parameters": 20_914_757_184}  # the files themselves tell it
    assert not [text for name, text in _catalogue.facts(row) if name in ("parameters", "stored as") and text]


def test_list_all_asks_for_everything(outrider, home):
    done = outrider("models", "list", "--all")
    assert done.code == 0
    assert done.out.split()[:6] == ["NAME", "SIZE", "CTX", "STATE", "DRAFTERS", "LICENSE"]
    assert "`outrider models pull NAME` brings a model" in done.err
    rows = json.loads(outrider("models", "list", "--all", "--json").out)
    assert all(set(row) == set(ModelRow.__struct_fields__) for row in rows)
    outrider("models", "list")
    assert [request.get("everything", False) for request in home.requests("Models")] == [True, True, False]


def test_show_asks_for_a_plan(outrider, home):
    words = ("--context", "64", "--dtype", "bf16", "--device", "cpu", "--quantize", "int8", "--drafter-weights", "w")
    assert outrider("models", "show", "mine", *words).code == 0
    (request,) = home.requests("Models")
    assert request["choice"] == {"context": 64, "dtype": "bf16", "device": "cpu", "quantize": "int8"}
    assert (request["name"], request["weights"]) == ("mine", "w")
    assert outrider("models", "show", "mine", "--context", "0").code == 2
