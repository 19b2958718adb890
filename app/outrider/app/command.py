"""Commands that refuse an option given twice where only one value can hold."""

from __future__ import annotations

import re

import click

from outrider.app.render import WrongUsage


class Command(click.Command):
    """A command of Outrider. Raises WrongUsage for a second `--seed`, and for `--think` beside `--no-think`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, then look at what was given how often."""
        try:
            rest = super().parse_args(ctx, list(args))  # `--help` ends here
        except click.UsageError as error:
            raise _misplaced(ctx, error) from None
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter in self.params:
                if isinstance(parameter, click.Option) and _single(parameter) and order.count(parameter) > 1:
                    names = " or ".join(name for name in (*parameter.opts, *parameter.secondary_opts) if name[1] == "-")
                    raise WrongUsage(f"{names} is given more than once.", "Give it once: only one value can hold.")
        return rest


class Group(click.Group):
    """A group of such commands. Its list wraps the first sentence of each one's help where click would cut it."""

    command_class = Command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(self.commands[name])) for name in self.list_commands(ctx)])


def summary(command: click.Command) -> str:
    """The first sentence of a command's help."""
    return command.get_short_help_str(limit=1000)


def _misplaced(ctx: click.Context, error: click.UsageError) -> click.UsageError:
    """The error, or a better one where a command comes behind options: all of them were taken for those of `chat`."""
    found = re.match(r"Got unexpected extra arguments? \((\S+)", error.message)
    others = (
        ctx.parent.command.list_commands(ctx.parent)
        if ctx.parent and isinstance(ctx.parent.command, click.Group)
        else []
    )
    if not found or found[1].rstrip(")") not in others:
        return error
    name = found[1].rstrip(")")
    return WrongUsage(
        f"The command {name} comes after options.", f"Put the options behind it: outrider {name} --model …"
    )


def _single(option: click.Option) -> bool:
    """Whether a second use of the option would overrule the first one."""
    repeats = option.multiple or option.count
    return not repeats and (not option.is_flag or bool(option.secondary_opts))
