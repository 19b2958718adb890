"""The command line: finds the command, turns every failure into one sentence and an exit code.

Exit codes: 0 done, 1 the task failed, 2 wrong usage, 130 interrupted. A command is imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from outrider.app import files, render

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Each with the first sentence of its help, so that the overview imports no command.
COMMANDS = {
    "chat": "Chat in the terminal; `outrider` alone does the same.",
    "run": "Answer PROMPT on stdout and end.",
    "chats": "Chats so far: list, search, show, export, import, rm.",
    "models": "Local and catalogue models: list, pull, show, rm.",
    "drafters": "Drafters, the methods that guess ahead: list, show, test.",
    "bench": "Measure tokens per second with and without each drafter.",
    "verify": "Check on this machine that drafted text is the text the model writes alone.",
    "train": "Train a drafter for a model.",
    "replay": "Play a saved race of compare mode again.",
    "plugins": "Packages that bring drafters: list, new, install, remove.",
    "config": "Settings: init, show, edit, path, check, set, unset, schema.",
    "keys": "Keys of the chat: every action with its keys, its letters and its slash command.",
    "completion": "Print what makes SHELL complete commands, options and values.",
    "doctor": "Look at terminal, folders, plugins, engine and GPU: what is wrong and how to mend it.",
}
DEBUG = "OUTRIDER_DEBUG"
COMPLETE = "_OUTRIDER_COMPLETE"  # set by what `outrider completion` prints

_EPILOG = """\b
Examples:
  outrider                                         chat with the starter model
  outrider --model ~/models/qwen.gguf              chat with a model of your own
  outrider run "Name three rivers in France."      one answer, then back to the shell
  outrider run "Summarise this:" < notes.txt       a file or a pipe is appended to the prompt
  outrider models list                             what is here and what can be pulled

Everything lies in your user folders; set OUTRIDER_HOME to keep it in one place of your choice."""


class _Commands(click.Group):
    """Imports a command when it is needed; what is not a command belongs to `chat`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"outrider.app.commands.{cmd_name}"), cmd_name)
        _add_debug(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """An option without a command is one of `chat`."""
        found = super().shell_complete(ctx, incomplete)
        chat = self.get_command(ctx, "chat") if incomplete.startswith("-") else None
        if chat is not None:
            known = {item.value for item in found}
            inner = click.Context(chat, parent=ctx, info_name="chat")
            found += [item for item in chat.shell_complete(inner, incomplete) if item.value not in known]
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        at = next((i for i, word in enumerate(args) if word not in own), len(args))
        asks = {"--help", "--version"} & set(args[:at]) or (ctx.resilient_parsing and at == len(args))
        if not asks and (at == len(args) or args[at].startswith("-")):
            args = [*args[:at], "chat", *args[at:]]
        return super().parse_args(ctx, args)


def _set_debug(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ[DEBUG] = "1"  # read again by the engine client, which then passes on what the engine prints


def _debug_option(*, hidden: bool) -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        hidden=hidden,
        callback=_set_debug,
        help="Show tracebacks and what the engine prints.",
    )


def _add_debug(command: click.Command) -> None:
    """`--debug` also works behind the command's name."""
    if isinstance(command, click.Group):
        for name in command.commands:
            _add_debug(command.commands[name])
    if not any("--debug" in parameter.opts for parameter in command.params):
        command.params.append(_debug_option(hidden=True))


@click.group(cls=_Commands, params=[_debug_option(hidden=False)], epilog=_EPILOG)
@click.version_option(package_name="outrider", prog_name="outrider", message="%(prog)s %(version)s")
def cli() -> None:
    """Chat with a local model in the terminal.

    A drafter rides ahead and guesses the next few words; the model checks all of them at once. You get the model's own
    text, sooner, and see which words came early. Without a command, `outrider` opens the chat.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    _prepare_streams()
    sys.excepthook = _explain_bug
    if args is None and os.environ.get(COMPLETE):
        return _complete(os.environ[COMPLETE])
    words = [render.clean_text(word) for word in (sys.argv[1:] if args is None else args)]
    try:
        with cli.make_context("outrider", words) as context:
            cli.invoke(context)
    except click.exceptions.Exit as stop:
        _silence_broken_stdout()
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        if render.is_terminal(sys.stderr):
            click.echo(err=True)  # the shell's prompt belongs on a line of its own
        return 130
    except BrokenPipeError:
        _silence_broken_stdout()
        return 0  # the reader has what it wanted
    except click.UsageError as error:
        return _say(error, _usage_message(error), _usage_hint(error), 2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        why = files.reason(error)
        return _say(error, f"{why[:1].upper()}{why[1:]}{where}.", "`outrider doctor` looks at folders and disk.", 1)
    except render.Failure as error:
        return _say(error, error.message, error.hint, error.code)
    return 0


def _complete(instruction: str) -> int:
    """Answer the shell that asks how a line may go on, or wants to know how to ask."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "outrider", COMPLETE, instruction)


def _prepare_streams() -> None:
    """Streams that take any text, also where the shell closed one or the locale knows few letters."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if render.is_terminal(sys.stdin) and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(
            errors="replace"
        )  # a keyboard may type any bytes; those of a file are judged by who reads it


def _usage_message(error: click.UsageError) -> str:
    text = error.format_message()
    return text if text.endswith((".", "?", "!", ")")) else f"{text}."


def _usage_hint(error: click.UsageError) -> str:
    hint = getattr(error, "hint", "")
    path = error.ctx.command_path if error.ctx else "outrider"
    return hint or f"`{path} --help` shows every option with examples."


def _say(error: BaseException, message: str, hint: str, code: int) -> int:
    with contextlib.suppress(OSError):
        if os.environ.get(DEBUG):
            import traceback

            click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
        render.say(f"Error: {message}", hint)
    return code


def _silence_broken_stdout() -> None:
    """If nobody reads stdout any more, what is still buffered must not fail at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
    """A mistake of ours: one sentence for the user, the traceback only when asked for."""
    if os.environ.get(DEBUG):
        sys.__excepthook__(kind, error, trace)
        return
    render.say(
        f"Error: Outrider made a mistake of its own ({kind.__name__}: {error}).",
        "Run the same command with --debug in front for the details; `outrider --debug run …`.",
    )
