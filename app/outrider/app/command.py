"""Commands that refuse an option given twice where only one value can hold."""

from __future__ import annotations

import click

from outrider.app.render import WrongUsage


class Command(click.Command):
    """A command of Outrider. Raises WrongUsage for a second `--seed`, and for `--think` beside `--no-think`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does it, then look at what was given how often."""
        rest = super().parse_args(ctx, list(args))  # `--help` ends here
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for parameter in self.params:
                if isinstance(parameter, click.Option) and _single(parameter) and order.count(parameter) > 1:
                    names = " or ".join(name for name in (*parameter.opts, *parameter.secondary_opts) if name[1] == "-")
                    raise WrongUsage(f"{names} is given more than once.", "Give it once: only one value can hold.")
        return rest


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def _single(option: click.Option) -> bool:
    """Whether a second use of the option would overrule the first one."""
    repeats = option.multiple or option.count
    return not repeats and (not option.is_flag or bool(option.secondary_opts))
