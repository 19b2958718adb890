"""`outrider completion`: what makes a shell complete commands, options and values."""

from __future__ import annotations

import click

from outrider.app import render
from outrider.app.command import Command

_WHERE = {
    "bash": 'eval "$(outrider completion bash)"     in ~/.bashrc',
    "zsh": 'eval "$(outrider completion zsh)"      in ~/.zshrc, after compinit',
    "fish": "outrider completion fish > ~/.config/fish/completions/outrider.fish",
}
_EPILOG = "\b\nExamples:\n" + "\n".join(f"  {words}" for words in _WHERE.values())


@click.command(cls=Command, epilog=_EPILOG)
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options and values."""
    from click.shell_completion import get_completion_class

    from outrider.app.cli import COMPLETE, cli

    found = get_completion_class(shell)
    if found is None:
        raise render.Failure(f"The command-line library has no completion for {shell}.")
    maker = found(cli, {}, "outrider", COMPLETE)
    click.echo(maker.source_template % maker.source_vars(), nl=False)
