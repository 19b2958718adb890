"""The engine client against engines that behave, misbehave and die."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.app.client import EngineClient, EngineDied, EngineError
from outrider.core.base import paths, protocol

ENGINE = """
import os, sys, time
from outrider.core.base import protocol as p
unpacker = p.Unpacker(p.AnyRequest)
def send(frame): os.write(1, p.pack(frame))
def requests():
    while data := os.read(0, 65536):
        yield from unpacker.feed(data)
send(p.Hello(version=p.VERSION, outrider="test", pid=os.getpid()))
"""


@asynccontextmanager
async def engine(body: str, **options: Any) -> AsyncIterator[EngineClient]:
    """A client of an engine whose program is `body`, after the greeting."""
    client = EngineClient((sys.executable, "-c", ENGINE + textwrap.dedent(body)), **options)
    await client.start()
    try:
        yield client
    finally:
        await client.close(patience=0.3)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All folders of this test."""
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    return tmp_path


def doctor(client: EngineClient) -> protocol.Doctor:
    """Any request."""
    return protocol.Doctor(id=client.number())


ECHO = """
for request in requests():
    if isinstance(request, p.Quit): break
    send(p.Progress(request=request.id, phase="half"))
    send(p.Result(request=request.id, data=type(request).__name__))
"""


async def test_greets_and_answers_many_at_once() -> None:
    async with engine(ECHO) as client:
        assert (await client.greeted()).outrider == "test"
        seen: list[protocol.Event] = []
        answers = await asyncio.gather(*(client.ask(doctor(client), seen.append) for _ in range(20)))
        assert answers == ["Doctor"] * 20 and len(seen) == 20
        assert client.traffic.frames["Result"] == 20 and client.traffic.received > 1000 and client.backlog == 0
        first = client.pid
        await client.start()
        assert client.pid == first


@pytest.mark.parametrize(("other", "older"), [(-1, "engine"), (1, "app")])
async def test_an_engine_of_another_version_is_told_and_ended(other: int, older: str) -> None:
    deaths: list[str] = []
    program = ENGINE.replace("version=p.VERSION", f"version=p.VERSION + {other}").replace('"test"', '"9.9"')
    client = EngineClient((sys.executable, "-c", program + textwrap.dedent(ECHO)), on_death=deaths.append)
    await client.start()
    with pytest.raises(EngineDied) as caught:
        await client.ask(doctor(client))
    assert f"The {older} is too old." in caught.value.message and "Outrider 9.9" in caught.value.message
    assert "Install one version" in caught.value.hint and deaths == [caught.value.message] and not client.alive
    with pytest.raises(EngineDied, match="too old") as caught:
        await client.greeted()
    assert "Install one version" in caught.value.hint
    await client.close()


async def test_failed_becomes_an_error() -> None:
    body = """
    for request in requests():
        send(p.Failed(request=request.id, message="No such model.", hint="Look.", usage=True, trace="t"))
    """
    async with engine(body) as client:
        with pytest.raises(EngineError) as caught:
            await client.ask(doctor(client))
        error = caught.value
        assert (error.message, error.hint, error.usage, error.trace) == ("No such model.", "Look.", True, "t")
        assert not isinstance(error, EngineDied)


async def test_death_ends_every_request_and_is_told_once() -> None:
    deaths: list[str] = []
    body = """
    list(zip(range(2), requests()))
    print("the last straw", file=sys.stderr, flush=True)
    os._exit(7)
    """
    async with engine(body, on_death=deaths.append) as client:
        results = await asyncio.gather(client.ask(doctor(client)), client.ask(doctor(client)), return_exceptions=True)
        assert all(isinstance(result, EngineDied) for result in results)
        assert "exit code 7" in str(results[0]) and "the last straw" in str(results[0])
        assert deaths == [str(results[0])] and not client.alive
        with pytest.raises(EngineDied, match="last straw"):
            await client.ask(doctor(client))
        assert len(deaths) == 1


async def test_killed_engine_can_be_started_again() -> None:
    async with engine(ECHO) as client:
        await client.greeted()
        assert client._process is not None
        client._process.kill()
        with pytest.raises(EngineDied, match="SIGKILL"):
            await client.ask(doctor(client))
        await client.start()
        assert await client.ask(doctor(client)) == "Doctor"


async def test_death_before_the_greeting() -> None:
    client = EngineClient((sys.executable, "-c", "import sys; sys.exit('cannot import name')"))
    await client.start()
    with pytest.raises(EngineDied, match="cannot import name"):
        await client.greeted()
    await client.close()
    missing = EngineClient(("/nowhere/engine",))
    with pytest.raises(EngineError, match="could not be started"):
        await missing.start()
    await missing.close()


@pytest.mark.parametrize(
    "garbage",
    [b"Loading checkpoint shards: 100%\n" * 9, b"\x05\x00\x00\x00hello", b"\x02\x00\x00\x00\x81\xa1", b"\xff" * 64],
)
async def test_garbage_on_the_pipe_ends_the_engine(garbage: bytes) -> None:
    body = f"os.write(1, {garbage!r}); time.sleep(60)"
    async with engine(body) as client:
        with pytest.raises(EngineDied, match="not a frame"):
            await asyncio.wait_for(client.ask(doctor(client)), 10)


async def test_closing_the_pipe_is_death_even_if_the_process_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.app.client._LAST_BREATH", 0.2)
    async with engine("os.close(1); time.sleep(60)") as client:
        with pytest.raises(EngineDied):
            await asyncio.wait_for(client.ask(doctor(client)), 10)


async def test_death_is_seen_though_a_child_holds_the_pipes() -> None:
    body = """
    import subprocess
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3)"], stdout=subprocess.DEVNULL)
    next(requests())
    os._exit(3)
    """
    async with engine(body) as client:
        with pytest.raises(EngineDied, match="exit code 3"):
            await asyncio.wait_for(client.ask(doctor(client)), 2)


async def test_long_lines_on_stderr_are_kept_and_logged() -> None:
    body = """
    sys.stderr.write("x" * 3_000_000 + "\\nshort\\n\\r50%\\r100%\\nno end")
    sys.stderr.flush()
    """ + textwrap.indent(ECHO, "    ")
    async with engine(body) as client:
        assert await client.ask(doctor(client)) == "Doctor"
    words = client.last_words()
    assert "short" in words and "100%" in words
    assert paths.engine_log().stat().st_size > 3_000_000


async def test_log_is_begun_anew_once_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.app.client._LOG_LIMIT", 100)
    log = paths.engine_log()
    log.parent.mkdir(parents=True)
    log.write_text("y" * 200)
    async with engine('sys.stderr.write("new\\n"); sys.stderr.flush()\n' + ECHO) as client:
        await client.ask(doctor(client))
    assert log.read_text() == "new\n"


async def test_log_that_cannot_be_written_does_not_matter(home: Path) -> None:
    (home / "state").write_text("a file where a folder should be")
    async with engine('sys.stderr.write("hm\\n"); sys.stderr.flush()\n' + ECHO) as client:
        assert await client.ask(doctor(client)) == "Doctor"


async def test_leaving_the_stream_cancels_the_request() -> None:
    body = """
    for request in requests():
        if isinstance(request, p.Cancel):
            send(p.Notice(text=f"cancelled {request.request}"))
        elif isinstance(request, p.Quit):
            break
        else:
            send(p.Progress(request=request.id, phase="one"))
    """
    notices: list[protocol.Notice] = []
    async with engine(body, on_notice=notices.append) as client:
        request = doctor(client)
        async with aclosing(client.stream(request)) as events:
            async for event in events:
                assert isinstance(event, protocol.Progress)
                break
        other = doctor(client)
        task = asyncio.create_task(client.ask(other))
        await asyncio.sleep(0.05)
        task.cancel()
        for _ in range(500):
            if len(notices) == 2:
                break
            await asyncio.sleep(0.01)
        assert [notice.text for notice in notices] == [f"cancelled {request.id}", f"cancelled {other.id}"]


async def test_notice_without_a_listener_goes_to_open_requests() -> None:
    body = """
    for request in requests():
        send(p.Notice(text="to all"))
        send(p.Result(request=request.id))
        break
    """
    async with engine(body) as client:
        seen: list[Any] = []
        await client.ask(doctor(client), seen.append)
        assert [event.text for event in seen] == ["to all"]


async def test_close_ends_an_engine_that_does_not_listen() -> None:
    body = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    deaths: list[str] = []
    async with engine(body, on_death=deaths.append) as client:
        await client.greeted()
        await asyncio.sleep(0.1)
        await client.close(patience=0.1)
        assert not client.alive and not deaths
    never = EngineClient()
    assert not never.alive and never.pid is None
    await never.close()


async def test_echo_repeats_what_the_engine_prints(capsys: pytest.CaptureFixture[str]) -> None:
    async with engine('sys.stderr.write("aloud\\n"); sys.stderr.flush()\n' + ECHO, echo=True) as client:
        await client.ask(doctor(client))
    assert "aloud" in capsys.readouterr().err


async def test_the_end_of_the_process_is_left_to_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a busy machine its thread hears of it late; meanwhile nothing else may take the exit code."""
    ended, wait = threading.Event(), os.waitpid

    def late(pid: int, options: int) -> tuple[int, int]:
        if not options:
            ended.wait(0.3)
        return wait(pid, options)

    monkeypatch.setattr("asyncio.unix_events.os.waitpid", late)
    client = EngineClient((sys.executable, "-c", ENGINE + ECHO))
    await client.start()
    await client.greeted()
    await client.close(patience=0.05)
    assert not client.alive and client._process is not None and client._process.returncode in (0, -9, -15)
    assert "Unknown child process" not in caplog.text
