"""What `bench` and `verify` share: who drafts, and where results go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from outrider.app import render
from outrider.app.names import complete_category, complete_drafters
from outrider.app.options import EngineOptions
from outrider.core.base import protocol

if TYPE_CHECKING:
    from outrider.app.commands._engine import Session

PATIENCE = 60.0  # seconds that a pass over a long prompt may take, after which what is known by then is told


def _drafter_names(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Names between commas, of repeated options, or both. Raises WrongUsage for an empty one."""
    names = [name.strip().replace("-", "_") for value in values for name in value.split(",")]
    if not all(names):
        raise render.WrongUsage(f"{parameter.opts[0]} must not be empty.")
    return list(dict.fromkeys(names))


drafters_option = click.option(
    "--drafter",
    "--drafters",
    "-d",
    "names",
    multiple=True,
    metavar="D",
    callback=_drafter_names,
    shell_complete=complete_drafters,
    help="A drafter to compare: several with commas, or the option repeated.  [default: auto and all that fit]",
)
categories_option = click.option(
    "--categories",
    "--category",
    multiple=True,
    metavar="A,B",
    shell_complete=complete_category,
    help="Only prompts of these categories.  [default: all]",
)


async def riders(
    session: Session, options: EngineOptions, wanted: Sequence[str], *, free: bool = False
) -> list[protocol.DrafterChoice]:
    """The drafters that were asked for, else `auto` and all that can ride as they are, or of them those that need no weights.

    Weights that were given go to the methods that take them.
    """
    plain = protocol.DrafterChoice(name="none")
    load = protocol.Load(id=session.client.number(), model=options.model, drafter=plain)
    loaded = protocol.as_type(await session.ask(load), protocol.Loaded)
    rows, given = loaded.drafters, options.drafter.weights
    takers = set(wanted)
    if given and len(wanted) != 1:
        survey = protocol.Drafters(id=session.client.number(), model=options.model, weights=given, fetch=True)
        rows = protocol.as_type(await session.ask(survey), list[protocol.DrafterRow])
        takers = {"auto", "composite", *(row.name for row in rows if row.where == "given")}
    names = wanted or ["auto", *(row.name for row in rows if row.usable and (row.fit == "any" or not free))]
    return [
        msgspec.structs.replace(options.drafter, name=name, weights=given if name in takers else None)
        for name in dict.fromkeys(names)
        if name != plain.name
    ]


def words(*texts: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def check_writable(option: str, name: str | None) -> None:
    """Better now than after ten minutes of measuring. `name`: a file, or - for stdout. Raises WrongUsage."""
    path = Path(name or "-")
    if name not in (None, "-") and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise render.WrongUsage(f"--{option} {name} cannot be written.", "Name a file in a folder that exists.")


def write(name: str, data: bytes | str) -> None:
    """A file, whole or not at all."""
    path = Path(name)
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(data if isinstance(data, bytes) else data.encode())
    beside.replace(path)
