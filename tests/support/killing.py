"""Kills a chat, or its engine, in the middle of a reply, and looks at what the store has of it.

What was written is known exactly: between chat and engine stands a listener that notes every frame with its time.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from terminal import Terminal
from traces import answer, loading, written

from outrider.app.store.chats import Store
from outrider.core.base import protocol
from outrider.core.base.protocol import Step

Victim = Literal["chat", "engine"]

_CHAT = """
import json, sys
from outrider.app.chat import ChatOptions, run_chat
from outrider.core.base.protocol import ModelChoice
model, command = json.loads(sys.argv[1])
run_chat(ChatOptions(ModelChoice(model=model), command=command))
"""
_LISTENER = """
import os, struct, subprocess, sys, time
log = open(sys.argv[1], "ab")
with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE) as engine:
    while data := os.read(engine.stdout.fileno(), 1 << 16):
        log.write(struct.pack("<dI", time.monotonic(), len(data)) + data)
        log.flush()
        os.write(1, data)
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """Which engine answers, and what to ask it."""

    command: Sequence[str]
    model: str = "starter"
    question: str = "go"
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a reply. `sent` and `saved` are characters, `missing` seconds of the reply's end."""

    victim: Victim
    delay: float
    sent: int
    saved: int
    missing: float
    state: str
    exact: bool
    """Whether what was saved is the beginning of what was sent."""


def scripted(folder: Path, *, minutes: float = 2.0) -> Engine:
    """An engine that goes on for so long, a pass of three words in 20 ms."""
    trace = folder / "endless.jsonl"
    words = " ".join(f"word{n}" for n in range(round(minutes * 60 * 150)))
    trace.write_text(written(loading(), answer(words, "PAB", pause=0.02)))
    return Engine((sys.executable, "-m", "outrider.app.scripted", str(trace)))


def real(question: str, models: Path | None = None) -> Engine:
    """The engine itself with the starter model, from another library if one is named."""
    env = {"OUTRIDER_MODELS": str(models)} if models else None
    return Engine((sys.executable, "-m", "outrider.core.service"), question=question, env=env)


def strike(folder: Path, engine: Engine, victim: Victim, delay: float) -> Outcome:
    """Ask, wait until the reply has begun and `delay` seconds more, kill -9, and compare the store with what was sent."""
    home, log = folder / "home", folder / "frames"
    program = msgspec.json.encode([engine.model, [sys.executable, "-c", _LISTENER, str(log), *engine.command]])
    env = {**(engine.env or {}), "OUTRIDER_HOME": str(home)}
    with Terminal([sys.executable, "-c", _CHAT, program.decode()], size=(100, 30), env=env) as terminal:
        terminal.until("ready", 300)
        listener = terminal.children()[0]
        terminal.type(engine.question + "\r")
        terminal.until(lambda: log.exists() and any(_frames(log)), 300)
        terminal.rest(delay)
        moment = time.monotonic()
        if victim == "chat":
            terminal.process.kill()
            terminal.process.wait()
        else:
            os.killpg(listener, signal.SIGKILL)  # with the engine, its child
            terminal.until("stopped working")
            terminal.type("\x11")
            terminal.ends()
    return _compare(home, log, victim, delay, moment)


def _frames(log: Path) -> list[tuple[float, Step]]:
    """Every pass that was sent, with its time. The last record may be cut short."""
    data, at, frames = log.read_bytes(), 0, []
    unpacker = protocol.Unpacker(protocol.AnyEvent)
    while at + 12 <= len(data):
        when, size = struct.unpack_from("<dI", data, at)
        part = data[at + 12 : at + 12 + size]
        at += 12 + size
        if len(part) < size:
            break
        frames += [(when, event) for event in unpacker.feed(part) if isinstance(event, Step)]
    return frames


def _compare(home: Path, log: Path, victim: Victim, delay: float, moment: float) -> Outcome:
    with Store.open(home / "data" / "chats.db") as store:
        assert store.trouble is None, store.trouble
        (row,) = store.chats()
        reply = store.load(row.id).path()[-1]
    assert reply.role == "assistant"
    sent, gone = "", 0.0
    saved = reply.thinking + reply.text
    for when, step in _frames(log):
        if when > moment:
            break
        sent += "".join(token.text for token in step.tokens)
        if len(sent) > len(saved) and not gone:
            gone = when
    exact = sent.startswith(saved) or (victim == "engine" and saved.startswith(sent))
    return Outcome(victim, delay, len(sent), len(saved), moment - gone if gone else 0.0, reply.state, exact)
