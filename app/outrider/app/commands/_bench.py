"""What `outrider bench` prints: the same tables for a terminal and as Markdown."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from outrider.app import render

PLAIN = "none"
_WIDTH = 80  # columns that notes are folded to
_DEPTHS = 8  # that have a column
_FEW = 3  # passes; fewer make no median
_SHOWN = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32, 48, 64)  # rows of a pass that have a line


class Section(NamedTuple):
    """One table with what is said above and below it. `right`: the columns with figures; without a head they are pairs."""

    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: Sequence[int] = ()
    note: str = ""


def as_text(data: dict[str, Any]) -> str:
    """Everything for a terminal or a pipe."""
    parts = [render.printable(head(data))]
    for section in sections(data):
        table = render.table(section.head, section.rows, section.right) if section.head else render.pairs(_two(section))
        parts.append("\n".join(filter(None, (section.title, table, textwrap.fill(section.note, _WIDTH)))))
    return render.printable("\n\n".join(parts))


def as_markdown(data: dict[str, Any]) -> str:
    """Everything as Markdown."""
    parts = [f"# {render.markdown_cell(head(data))}"]
    for section in sections(data):
        if section.head:
            rule = " | ".join("---:" if column in section.right else "---" for column in range(len(section.head)))
            rows = [f"| {' | '.join(map(render.markdown_cell, row))} |" for row in section.rows]
            table = "\n".join([f"| {' | '.join(section.head)} |", f"| {rule} |", *rows])
        else:
            table = "\n".join(
                f"- {render.markdown_cell(name)}: {render.markdown_cell(value)}" for name, value in _two(section)
            )
        parts += filter(None, (f"## {section.title}" if section.title else "", table, section.note))
    return "\n\n".join(parts) + "\n"


def head(data: dict[str, Any]) -> str:
    """What was measured on what."""
    prompts, repeats = len({run["prompt"] for run in data["runs"]}), data["settings"]["repeats"]
    device = f"{data['device']}, {_many(data['threads'], 'thread')}"
    times = f", {repeats} times" if repeats > 1 else ""
    parts = [data["model"], data["dtype"], device, _many(prompts, "prompt") + times]
    parts += ["exact"] if data["settings"]["load"].get("exact") else []
    parts += ["stopped before the end"] if data["stopped"] else []
    return " · ".join(parts)


def sections(data: dict[str, Any]) -> list[Section]:
    """All tables, in the order in which they are shown."""
    found = [_speeds(data)]
    if len(data["drafters"]) > 1:
        found += [_drafting(data), *_depths(data)]
    found += [_together(data["together"])] if data["together"] else []
    return [*found, _verify(data), _remarks(data)]


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def name_of(drafter: str) -> str:
    """As people call it."""
    return "plain" if drafter == PLAIN else drafter


# ------------------------------------------------------------------------------------------------ tables


def _speeds(data: dict[str, Any]) -> Section:
    groups = [*data["categories"].items()]
    if len(groups) > 1:
        groups.append(("total", data["total"]))
    noise = {(one["category"], one["drafter"]) for one in data["noise"].get("unexplained", ())}
    rows = [
        _speed(category if number == 0 else "", name, scores[name], noise=(group, name) in noise)
        for category, scores in groups
        for group in ["total" if len(groups) == 1 else category]
        for number, name in enumerate(data["drafters"])
    ]
    columns = ("CATEGORY", "DRAFTER", "TOK/S", "RATIO", "95 %", "WHOLE", "A PASS", "ACCEPTED")
    note = (
        "RATIO: tokens per second of decoding over those of the plain answers right before and after, and what it is between; "
        "WHOLE: the same with the prompts' own time. A PASS: tokens of one, the target's own counted, which ACCEPTED leaves out. "
        "noise: more than the tokens of a pass can make."
    )
    return Section("", columns, rows, range(2, 8), note)


def _speed(category: str, name: str, scores: dict[str, Any], *, noise: bool) -> tuple[str, ...]:
    drafted = name != PLAIN
    return (
        category,
        name_of(name),
        f"{scores['tokens_per_second']:.1f}",
        f"{scores['ratio']:.2f}×{' noise' if noise else ''}" if drafted else "",
        between(scores["interval"]),
        f"{scores['whole_ratio']:.2f}×" if drafted else "",
        f"{scores['tokens_per_pass']:.2f}",
        f"{scores['acceptance']:.0%}" if drafted else "",
    )


def between(interval: Sequence[float] | None) -> str:
    """An interval as people write it."""
    return f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else ""


def _drafting(data: dict[str, Any]) -> Section:
    rows = []
    for name, told in data["drafting"].items():
        share = told["rounds"] / told["passes"] if told["passes"] else 0.0
        length = f"{told['length']:.0f}" if told["fixed"] else f"~{told['length']:.1f}"
        cells = (f"{told['draft_ms']:.2f} ms", length, f"{told['rate']:.2f}", f"{told['cost']:.3f}")
        cells += (f"{told['verify_more']:+.0%}", f"{told['predicted']:.2f}×", f"{told['measured']:.2f}×")
        rows.append((name, f"{share:.0%}", *(cells if told["rounds"] else [""] * len(cells))))
    columns = ("DRAFTER", "DRAFTED", "A DRAFT", "K", "a", "c", "VERIFY", "PREDICTED", "MEASURED")
    note = (
        "DRAFTED: passes with a draft, which the columns behind it are about. K: tokens of a draft, with ~ the mean of "
        "varying lengths; a: share of right ones among those before which all were right; c: a draft token's cost in plain "
        "passes; VERIFY: what a pass with a draft takes more. PREDICTED: (1-a^(K+1))/((1-a)(cK+1)), which does not "
        "know of VERIFY."
    )
    return Section("What drafting costs and brings", columns, rows, range(1, 9), note)


def _depths(data: dict[str, Any]) -> Iterator[Section]:
    told = {name: one for name, one in data["drafting"].items() if one["depths"]}
    deepest = min(_DEPTHS, max((len(one["depths"]) for one in told.values()), default=0))
    if deepest:
        rows = [(name, *(_depth(one, depth) for depth in range(deepest))) for name, one in told.items()]
        columns = ("DRAFTER", *(str(depth + 1) for depth in range(deepest)))
        note = "Of the drafts that were right up to a depth, the share that was right there; in brackets where fewer than 20."
        yield Section("Accepted by depth", columns, rows, range(1, deepest + 1), note)


def _depth(told: dict[str, Any], depth: int) -> str:
    if depth >= len(told["depths"]):
        return ""
    share = f"{told['depths'][depth]:.0%}"
    return share if told["reached"][depth] >= 20 else f"({share})"


def _together(told: list[dict[str, Any]]) -> Section:
    rows = []
    for row in told:
        figures = (f"{row['tokens_per_second']:.1f}", str(row["tokens"]), render.size(row["states"]))
        rows.append(
            (str(row["count"]), name_of(row["drafter"]), *(("", "", row["problem"]) if row["problem"] else figures))
        )
    note = "TOK/S: of all together, the prompts' own time counted."
    return Section("Answers at once", ("ANSWERS", "DRAFTER", "TOK/S", "TOKENS", "STATES"), rows, (0, 2, 3), note)


def _verify(data: dict[str, Any]) -> Section:
    alone = data["verify"]["alone"]
    measured = {rows: seen for rows, seen in data["verify"]["measured"].items() if seen["passes"] >= _FEW}
    rows = []
    for number in sorted({int(key) for key in (*alone, *measured)} & set(_SHOWN)):
        bare, seen = alone.get(str(number)), measured.get(str(number))
        cells = (f"{bare['ms']:.2f}", f"{bare['ms'] / alone['1']['ms']:.2f}×") if bare else ("", "")
        cells += (f"{seen['ms']:.2f}", str(seen["passes"])) if seen else ("", "")
        rows.append((str(number), *cells))
    note = "Milliseconds of a pass that verifies so many rows: by itself, and in the answers above (the median)."
    return Section("What a pass costs", ("ROWS", "ALONE", "OF ONE", "IN ANSWERS", "PASSES"), rows, range(5), note)


# ------------------------------------------------------------------------------------------------ remarks


def _remarks(data: dict[str, Any]) -> Section:
    first = (f"{name_of(name)} {scores['first_s'] * 1e3:.0f} ms" for name, scores in data["total"].items())
    rows = [("memory", _memory(data["memory"])), ("first token after", ", ".join(first))]
    for name, worst in data["worst"].items():
        if worst:
            rows.append((f"worst, {name}", f"{worst['ratio']:.2f}× on {worst['prompt']} ({worst['category']})"))
    rows += _differences(data)
    total = data["total"][PLAIN]
    answers = f"of {_answers(data)} plain answers"
    rows.append(("cut at the limit", f"{total['limited']} {answers}"))
    if total["looping"]:
        rows.append(("run in circles", f"{total['looping']} {answers}, which flatters every drafter"))
    rows.append(("plain passes", _steady(data["noise"])))
    rows += [("careful", words) for words in data["noise"]["words"]]
    return Section("", (), rows)


def _answers(data: dict[str, Any]) -> int:
    return len({(run["prompt"], run["turn"]) for run in data["runs"]})


def _memory(memory: dict[str, Any]) -> str:
    peak = f"{render.size(memory['peak'])} at most, " if memory["peak"] else ""
    parts = [f"{peak}{render.size(memory['weights'])} of weights, {render.size(memory['states'])} of states"]
    parts += [f"{name} {render.size(nbytes)}" for name, nbytes in memory["drafters"].items() if nbytes]
    return ", ".join(parts)


def _differences(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Which answers are not the plain ones, and how the first of each drafter begins to differ."""
    runs = [run for run in data["runs"] if run["drafter"] != PLAIN]
    counts = Counter(run["drafter"] for run in runs)
    rows = []
    for name in data["drafters"][1:]:
        differ = [run for run in runs if run["drafter"] == name and not run["same_text"]]
        if differ:
            rows.append((f"differ, {name}", f"{len(differ)} of {counts[name]} answers; {_first(differ[0])}"))
    return rows or [("differ", f"none of {len(runs)} drafted answers from the plain one")]


def _first(run: dict[str, Any]) -> str:
    told = run["difference"]
    if told is None:
        return f"first {run['prompt']}, in tokens that make the same text"
    plain, drafted = (" ".join(text.split()) for text in (told["plain"], told["drafted"]))
    return f"first {run['prompt']} at character {told['character']}: plain “…{plain}…”, drafted “…{drafted}…”"


def _steady(noise: dict[str, Any]) -> str:
    text = f"most between {noise['low_ms']:.1f} and {noise['high_ms']:.1f} ms"
    if noise["load_before"] is None or noise["load_after"] is None:
        return text
    return f"{text}; load average {noise['load_before']:.1f} before, {noise['load_after']:.1f} after"


def _two(section: Section) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in section.rows]
