"""`outrider run`: one answer to stdout."""

from __future__ import annotations

import os
import re
import select
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outrider.app import render
from outrider.app.command import Command
from outrider.app.options import EngineOptions, engine_options, think_option
from outrider.core.base import paths, protocol
from outrider.core.base.bounded import TooLong, read_all

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session
    from outrider.app.progress import ProgressLine

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[^`]*$")
_SILENCE = 1.0  # seconds without a byte on standard input after which that is said
_EPILOG = """\b
Examples:
  outrider run "Why is the sky blue?"
  outrider run --temperature 0 --max-tokens 32 --json "What is the capital of France?"
  outrider run "Summarise this:" < notes.txt       the file is appended to the prompt
  git log -1 --format=%B | outrider run "Say this in one sentence:"
  outrider run -f main.py "What does this file do, in one sentence?"
  outrider run -x "Write a Python function that adds two numbers." > add.py
  outrider run --raw --max-tokens 64 "Once upon a time"   no chat template, just more text
  outrider run --drafter prompt_lookup --stats "…" tokens per pass and speed on stderr

\b
In a terminal the answer is rendered as Markdown; a pipe or file gets it as it was written.
Exit codes: 0 done · 1 failed, or -x found no code · 2 wrong usage · 130 interrupted"""


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("prompt", nargs=-1, metavar="[PROMPT]")
@engine_options()
@think_option
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with text, tokens and figures.")
@click.option("--stats", is_flag=True, help="Print one line of figures to stderr afterwards.")
@click.option("--marks", is_flag=True, help="Colour the words that were drafted and accepted.")
@click.option("--file", "-f", "files", multiple=True, type=click.Path(), help="Send a text file along; repeatable.")
@click.option("--extract", "-x", "code", is_flag=True, help="Print the first code block of the answer alone.")
@click.option("--no-stream", is_flag=True, help="Print the answer when it is complete.")
def run(
    options: EngineOptions,
    think: bool | None,
    prompt: tuple[str, ...],
    raw: bool,
    as_json: bool,
    stats: bool,
    marks: bool,
    files: tuple[str, ...],
    code: bool,
    no_stream: bool,
) -> None:
    """Answer PROMPT on stdout and end.

    Text that is piped in is appended to PROMPT after an empty line, or is the prompt itself. Progress and what the model
    thinks before it answers go to stderr, and only where a person sees them. Ctrl-C stops the answer and keeps what is
    there; pressed twice it ends at once.
    """
    if marks and as_json:
        raise render.WrongUsage("--marks and --json exclude each other.", "The marks are in the JSON, under kinds.")
    if code and (marks or as_json):
        raise render.WrongUsage("-x goes with neither --marks nor --json.", "It prints code and nothing else.")
    if raw and files:
        raise render.WrongUsage("--file needs the chat template that --raw leaves out.", "Pipe the file in instead.")
    if raw and options.typed("chat.system"):
        raise render.WrongUsage("--system needs the chat template that --raw leaves out.", "Put it into the prompt.")
    if raw and options.typed("chat.think"):
        raise render.WrongUsage(
            "--think and --no-think need the chat template that --raw leaves out.", "Leave one of them out."
        )
    text = _with_files(_read_prompt(prompt, raw=raw, needed=not files), files)
    from outrider.app.commands import _engine

    output = _Output(as_json=as_json, stats=stats, marks=marks, code=code, stream=not no_stream)
    thinking = None if raw else think
    _engine.with_engine(partial(_answer, options=options, text=text, raw=raw, think=thinking, output=output))


@dataclass(frozen=True, slots=True)
class _Output:
    as_json: bool
    stats: bool
    marks: bool
    code: bool
    stream: bool


def _with_files(text: str, names: tuple[str, ...]) -> str:
    if not names:
        return text
    from outrider.app.chat.input.attach import Refused, read_file, with_attachments

    try:
        return with_attachments(text, [read_file(Path(name).expanduser()) for name in names])
    except Refused as error:
        raise render.WrongUsage(error.message, error.hint) from error


def _read_prompt(words: tuple[str, ...], *, raw: bool, needed: bool) -> str:
    if len(words) > 1:
        raise render.WrongUsage(
            f"PROMPT is one argument, but there are {len(words)}.",
            'Put it in quotes: outrider run "Why is the sky blue?"',
        )
    parts = list(words)
    if sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty():
        _say_if_silent(prompt=bool(words))
        piped = _piped()
        parts.append(piped if raw else piped.rstrip("\r\n"))
    text = "\n\n".join(part for part in parts if part.strip())
    if not text and needed:
        raise render.WrongUsage(
            "There is no prompt.", 'Give one, as in outrider run "Why is the sky blue?", or pipe text in.'
        )
    return text


def _say_if_silent(*, prompt: bool) -> None:
    """Say that standard input is waited for, if it is an open pipe and nothing comes for a second."""
    try:
        ready, _, _ = select.select([sys.stdin], [], [], _SILENCE)
    except (OSError, ValueError):  # no descriptor behind it, or one that cannot be waited for, as on Windows
        return
    if not ready:
        hint = " To answer PROMPT alone, add < /dev/null." if prompt else ""
        render.say(
            "Note: Waiting for standard input: it is an open pipe that nothing comes from yet.",
            f"The prompt is complete when the pipe closes.{hint}",
        )


def _piped() -> str:
    """All of stdin, as text. Raises WrongUsage for more than a model can be given, and for what is no text."""
    from outrider.app.chat.input.attach import LIMIT, Refused, decoded

    name = "What was piped in"
    try:
        return decoded(read_all(sys.stdin.buffer, LIMIT), name, "… | iconv -f LATIN1 -t UTF-8 | outrider run")
    except TooLong:
        raise render.WrongUsage(
            f"{name} is longer than {render.size(LIMIT)}, and that is the most.", "Pipe the part in that matters."
        ) from None
    except Refused as error:
        raise render.WrongUsage(error.message, error.hint) from error


class _Display:
    """Puts the tokens where they belong: the answer on stdout; the thought dim on stderr, or how long it is by now."""

    def __init__(self, progress: ProgressLine, output: _Output) -> None:
        mark = _mark(output.marks)
        quiet = output.as_json or output.code
        self._progress = progress
        self._answer = None if quiet else render.stdout_writer(mark)
        self._thought = None if quiet else render.thought_writer(mark)
        self._thinking = False
        self._thoughts = 0  # tokens
        self._stream = output.stream
        self._held: list[protocol.Token] = []
        self._code = Code() if output.code else None

    @property
    def enough(self) -> bool:
        """Whether nothing that is still to come would be shown."""
        return self._code is not None and self._code.closed

    def step(self, step: protocol.Step) -> None:
        """Show what one pass brought."""
        for thinking, tokens in groupby(step.tokens, key=lambda token: token.thinking):
            if thinking:
                self._think(list(tokens))
            else:
                self._say(list(tokens))

    def done(self, report: protocol.Report) -> None:
        """Show what was held to the end."""
        if self._thinking:
            if self._thought:
                self._thought.rest(report.thinking)
            self.end()
        self._release()
        if self._answer:
            self._answer.rest(report.text)
        if self._code is not None:
            self._code.add(report.text[self._code.taken :])

    def end(self) -> None:
        """Leave nothing half written."""
        self._progress.clear()
        if self._thought:
            self._thought.end(blank=True)
        self._thinking = False
        self._release()
        if self._answer:
            self._answer.end()

    def code(self) -> str | None:
        """The first code block, None if there is none."""
        return None if self._code is None else self._code.text

    def _think(self, tokens: list[protocol.Token]) -> None:
        if not self._thinking and self._answer:
            self._answer.end()
        self._thinking = True
        self._thoughts += len(tokens)
        if self._thought:
            self._progress.clear()
            self._thought.tokens(tokens)
        else:
            self._count("thinking", self._thoughts)

    def _say(self, tokens: list[protocol.Token]) -> None:
        if self._thinking:
            self.end()
        if self._code is not None:
            self._code.add("".join(token.text for token in tokens))
        if self._code is not None or not self._stream:
            self._held += tokens
            self._count("writing", len(self._held))
            return
        self._progress.clear()
        if self._answer:
            self._answer.tokens(tokens)

    def _count(self, phase: str, tokens: int) -> None:
        self._progress.update(protocol.Progress(request=0, phase=phase, done=tokens, unit="tokens"))

    def _release(self) -> None:
        """Write what was held until the answer is complete."""
        held, self._held = self._held, []
        if held:
            self._progress.clear()
        if held and self._answer:
            self._answer.tokens(held)


class Code:
    """The first code block of a text that comes piece by piece."""

    def __init__(self) -> None:
        self.taken = 0
        """Characters so far."""
        self.closed = False
        self._open = ""
        self._fence: re.Match[str] | None = None
        self._lines: list[str] = []

    @property
    def text(self) -> str | None:
        """The code, as far as it has come; None if none has begun."""
        if self._fence is None:
            return None
        rest = [] if self.closed or not self._open else [self._open]
        return textwrap.dedent("".join(line + "\n" for line in [*self._lines, *rest]))

    def add(self, text: str) -> None:
        """Take more of the text."""
        self.taken += len(text)
        *lines, self._open = (self._open + text).split("\n")
        for line in lines:
            self._take(line)

    def _take(self, line: str) -> None:
        if self.closed:
            return
        if self._fence is None:
            self._fence = _FENCE.match(line)
            return
        fence, bare = self._fence[1], line.strip()
        if len(bare) >= len(fence) and not bare.strip(fence[0]):
            self.closed = True
        else:
            self._lines.append(line)


async def _answer(
    session: Session, *, options: EngineOptions, text: str, raw: bool, think: bool | None, output: _Output
) -> None:
    request = protocol.Generate(
        id=session.client.number(),
        model=options.model,
        messages=None if raw else _messages(options.system, text),
        prompt=text if raw else None,
        sampling=options.sampling,
        drafter=options.drafter,
        rule=options.rule,
        think=think,
    )
    display = _Display(session.progress, output)
    enough = False
    report: protocol.Report | None = None
    session.starting()
    try:
        async for event in session.client.stream(request):
            if isinstance(event, protocol.Step):
                session.cancel_first(request.id)
                display.step(event)
                if display.enough and not enough:
                    enough = True
                    session.client.send(protocol.Cancel(id=session.client.number(), request=request.id))
            elif isinstance(event, protocol.Done):
                report = event.report
                display.done(report)
            else:
                session.show(event)
    finally:
        display.end()
    assert report is not None  # the stream ends with Done or raises
    _conclude(report, display.code(), output, stopped=session.stopped)


def _conclude(report: protocol.Report, code: str | None, output: _Output, *, stopped: int) -> None:
    """What comes behind the answer itself. Raises Failure."""
    for note, hint in _notes(report):
        render.say(note, hint)
    if output.code:
        _print_code(code, report.text, stopped=stopped)
    if output.as_json:
        render.echo_json(report, pretty=False)
    if output.stats:
        render.say(_stats_line(report))
    if report.finish == "error":
        raise render.Failure("The answer broke off.", f"{paths.engine_log()} may say why.")
    if report.thinking and not report.text and not stopped:
        render.say("The model thought, but gave no answer.", "Allow more --max-tokens, or ask with --no-think.")


def _print_code(code: str | None, answer: str, *, stopped: int) -> None:
    if code is None:
        if stopped:
            return
        render.say(answer)
        raise render.Failure("The answer has no code block.", "It is above, on stderr; without -x it goes to stdout.")
    click.echo(render.printable(code) if render.is_terminal(sys.stdout) else code, nl=False)


def _notes(report: protocol.Report) -> Iterator[tuple[str, str]]:
    """What a reader should know of an answer that does not show in its text, each with what to do about it."""
    if report.limit == "tokens":
        yield f"Note: The answer was cut off at {len(report.token_ids)} tokens.", "A larger --max-tokens lets it go on."
    elif report.limit == "context":
        yield (
            "Note: The answer was cut off because the context is full.",
            "A shorter prompt leaves more room; so does a larger --context, up to what the model was made for.",
        )
    if report.loops:
        yield (
            "Note: The answer repeats itself over and over, so its speed says nothing about other answers.",
            "A --repeat-penalty of 1.1, another --temperature or a larger model may help.",
        )


def _messages(system: str | None, text: str) -> list[protocol.Message]:
    turns = [protocol.Message("system", system)] if system is not None else []
    return [*turns, protocol.Message("user", text)]


def _mark(asked: bool) -> str:
    """The SGR code of an accepted draft: green, or underlined where colours are not wanted."""
    if not asked:
        return ""
    return "4" if os.environ.get("NO_COLOR") else "32"


def _stats_line(report: protocol.Report) -> str:
    tokens = len(report.token_ids)
    parts = [f"{tokens} tokens", f"{report.tokens_per_second:.1f} tokens/s"]
    if report.rule == "typical":
        parts.insert(0, "LOSSY: typical acceptance")
    if report.passes:
        parts.append(f"{max(tokens - 1, 0) / report.passes:.2f} tokens/pass")
    if report.proposed:
        parts.append(f"{report.accepted} of {report.proposed} drafted tokens accepted")
    parts.append("drafter " + (", ".join(name for name, passes in report.drafters.items() if passes) or report.drafter))
    if report.speedup:
        parts.append(f"{report.speedup.value:.2f}× ± {report.speedup.error:.2f} against plain passes")
    parts += [f"first token after {report.timing.first_token_s:.2f} s", f"seed {report.seed}", report.finish]
    return " · ".join(parts)
