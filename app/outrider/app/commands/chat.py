"""`outrider chat`, which is also what `outrider` alone does."""

from __future__ import annotations

import sys

import click

from outrider.app import render
from outrider.app.options import EngineOptions, engine_options, think_option

_EPILOG = """\b
Examples:
  outrider                                       the starter model, drafter chosen by measurement
  outrider --model ~/models/qwen.gguf --system "Answer in one sentence."
  outrider chat --drafter prompt_lookup --temperature 0.7
  outrider --continue                            go on with the last chat
  outrider --resume 4k2p9wxz                     go on with one from `outrider chats list`

\b
First keys:
  enter sends · ctrl+j new line · esc stops the answer · ctrl+p every action · ctrl+o letters for them
  F1 help · F2 next drafter · F3 drafting on or off · F4 marks · ctrl+q quits"""


@click.command(epilog=_EPILOG)
@engine_options(warn=False)
@think_option
@click.option("--continue", "-c", "last", is_flag=True, help="Go on with the chat that was last written in.")
@click.option("--resume", metavar="ID", help="Go on with this chat from `outrider chats list`; `last` is the newest.")
@click.option("--private", is_flag=True, help="Save nothing of this chat.")
def chat(options: EngineOptions, think: bool | None, last: bool, resume: str | None, private: bool) -> None:
    """Chat in the terminal; `outrider` alone does the same.

    The first start brings the starter model (98 MB). Words that the drafter guessed and the model accepted are tinted.
    """
    if not (render.is_terminal(sys.stdin) and render.is_terminal(sys.stdout)):
        raise render.WrongUsage(
            "The chat needs a terminal, but input or output goes elsewhere.",
            'For one answer in a pipe: outrider run "Why is the sky blue?"',
        )
    from outrider.app.chat import ChatOptions, run_chat
    from outrider.app.commands import _resume

    known = _resume.find_chat(resume, last=last, private=private)
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
        private=private,
        asked=options.asked,
    )
    raise click.exceptions.Exit(run_chat(chosen))
