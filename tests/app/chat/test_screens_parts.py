"""What stands behind drafters, log, error cards and downloads, without a screen."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from chat_support import loading
from inside import InsideClient
from screens_data import DRAFTERS, ROWS, TESTED, loads, moving, refused, told

from outrider.app.aside import Aside
from outrider.app.chat.cards import report
from outrider.app.chat.drafters_list import AUTO, NONE, Now, cells, details, riders
from outrider.app.chat.drafters_screen import result
from outrider.app.chat.gauge import Reading, quantile, rates
from outrider.app.chat.problem import Problem
from outrider.app.client import EngineDied, EngineError
from outrider.app.scripted import read_trace
from outrider.core.base import protocol

FOUND = {one.name.strip(): one for one in riders(DRAFTERS)}


def trace(folder: Path, *lines: dict[str, Any]) -> Path:
    """A trace of these lines."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, [*loading(), *lines])) + "\n")
    return path


# ------------------------------------------------------------------------------------------------ drafters


@pytest.mark.parametrize(
    ("name", "now", "state"),
    [
        ("auto", Now(), "in use"),
        ("none", Now(), "usable"),
        ("none", Now("none"), "in use"),
        ("suffix", Now("auto", riding="suffix"), "riding"),
        ("suffix", Now("auto", riding="none"), "usable"),
        ("suffix", Now("suffix", riding="suffix"), "in use"),
        ("suffix", Now("suffix", riding="none"), "parked"),
        ("dflash", Now(), "needs weights"),
        ("lab/Tiny-DFlash", Now(), "to be pulled"),
        ("lab/Here-DFlash", Now(), "usable"),
        ("lab/Here-DFlash", Now("dflash", "lab/Here-DFlash", "dflash"), "in use"),
        ("lab/Here-DFlash", Now("dflash", "/models/lab--Here-DFlash", "none"), "parked"),
        ("layerskip", Now(), "unavailable"),
        ("boom", Now(), "broken"),
    ],
)
def test_states_of_drafters(name: str, now: Now, state: str) -> None:
    assert FOUND[name].state(now) == state


def test_drafters_are_listed_with_the_published_ones_below() -> None:
    names = list(FOUND)
    assert names[:2] == ["auto", "none"] and names[names.index("dflash") + 1] == "lab/Tiny-DFlash"
    assert cells(FOUND["prompt_lookup"], Now())[2:4] == ("1.7x plain", "any model")
    assert cells(FOUND["lab/Tiny-DFlash"], Now())[4:] == ("300 MB", "on the hub")
    assert FOUND["lab/Tiny-DFlash"].pull == "lab/Tiny-DFlash" and not FOUND["lab/Here-DFlash"].pull
    choice = FOUND["lab/Here-DFlash"].choice(4)
    assert (choice.name, choice.weights, choice.tokens) == ("dflash", "lab/Here-DFlash", 4)
    assert cells(riders([])[0], Now())[0] == AUTO.name and riders([])[1].row is NONE


def test_details_of_a_drafter() -> None:
    def text(name: str) -> str:
        return "".join(part for part, _ in details(FOUND[name], Now()))

    assert "61% of first tokens accepted" in text("prompt_lookup") and "t tests it" in text("prompt_lookup")
    assert "2.5 tokens a pass" in text("eagle") and "in the library: /models/eagle" in text("eagle")
    assert "ImportError: no boom" in text("boom") and "outrider-boom 0.3" in text("boom")
    assert "plugins remove outrider-boom" in text("boom")
    assert "published ones below" in text("dflash") and "--drafter-weights PATH" in text("medusa")
    assert "pulls it" in text("lab/Tiny-DFlash") and "MIT" in text("lab/Tiny-DFlash")
    assert "does not go with this model" in text("layerskip") and FOUND["layerskip"].why_not().endswith("for it")


def test_results_of_a_test() -> None:
    told = "".join(part for part, _ in result(TESTED))
    assert "1.50 ± 0.10 draft tokens a round" in told and "4 of 4 answers" in told
    failed = TESTED | {"trials": [TESTED["trials"][0] | {"problem": "suffix failed: \x1b[31mno"}]}
    parts = result(failed)
    assert parts[-1] == ("\nsuffix failed: [31mno", "$text-error")
    checks = {key: TESTED[key] for key in ("drafter", "weights", "model", "device", "dtype")}
    checks["checks"] = [{"name": "roll_back", "verdict": "ok", "text": "fine"}]
    assert "roll back" in "".join(part for part, _ in result(checks))


# ------------------------------------------------------------------------------------------------ errors


def test_reasons_of_an_error_stand_one_below_the_other() -> None:
    message = "No source has 'x'. local library: nothing sound at /m; PyPI (llm-x 1): timed out; model hub (a/b): 404."
    problem = Problem.of("No model", EngineError(message, "Try again.", trace="T"), "The old one stays.")
    assert problem.text == "No source has 'x'." and problem.hint == "Try again. The old one stays."
    assert problem.reasons == (
        "local library: nothing sound at /m",
        "PyPI (llm-x 1): timed out",
        "model hub (a/b): 404.",
    )
    assert problem.details == "T" and not problem.restart
    plain = Problem.of("No", EngineDied("It takes 16.0 GB in fp32 (weights 15 GB), and 3 GB are free."))
    assert not plain.reasons and plain.restart


def test_report_of_an_error_holds_everything() -> None:
    problem = Problem("Title", "Text", "Hint", "Traceback", reasons=("one", "two"))
    text = report(problem, ["model starter"], [f"line {n}" for n in range(100)])
    assert text.startswith("Title\nText\n- one\n- two\nHint\n\nOutrider ")
    assert "model starter" in text and "Traceback" in text and "line 99" in text and "line 9\n" not in text


# ------------------------------------------------------------------------------------------------ figures


def test_rates_and_quantiles() -> None:
    pace = rates(Reading(10, 1.0, 5, 100, 50, 4), Reading(12, 1.5, 25, 2100, 250, 10))
    assert (pace.paints, pace.written, pace.received, pace.frames, pace.cpu) == (10, 1000, 100, 3, 0.25)
    assert quantile([], 0.5) == 0 and quantile([3, 1, 2], 0.5) == 2 and quantile(range(100), 0.95) == 95


# ------------------------------------------------------------------------------------------------ engines


async def test_second_engine_comes_and_goes(tmp_path: Path) -> None:
    made: list[InsideClient] = []
    script = trace(tmp_path, told("models", ROWS), moving("pull", 1, 8, 0.0), told("pull", ROWS[-1], 60.0))

    def make() -> InsideClient:
        made.append(InsideClient(script, 1.0, ()))
        return made[-1]

    aside = Aside(make, idle=0.0)
    assert aside.client is None
    rows = await aside.ask(lambda number: protocol.Models(id=number, everything=True))
    assert [row["name"] for row in rows] == [row.name for row in ROWS]
    while made[0].alive:  # nobody asks any more
        await asyncio.sleep(0.001)
    seen: list[protocol.Event] = []
    work = asyncio.ensure_future(aside.ask(lambda number: protocol.Pull(id=number, name="x"), seen.append))
    while not seen:
        await asyncio.sleep(0.001)
    assert made[0].alive and len(made) == 1
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    again = asyncio.ensure_future(aside.ask(lambda number: protocol.Pull(id=number, name="x")))
    while not made[0].alive:
        await asyncio.sleep(0)
    await aside.end()
    assert not made[0].alive
    again.cancel()


async def test_script_answers_any_request_in_turn(tmp_path: Path) -> None:
    lines = [
        loads("Second"),
        told("model", ROWS[0]),
        refused("model", "No such model.", "Look."),
        told("drafter_test", TESTED),
    ]
    client = InsideClient(trace(tmp_path, *lines), 1.0, ())
    await client.start()

    async def load() -> str:
        return (await client.ask(protocol.Load(id=client.number(), model=protocol.ModelChoice())))["title"]

    assert [await load(), await load(), await load()] == ["Tiny Test 1M", "Second", "Second"]
    for _ in range(2):
        ask = protocol.Models(id=client.number(), name="x")
        assert (await client.ask(ask))["name"] == "huge-70b"
        with pytest.raises(EngineError, match="No such model"):
            await client.ask(protocol.Models(id=client.number(), name="x"))
    test = protocol.DrafterTest(id=client.number(), model=protocol.ModelChoice(), prompts=[])
    assert (await client.ask(test))["drafter"] == "suffix"
    with pytest.raises(EngineError, match="has no Doctor"):
        await client.ask(protocol.Doctor(id=client.number()))
    assert client.traffic.frames["Result"] == 6 and client.backlog == 0
    assert read_trace(tmp_path / "trace.jsonl").loaded is not None
    await client.close()
