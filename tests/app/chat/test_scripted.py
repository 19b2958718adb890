"""The scripted engine keeps to the protocol, and the shipped traces are sound."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from chat_support import answer, loading

from outrider.app.client import EngineClient, EngineError
from outrider.app.scripted import main, read_trace
from outrider.core.base import protocol
from outrider.core.base.protocol import DrafterChoice, Message, ModelChoice

TRACES = sorted(Path(str(files("outrider.assets").joinpath("traces"))).glob("*.jsonl"))
WORDS = " ".join(f"w{n}" for n in range(60))


@asynccontextmanager
async def scripted(path: Path, speed: float = 0.0) -> AsyncIterator[EngineClient]:
    """A client of a scripted engine."""
    client = EngineClient((sys.executable, "-m", "outrider.app.scripted", str(path), "--speed", str(speed)), echo=False)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two answers: one slow with drafting, one short."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    path = tmp_path / "trace.jsonl"
    lines: Sequence[dict[str, Any]] = [*loading(), *answer(WORDS, "PAB", pause=0.02), *answer("Short.")]
    path.write_text(
        "# a comment\n\n" + json.dumps({"hello": {"outrider": "9.9"}}) + "\n" + "\n".join(map(json.dumps, lines))
    )
    return path


def ask(client: EngineClient, drafter: str = "auto") -> protocol.Generate:
    """A request for the next answer."""
    messages = [Message("user", "x")]
    return protocol.Generate(
        id=client.number(), model=ModelChoice(), messages=messages, drafter=DrafterChoice(name=drafter)
    )


async def test_loads_and_answers_in_turn(trace: Path) -> None:
    async with scripted(trace) as client:
        assert (await client.greeted()).outrider == "9.9"
        seen: list[protocol.Event] = []
        data = await client.ask(protocol.Load(id=client.number(), model=ModelChoice()), seen.append)
        loaded = protocol.as_type(data, protocol.Loaded)
        assert loaded.title == "Tiny Test 1M" and [type(event).__name__ for event in seen] == ["Progress"]
        texts = [(await client.ask(ask(client))).text for _ in range(3)]
        assert texts == [WORDS, "Short.", WORDS]


async def test_report_agrees_with_the_steps(trace: Path) -> None:
    async with scripted(trace) as client:
        seen: list[Any] = []
        report = await client.ask(ask(client), seen.append)
        assert report.passes == len(seen) - 1 and report.kinds == "PAB" * 20
        assert report.proposed == report.accepted == sum(step.accepted for step in seen) == 20
        assert report.drafters == {"prompt_lookup": 19} and len(report.token_ids) == 60


async def test_cancel_ends_with_what_was_played(trace: Path) -> None:
    async with scripted(trace, speed=1.0) as client:
        request, text, done = ask(client), "", None
        async with aclosing(client.stream(request)) as events:
            async for event in events:
                if isinstance(event, protocol.Step):
                    text += "".join(token.text for token in event.tokens)
                    if event.seq == 3:
                        client.send(protocol.Cancel(id=client.number(), request=request.id))
                elif isinstance(event, protocol.Done):
                    done = event
        assert done is not None and done.finish == "cancelled" == done.report.finish
        assert done.report.text == text and WORDS.startswith(text) and len(text) < len(WORDS)


async def test_drafter_can_be_switched_while_playing(trace: Path) -> None:
    async with scripted(trace, speed=1.0) as client:
        await client.ask(protocol.Load(id=client.number(), model=ModelChoice()))
        steps: list[Any] = []
        task = asyncio.create_task(client.ask(ask(client), steps.append))
        for name in ("none", "suffix"):
            count = len(steps)
            while len(steps) < count + 4:
                await asyncio.sleep(0.005)
            choice = DrafterChoice(name=name)
            assert await client.ask(protocol.SetDrafter(id=client.number(), drafter=choice)) == name
        report = await task
        assert [step.seq for step in steps] == list(range(len(steps)))
        plain = [step for step in steps if step.drafter == "none"]
        assert plain and all(len(step.tokens) == 1 and step.tokens[0].kind == "P" for step in plain)
        assert report.text == WORDS and report.drafters["suffix"] > 0
        with pytest.raises(EngineError, match="no drafter `magic`"):
            await client.ask(protocol.SetDrafter(id=client.number(), drafter=DrafterChoice(name="magic")))


async def test_other_requests_have_an_answer(trace: Path) -> None:
    async with scripted(trace) as client:
        rows = await client.ask(protocol.Drafters(id=client.number(), model=ModelChoice()))
        assert [row["name"] for row in rows] == ["prompt_lookup", "draft_model", "suffix"]
        models = await client.ask(protocol.Models(id=client.number()))
        assert protocol.as_type(models, list[protocol.ModelRow])[0].name == "scripted"
        one = await client.ask(protocol.Models(id=client.number(), name="scripted"))
        assert protocol.as_type(one, protocol.ModelRow).format == "trace"
        with pytest.raises(EngineError, match="has no Doctor"):
            await client.ask(protocol.Doctor(id=client.number()))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1"),
        ('{"on": "load", "at": 0, "frame": {"type": "Nothing"}}', "line 1"),
        ('{"on": "load", "at": "soon", "frame": {}}', "line 1"),
        ('{"on": "generate", "at": 0, "frame": {"type": "Notice", "text": "x"}}', "no end"),
    ],
)
def test_broken_trace_is_named(tmp_path: Path, line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    assert main([str(path)]) == 2
    assert words in capsys.readouterr().err
    assert main([str(tmp_path / "missing.jsonl")]) == 2


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_shipped_traces_are_sound(path: Path) -> None:
    trace = read_trace(path)
    assert trace.loaded is not None and trace.answers and path.stat().st_size < 200_000
    for cues in trace.answers:
        assert [cue.at for cue in cues] == sorted(cue.at for cue in cues)
        *steps, done = (cue.frame for cue in cues)
        assert isinstance(done, protocol.Done)
        tokens = [token for step in steps if isinstance(step, protocol.Step) for token in step.tokens]
        assert "".join(token.text for token in tokens if not token.thinking) == done.report.text
        assert "".join(token.text for token in tokens if token.thinking) == done.report.thinking
        assert "".join(token.kind for token in tokens) == done.report.kinds
        assert [token.id for token in tokens] == done.report.token_ids
        assert {"A", "B", "C", "P"} == set(done.report.kinds)


def test_there_is_a_shipped_trace() -> None:
    assert TRACES
