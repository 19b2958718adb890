"""A stand-in for the engine: `python -m outrider.app.scripted TRACE [--speed X]` plays a recorded trace.

It speaks `outrider.core.base.protocol` over stdin and stdout, so everything above the pipe runs as with a real engine: for
tests, demos and pictures. A trace is JSON Lines; each line is

    {"on": "load" | "generate" | …, "at": SECONDS, "frame": {"type": "Step", ...}}

with a frame of the protocol as JSON and the time since its request came. The `load` lines end with a `Result` that holds
`Loaded`, or with `Failed`; where there are several, each load gets the next, and the last again. The `generate` lines are
answers one after the other, each ending with `Done` or `Failed`; request number n gets answer n, and the first again after
the last. One that goes on with an answer that was stopped gets the rest of that. So do those of any other request, under its
name in small letters (`models`, `pull`, `drafter_test`; `model` for one row of `Models`), each ending with `Result` or
`Failed`. Request numbers are put right while playing, and so is the report when an answer was cut short or its drafter was
switched. A first line `{"hello": {...}}` may set fields of `Hello`. Lines that are empty or begin with `#` are skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.base import protocol, terminal
from outrider.core.base.protocol import Done, Failed, Finish, Loaded, Progress, Report, Result, Step, Timing

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Cue:
    """A frame and when it is due."""

    at: float
    frame: protocol.Event


@dataclass(slots=True)
class Trace:
    """A trace file, sorted by what it answers."""

    loads: list[list[Cue]] = field(default_factory=lambda: [[]])
    answers: list[list[Cue]] = field(default_factory=list)
    jobs: dict[str, list[list[Cue]]] = field(default_factory=dict)
    hello: dict[str, Any] = field(default_factory=dict)

    @property
    def loaded(self) -> Loaded | None:
        """What loading results in, None if the trace lets it fail."""
        lasts = (cues[-1].frame for cues in reversed(self.loads) if cues)
        return next((protocol.as_type(last.data, Loaded) for last in lasts if isinstance(last, Result)), None)


def read_trace(path: Path) -> Trace:
    """Read a trace file. Raises ValueError naming the line that is wrong."""
    trace = Trace()
    answer: list[Cue] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            entry = json.loads(line)
            if "hello" in entry:
                trace.hello = entry["hello"]
                continue
            cue = Cue(float(entry["at"]), msgspec.convert(entry["frame"], protocol.AnyEvent))
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if entry["on"] == "load":
            _add_job(trace.loads, cue)
            continue
        if entry["on"] != "generate":
            _add_job(trace.jobs.setdefault(entry["on"], [[]]), cue)
            continue
        answer.append(cue)
        if isinstance(cue.frame, Done | Failed):
            trace.answers.append(answer)
            answer = []
    if answer:
        raise ValueError(f"{path}: the last answer has no end")
    return trace


def _add_job(answers: list[list[Cue]], cue: Cue) -> None:
    answers[-1].append(cue)
    if isinstance(cue.frame, Result | Failed):
        answers.append([])


def write_frame(event: protocol.Event) -> None:
    """Write a frame to stdout, all of it."""
    data = memoryview(protocol.pack(event))
    while data:
        data = data[os.write(1, data) :]


class ScriptedEngine:
    """Plays one trace to one client, whom it tells what happens through `send`."""

    def __init__(self, trace: Trace, speed: float, send: Callable[[protocol.Event], None] = write_frame) -> None:
        self._trace = trace
        self._speed = speed
        self._send = send
        self._turn = self._loaded = 0
        self._asked: Counter[str] = Counter()
        self._drafter = "auto"
        self._rest: list[Cue] = []  # of an answer that was stopped
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._cancelled: dict[int, asyncio.Event] = {}

    async def serve(self) -> None:
        """Answer requests until the client leaves."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
        self.greet()
        unpacker = protocol.Unpacker(protocol.AnyRequest)
        while data := await reader.read(_CHUNK):
            for request in unpacker.feed(data):
                if isinstance(request, protocol.Quit):
                    return
                self.take(request)
        terminal.restore()

    def greet(self) -> None:
        """Say who it is."""
        hello = {"version": protocol.VERSION, "outrider": "scripted", "pid": os.getpid()} | self._trace.hello
        self._send(msgspec.convert(hello, protocol.Hello))

    def take(self, request: protocol.Request) -> None:
        """Begin to answer a request."""
        if isinstance(request, protocol.Cancel):
            if request.request in self._cancelled:
                self._cancelled[request.request].set()
        elif isinstance(request, protocol.Load):
            self._drafter = request.drafter.name
            self._start(request.id, self._load(request.id))
        elif isinstance(request, protocol.Generate):
            self._drafter = request.drafter.name
            self._cancelled[request.id] = asyncio.Event()
            self._start(request.id, self._generate(request))
        elif isinstance(request, protocol.SetDrafter):
            self._set_drafter(request)
        else:
            self._look_up(request)

    def end(self) -> None:
        """Give up whatever is being answered."""
        for task in self._jobs.values():
            task.cancel()

    def _start(self, number: int, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._jobs[number] = task
        task.add_done_callback(lambda _: self._jobs.pop(number, None))

    def _rows(self) -> list[protocol.DrafterRow]:
        return self._trace.loaded.drafters if self._trace.loaded else []

    def _set_drafter(self, request: protocol.SetDrafter) -> None:
        name = request.drafter.name
        usable = {"auto", "none", *(row.name for row in self._rows() if row.usable)}
        if name not in usable and request.drafter.weights is None:
            known = ", ".join(sorted(usable))
            failed = f"There is no drafter `{name}` that can be used here."
            self._send(Failed(request=request.id, message=failed, hint=f"Usable now: {known}.", usage=True))
            return
        self._drafter = name
        self._send(Result(request=request.id, data=name))

    def _look_up(self, request: protocol.Request) -> None:
        answers = self._trace.jobs.get(_word(request), [])[:-1]
        if answers:
            self._cancelled[request.id] = asyncio.Event()
            self._start(request.id, self._job(request.id, answers[self._asked[_word(request)] % len(answers)]))
            self._asked[_word(request)] += 1
        elif isinstance(request, protocol.Drafters):
            self._send(Result(request=request.id, data=protocol.plain(self._rows())))
        elif isinstance(request, protocol.Models):
            row = protocol.ModelRow(name="scripted", title="Scripted", path="-", format="trace", family="scripted")
            self._send(Result(request=request.id, data=protocol.plain(row if request.name else [row])))
        else:
            kind = type(request).__name__
            self._send(
                Failed(request=request.id, message=f"The scripted engine has no {kind}.", hint="Use a real one.")
            )

    async def _job(self, number: int, cues: list[Cue]) -> None:
        begun = asyncio.get_running_loop().time()
        for cue in cues:
            if not await self._until(begun, cue.at, self._cancelled[number]):
                self._send(Failed(request=number, message="It was stopped."))
                break
            self._send(_addressed(cue.frame, number))
        del self._cancelled[number]

    async def _until(self, begun: float, at: float, stop: asyncio.Event | None = None) -> bool:
        """Wait for the moment `at` of a request; False if it was cancelled first."""
        delay = begun + at / self._speed - asyncio.get_running_loop().time() if self._speed else 0.0
        if stop is None:
            await asyncio.sleep(max(0.0, delay))
            return True
        if delay > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), delay)
        else:
            await asyncio.sleep(0)
        return not stop.is_set()

    async def _load(self, number: int) -> None:
        begun = asyncio.get_running_loop().time()
        answers = [cues for cues in self._trace.loads if cues]
        self._loaded += 1
        for cue in answers[min(self._loaded, len(answers)) - 1] if answers else ():
            await self._until(begun, cue.at)
            self._send(_addressed(cue.frame, number))

    async def _generate(self, request: protocol.Generate) -> None:
        if request.continues is None or not self._rest:
            cues, before = self._trace.answers[self._turn % len(self._trace.answers)], 0.0
            self._turn += 1
        else:
            cues, before = self._rest, self._rest[0].at
        played: list[Step] = []
        begun = asyncio.get_running_loop().time()
        stop = self._cancelled[request.id]
        self._rest = []
        for number, cue in enumerate(cues):
            going = await self._until(begun, cue.at - before, stop)
            frame = cue.frame
            if not going or isinstance(frame, Done):
                self._rest = [] if going else cues[number:]
                finish = frame.finish if going and isinstance(frame, Done) else "cancelled"
                recorded = cues[-1].frame.report if isinstance(cues[-1].frame, Done) else None
                report = self._report(request, played, finish, recorded)
                self._send(Done(request=request.id, finish=finish, report=report))
                break
            if not isinstance(frame, Step):
                self._send(_addressed(frame, request.id))
                continue
            for step in self._as_drafted(frame, len(played)):
                step.request = request.id
                step.t = max(0.0, step.t - before)
                played.append(step)
                self._send(step)
        del self._cancelled[request.id]

    def _as_drafted(self, step: Step, seq: int) -> Iterator[Step]:
        """The recorded pass as the drafter of this moment would have made it."""
        if self._drafter == "none":
            for number, token in enumerate(step.tokens, seq):
                plain = msgspec.structs.replace(token, kind="P")
                yield msgspec.structs.replace(
                    step, seq=number, drafter="none", proposed=0, accepted=0, tokens=[plain], draft_ms=0.0
                )
            return
        name = step.drafter if self._drafter == "auto" else self._drafter
        yield msgspec.structs.replace(step, seq=seq, drafter=name)

    def _report(
        self, request: protocol.Generate, played: Sequence[Step], finish: Finish, recorded: Report | None
    ) -> Report:
        return report_of(played, request, finish, recorded)


def report_of(
    steps: Sequence[Step], request: protocol.Generate, finish: Finish, recorded: Report | None = None
) -> Report:
    """The report of what was played; what steps do not tell comes from the recorded one."""
    tokens = [token for step in steps for token in step.tokens]
    decode = steps[-1].t - steps[0].t if steps else 0.0
    first = steps[0].t if steps else 0.0
    drafters: dict[str, int] = {}
    for step in steps[1:]:
        drafters[step.drafter] = drafters.get(step.drafter, 0) + 1
    whole = recorded is not None and drafters == recorded.drafters
    return Report(
        model=request.model.model,
        drafter=request.drafter.name,
        rule=request.rule,
        seed=recorded.seed if recorded else 0,
        text="".join(token.text for token in tokens if not token.thinking),
        token_ids=[token.id for token in tokens],
        prompt_tokens=recorded.prompt_tokens if recorded else 0,
        finish=finish,
        passes=max(0, len(steps) - 1),
        proposed=sum(step.proposed for step in steps),
        accepted=sum(step.accepted for step in steps),
        kinds="".join(token.kind for token in tokens),
        timing=Timing(
            prefill_s=first,
            first_token_s=first,
            decode_s=decode,
            draft_s=sum(step.draft_ms for step in steps) / 1000,
            verify_s=sum(step.verify_ms for step in steps) / 1000,
        ),
        tokens_per_second=(len(tokens) - 1) / decode if decode > 0 else 0.0,
        drafters=drafters,
        speedup=recorded.speedup if recorded and whole else None,
        plain=recorded.plain if recorded and whole else None,
        thinking="".join(token.text for token in tokens if token.thinking),
    )


def _word(request: protocol.Request) -> str:
    """What the lines of a trace that answer a request stand under."""
    if isinstance(request, protocol.Models) and request.name is not None:
        return "model"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(request).__name__).lower()


def _addressed(frame: protocol.Event, number: int) -> protocol.Event:
    if isinstance(frame, Progress | Result | Failed | Step | Done | protocol.Notice):
        return msgspec.structs.replace(frame, request=number)
    return frame


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="outrider.app.scripted", description="Play a trace as the engine.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--speed", type=float, default=1.0, help="times as fast as recorded; 0 = without waiting")
    options = parser.parse_args(arguments)
    try:
        trace = read_trace(options.trace)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    asyncio.run(ScriptedEngine(trace, options.speed).serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
