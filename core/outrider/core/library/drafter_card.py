"""Drafters that were trained: where they are kept, and the card that says for which model and how good.

Loads no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec

from outrider.core.base import paths

FILE = "outrider.json"
README = "README.md"
_EDGE = 1 << 20  # bytes of the beginning and of the end of a file that are looked at


class Near(msgspec.Struct):
    """Acceptance where so many tokens, and more than half of that, had been read before."""

    context: int
    rounds: int
    tokens_per_pass: float


class Measured(msgspec.Struct, omit_defaults=True):
    """Acceptance on texts that were not trained on."""

    texts: int
    tokens_per_pass: float
    by_depth: list[float]
    by_context: list[Near] = []


class Card(msgspec.Struct, kw_only=True):
    """What there is to know of a drafter."""

    method: str
    model: str  # its title
    target: str  # fingerprint of its weights
    data: str  # in words
    texts: int
    tokens: int  # that it learnt from
    steps: int
    parameters: int
    seed: int
    hours: float
    command: str
    outrider: str  # version
    day: str
    settings: dict[str, object] = {}  # of the method
    measured: Measured | None = None


def fingerprint(path: Path) -> str:
    """Of a model: names, sizes, and the first and last megabyte of each file."""
    digest = hashlib.sha256()
    found = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    for one in found:
        size = one.stat().st_size
        digest.update(f"{one.name} {size}\n".encode())
        with one.open("rb") as file:
            digest.update(file.read(_EDGE))
            file.seek(max(0, size - _EDGE))
            digest.update(file.read(_EDGE))
    return digest.hexdigest()[:32]


def title(path: Path) -> str:
    """The name of a model's file or folder, without an owner."""
    return (path.name if path.is_dir() else path.stem).rpartition("--")[2]


def read(folder: Path) -> Card | None:
    """The card of a drafter, None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Card)
    except (OSError, msgspec.DecodeError):
        return None


def write(folder: Path, card: Card) -> None:
    """Put the card to a drafter, for programs and for people."""
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")
    (folder / README).write_text(_told(card), encoding="utf-8")


def place(model: Path, method: str, target: str) -> Path:
    """The folder of the drafter of a method for a model, there or not."""
    number = 1
    while True:
        end = "" if number == 1 else f"-{number}"
        folder = paths.drafters_dir() / f"{title(model)}-{method}{end}"
        card = read(folder)
        if not folder.exists() or (card is not None and (card.target, card.method) == (target, method)):
            return folder
        number += 1


def own(model: Path) -> Iterator[Path]:
    """Drafters that were trained here for the model at `model`."""
    target = None
    for folder in _named(paths.drafters_dir(), model):
        card = read(folder)
        if card is not None:
            target = target or fingerprint(model)
            if card.target == target:
                yield folder


def shipped(model: Path) -> Iterator[Path]:
    """Drafters that came with Outrider."""
    yield from _named(Path(str(files("outrider.assets") / "drafters")), model)


def _named(around: Path, model: Path) -> list[Path]:
    start = f"{title(model)}-".casefold()
    try:
        return sorted(one for one in around.iterdir() if one.is_dir() and one.name.casefold().startswith(start))
    except OSError:
        return []


def _told(card: Card) -> str:
    lines = [
        "---",
        f"base_model: {card.model}",
        "tags: [speculative-decoding, outrider]",
        "---",
        "",
        f"# {card.model}: {card.method}",
        "",
        f"A drafter for {card.model}, trained by Outrider {card.outrider} on {card.day}. It drafts; the model decides.",
        "",
        "| | |",
        "|---|---|",
        f"| method | `{card.method}` |",
        f"| weights | {card.parameters:,} |",
        f"| learnt from | {card.data}: {card.texts:,} texts, {card.tokens:,} tokens |",
        f"| steps | {card.steps:,} in {card.hours:.1f} hours, seed {card.seed} |",
        f"| command | `{card.command}` |",
        f"| model's fingerprint | `{card.target}` |",
    ]
    if card.measured is not None:
        shares = ", ".join(f"{share:.0%}" for share in card.measured.by_depth)
        lines.append(
            f"| held-out acceptance | {card.measured.tokens_per_pass:.2f} tokens a pass on {card.measured.texts} texts "
            f"at temperature 0 |"
        )
        lines.append(f"| right at depth 1, 2, … | {shares} |")
    return "\n".join([*lines, ""])
