"""What `outrider drafters` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.app import render
from outrider.core.base.protocol import DrafterRow, KnownDrafter

FITS = {
    "exact": "made for it",
    "family": "same family",
    "any": "any model",
    "no": "does not fit",
    "broken": "broken",
}
_WHERE = {
    "": "needs none",
    "given": "as given",
    "checkpoint": "in the model",
    "trained": "trained here",
    "beside": "beside it",
    "shipped": "with Outrider",
    "library": "in the library",
    "catalogue": "published",
    "train": "none known",
}

_HEAD = ("NAME", "FIT", "USABLE", "MEMORY", "WEIGHTS")


def table(rows: Sequence[DrafterRow], width: int | None = None) -> str:
    """One line for each drafter; within `width` columns the reasons go below, if they do not fit beside."""
    reasons = [render.printable(_why(row)).replace("\n", " ") for row in rows]
    text = render.table((*_HEAD, "WHY"), [(*cells(row), _why(row)) for row in rows], right=(3,))
    if width is None or max(render.cells(line) for line in text.split("\n")) <= width:
        return text
    head, *lines = render.table(_HEAD, map(cells, rows), right=(3,)).split("\n")
    folded = [
        textwrap.fill(reason, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        for reason in reasons
    ]
    return "\n".join([head, *(f"{line}\n{reason}" for line, reason in zip(lines, folded, strict=True))])


def _why(row: DrafterRow) -> str:
    """The method's own words, and what was measured."""
    return f"{row.reason}; measured here: {row.choice}" if row.choice else row.reason


def cells(row: DrafterRow) -> tuple[str, ...]:
    """A line of the list: name, fit, usable, memory, weights."""
    size = render.size(row.nbytes) if row.nbytes else "none" if row.usable else ""
    return row.name, FITS[row.fit], "yes" if row.usable else "no", size, _where(row)


def published(rows: Sequence[DrafterRow]) -> str:
    """What was published for the model, by method, with what makes use of it."""
    text = ["Published for this model; --drafter METHOD --drafter-weights REPOSITORY brings and uses one:"]
    known = [one for row in rows for one in row.known if one.repo]
    lines = [(one.method, one.repo, _size(one), _tail(one)) for one in known]
    return "\n".join([*text, render.table(("METHOD", "REPOSITORY", "SIZE", ""), lines, right=(2,))])


def shown(row: DrafterRow, model: str) -> str:
    """One drafter with everything that is known of it."""
    facts = [
        ("name", row.name),
        ("fit", f"{FITS[row.fit]}: {row.reason}"),
        ("usable", "yes" if row.usable else "no"),
        ("memory", render.size(row.nbytes) if row.nbytes else "none" if row.usable else "not known"),
        ("weights", _where(row) + (f": {row.weights}" if row.weights else "")),
        ("from", f"{row.distribution} {row.version}".strip()),
        ("probabilities", "honoured" if row.trusted else "not honoured: from outside"),
    ]
    if row.choice:
        facts.append(("measured here", row.choice))
    parts = [render.pairs(facts)]
    if row.options:
        parts.append("Options, each as --drafter-option NAME=VALUE:\n" + render.pairs(list(row.options.items())))
    if any(one.repo for one in row.known):
        parts.append(published([row]))
    if use := _use(row, model):
        parts.append(f"To use it:\n  {render.printable(use)}")
    return "\n\n".join(parts)


def tested(data: dict[str, Any]) -> str:
    """The figures of a test, for each reading of the files, and which of them to take."""
    trials = data["trials"]
    if len(trials) == 1:
        return "\n\n".join((_head(data), _trial(trials[0])))
    parts = [f"With {_reading(trial)}\n{_trial(trial)}" for trial in trials]
    return "\n\n".join((_head(data), *parts, _choice(trials, data["best"])))


def checks(data: dict[str, Any]) -> str:
    """One line for each check of the contract."""
    width = max(len(check["name"]) for check in data["checks"])
    lines = [
        f"{check['name'].replace('_', ' '):{width}}  {check['verdict']:7}  {render.printable(check['text'])}"
        for check in data["checks"]
    ]
    return "\n".join([_head(data), "", *lines])


def _trial(trial: dict[str, Any]) -> str:
    depths = list(zip(trial["depths"], trial["reached"], strict=True))
    rows = [(str(depth), f"{share:.0%}", str(reached)) for depth, (share, reached) in enumerate(depths, 1)]
    accepted = f"{trial['mean_accepted']:.2f} ± {trial['error']:.2f} draft tokens a round"
    share = f", {trial['accepted']} of {trial['proposed']} proposed" if trial["proposed"] else ""
    facts = [
        ("accepted", accepted + share),
        ("tokens per pass", f"{trial['tokens_per_pass']:.2f}, {trial['tokens']} tokens in {trial['passes']} passes"),
        ("drafting", f"{trial['draft_ms']:.1f} ms a round"),
        ("verifying", f"{trial['verify_ms']:.1f} ms a round, a plain pass takes {trial['plain_ms']:.1f} ms"),
        ("same text", f"{trial['same_text']} of {trial['answers']} answers, as plain decoding"),
    ]
    by_depth = render.table(("DEPTH", "ACCEPTED", "DRAFTS"), rows, right=(0, 1, 2))
    return render.pairs(facts) + ("\n\n" + by_depth if rows else "")


def _head(data: dict[str, Any]) -> str:
    weights = f" ({Path(data['weights']).name})" if data["weights"] else ""
    return render.printable(f"{data['drafter']}{weights} on {data['model']} · {data['dtype']} · {data['device']}")


def _reading(trial: dict[str, Any]) -> str:
    """The options that choose a reading."""
    told = (
        (name, str(value).lower() if isinstance(value, bool) else value) for name, value in trial["reading"].items()
    )
    return render.printable(" ".join(f"--drafter-option {name}={value}" for name, value in told))


def _choice(trials: list[dict[str, Any]], best: int) -> str:
    """Which reading to take, and how."""
    others = [trial for number, trial in enumerate(trials) if number != best]
    chosen, second = trials[best], max(others, key=lambda trial: trial["mean_accepted"])
    one, two = (f"{trial['mean_accepted']:.2f} ± {trial['error']:.2f}" for trial in (chosen, second))
    by = f"{one} draft tokens a round against {two}"
    if best:
        text = (
            f"Not the usual reading, the first, but another gets most accepted, {by}. To use it, add to every command"
        )
    elif chosen["mean_accepted"] > second["mean_accepted"]:
        text = f"The usual reading, the first, gets most accepted, {by}. It is taken anyway; to pin it, add"
    else:
        text = f"The usual reading, the first, is as good as any within the error, {by}. It is taken anyway; to pin it, add"
    return f"These files can be read in {len(trials)} ways. {text}:\n  {_reading(chosen)}"


def _where(row: DrafterRow) -> str:
    return _WHERE[row.where] if row.fit in ("exact", "family", "any") or row.where == "given" else ""


def _use(row: DrafterRow, model: str) -> str:
    """The command line that drafts with it; with a published one that is here, if there is one."""
    start = f"outrider --model {model} --drafter {row.name}"
    if row.usable:
        return start + (f" --drafter-weights {row.weights}" if row.where == "given" else "")
    known = sorted((one for one in row.known if one.repo), key=lambda one: one.path is None)
    return f"{start} --drafter-weights {known[0].repo}" if known else ""


def _size(one: KnownDrafter) -> str:
    if one.path:
        return "here"
    return ("~" if one.about else "") + render.size(one.nbytes) if one.nbytes else ""


def _tail(one: KnownDrafter) -> str:
    return ", ".join(text for text in (one.license, one.note) if text)
