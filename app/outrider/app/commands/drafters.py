"""`outrider drafters`: which drafters there are and how each fits a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from outrider.app import render
from outrider.core import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

_EPILOG = """\b
Examples:
  outrider drafters list
  outrider drafters list --model ~/models/qwen.gguf --json"""

_FITS = {
    "exact": "made for it",
    "family": "same family",
    "any": "any model",
    "no": "does not fit",
    "broken": "broken",
}


@click.group(epilog=_EPILOG)
def drafters() -> None:
    """Drafters, the methods that guess ahead: list."""


@drafters.command("list", epilog=_EPILOG)
@click.option(
    "--model", "-m", default="starter", show_default=True, metavar="M", help="The model that they should fit."
)
@click.option("--drafter-weights", metavar="PATH|HUB_ID", help="Weights to judge them with, e.g. a small model.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_drafters(model: str, drafter_weights: str | None, as_json: bool) -> None:
    """List the drafters, how each fits the model, what it costs in memory, and where it comes from."""
    from outrider.app.commands import _engine

    async def work(session: Session) -> Any:
        choice = protocol.ModelChoice(model=model)
        return await session.ask(protocol.Drafters(id=session.client.number(), model=choice, weights=drafter_weights))

    rows: list[protocol.DrafterRow] = protocol.as_type(_engine.with_engine(work), list[protocol.DrafterRow])
    if as_json:
        render.echo_json([{name: getattr(row, name) for name in row.__struct_fields__} for row in rows])
        return
    lines = [
        (
            row.name,
            _FITS[row.fit],
            "yes" if row.usable else "no",
            render.size(row.nbytes) if row.nbytes else "none",
            f"{row.distribution} {row.version}".strip(),
            row.reason,
        )
        for row in rows
    ]
    click.echo(render.table(("NAME", "FIT", "USABLE", "MEMORY", "FROM", "WHY"), lines, right=(3,)))
