"""`outrider chat`, which is also what `outrider` alone does."""

from __future__ import annotations

import os
import sys

import click

from outrider.app import names, render
from outrider.app.command import Command
from outrider.app.config import FIELDS
from outrider.app.options import EngineOptions, engine_options, think_option

_EPILOG = """\b
Examples:
  outrider                                       the starter model, drafter chosen by measurement
  outrider --model ~/models/qwen.gguf --system "Answer in one sentence."
  outrider chat --drafter prompt_lookup --temperature 0.7
  outrider --continue                            go on with the last chat
  outrider --resume 4k2p9wxz                     go on with one from `outrider chats list`
  outrider --screen-reader                       plain lines from top to bottom, whole sentences

\b
First keys:
  enter sends · ctrl+j new line · esc stops the answer · ctrl+p every action · ctrl+o letters for them
  F1 help · F2 next drafter · F3 drafting on or off · F4 marks · ctrl+q quits"""


@click.command(cls=Command, epilog=_EPILOG)
@engine_options(warn=False)
@think_option
@click.option(
    "--continue", "-c", "last", is_flag=True, help="Go on with the chat last written in that no other window has open."
)
@click.option(
    "--resume",
    metavar="ID",
    shell_complete=names.complete_chat,
    help="Go on with this chat from `outrider chats list`, with a copy of it if another window has it open. "
    "`last` is the same as --continue.",
)
@click.option("--private", is_flag=True, help="Save nothing of this chat.")
@click.option(
    "--profile-ui", metavar="FILE", help="Write what each paint of the screen cost to FILE at the end, as JSON."
)
@click.option("--screen-reader/--no-screen-reader", default=None, help=FIELDS["look.screen_reader"].told)
def chat(
    options: EngineOptions,
    think: bool | None,
    last: bool,
    resume: str | None,
    private: bool,
    profile_ui: str | None,
    screen_reader: bool | None,
) -> None:
    """Chat in the terminal; `outrider` alone does the same.

    The first start brings the starter model (98 MB). Words that the drafter guessed and the model accepted are tinted.
    """
    plain = _in_lines(options, screen_reader)
    from outrider.app.chat import ChatOptions, run_chat
    from outrider.app.commands import _resume

    known, notice = _resume.find_chat(resume, last=last, private=private)
    if known is not None:
        options, think = _resume.resumed(options, think, known)
    chosen = ChatOptions(
        options.model,
        options.drafter,
        options.sampling,
        options.system,
        options.rule,
        think,
        resume=known.id if known else "",
        notice=notice,
        private=private,
        welcome=not (plain or private or known or notice) and _meets_nobody(options),
        profile_ui=profile_ui or "",
        asked=options.asked,
    )
    if plain:
        from outrider.app.linear import run_linear

        raise click.exceptions.Exit(run_linear(chosen))
    raise click.exceptions.Exit(run_chat(chosen))


def _meets_nobody(options: EngineOptions) -> bool:
    """Whether this is the very first start, and nobody has said which model it is to be."""
    from outrider.app.chat.first import is_first

    return options.settings.sources["engine.model"].kind == "default" and is_first()


def _in_lines(options: EngineOptions, typed: bool | None) -> bool:
    """Whether the chat comes in plain lines. Raises WrongUsage where it can come in no form."""
    from outrider.app.chat.terminal import shows_no_screen

    told = options.settings.get("look.screen_reader") if typed is None else typed
    reads, writes = render.is_terminal(sys.stdin), render.is_terminal(sys.stdout)
    if told or (told is None and reads and (not writes or shows_no_screen(os.environ))):
        return True
    if not (reads and writes):
        raise render.WrongUsage(
            "The chat needs a terminal, but input or output goes elsewhere.",
            'For one answer in a pipe: outrider run "Why is the sky blue?"',
        )
    return False
