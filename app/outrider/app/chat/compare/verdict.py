"""What a race comes to: a table of figures by lane, what is said of the texts, and both as Markdown. Plain data and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.app import render
from outrider.app.chat.compare.race import Lane, Race
from outrider.app.chat.meter import mean_per_pass
from outrider.app.chat.stats.tally import Tally
from outrider.app.chat.terms import label
from outrider.core.base.protocol import Report, Step

FEW = 20  # passes below which an acceptance is in brackets
DEPTHS = 6  # that are shown


def depths(steps: Sequence[Step]) -> list[tuple[float, int]]:
    """By depth from 1: the share of tokens that was accepted there, and of how many passes that reached it."""
    tally = Tally()
    for step in steps:
        tally.take(step)
    return tally.depths


def speedup(race: Race, lane: Lane) -> float | None:
    """Tokens per second over those of the plain lane; None without one, and for it."""
    plain = race.plain
    if plain is None or plain is lane or plain.report is None or lane.report is None:
        return None
    base = plain.report.tokens_per_second
    return lane.report.tokens_per_second / base if base > 0 else None


def rows(race: Race) -> list[tuple[str, ...]]:
    """The table: a label and one cell for each lane of `race.lanes`."""
    lanes = race.lanes
    made = [
        ("tokens", *(_of(lane, lambda report: str(len(report.token_ids))) for lane in lanes)),
        (label("tok_s"), *(_of(lane, lambda report: f"{report.tokens_per_second:.1f}") for lane in lanes)),
        (label("speedup"), *(_times(race, lane) for lane in lanes)),
        (label("tokens_per_pass"), *(_of(lane, _per_pass) for lane in lanes)),
        (label("accepted"), *(_of(lane, _accepted) for lane in lanes)),
        *_depth_rows(lanes),
        (f"{label('first_token')} ms", *(_of(lane, _first) for lane in lanes)),
        ("all of it s", *(_of(lane, _whole) for lane in lanes)),
        ("ran", *(f"{_nth(lane.turn)}" for lane in lanes)),
    ]
    return [row for row in made if any(row[1:])]


def _of(lane: Lane, cell: Callable[[Report], str]) -> str:
    return cell(lane.report) if lane.report is not None else ""


def _per_pass(report: Report) -> str:
    mean = mean_per_pass(report)
    return f"{mean:.2f}" if mean else ""


def _accepted(report: Report) -> str:
    return f"{100 * report.accepted / report.proposed:.0f}%" if report.proposed else ""


def _first(report: Report) -> str:
    return f"{1000 * report.timing.first_token_s:.0f}"


def _whole(report: Report) -> str:
    return f"{report.timing.first_token_s + report.timing.decode_s:.1f}"


def _times(race: Race, lane: Lane) -> str:
    if lane.arm.plain:
        return "1.00×" if lane.report else ""
    ratio = speedup(race, lane)
    if ratio is not None:
        return f"{ratio:.2f}×"
    told = lane.report.speedup if lane.report else None
    return f"≈{told.value:.2f}× ±{told.error:.2f}" if told is not None else ""


def _depth_rows(lanes: Sequence[Lane]) -> list[tuple[str, ...]]:
    told = [depths(lane.steps) for lane in lanes]
    deepest = min(DEPTHS, max(map(len, told), default=0))
    return [
        (f"  depth {depth + 1}", *(_share(*one[depth]) if depth < len(one) else "" for one in told))
        for depth in range(deepest)
    ]


def _share(share: float, passes: int) -> str:
    text = f"{100 * share:.0f}%"
    return text if passes >= FEW else f"({text})"


def _nth(turn: int) -> str:
    return ("first", "second", "third")[turn] if turn < 3 else f"{turn + 1}th"


def sentences(race: Race) -> list[str]:
    """Whether the texts are the same, where they part, and what went wrong."""
    found = [f"{lane.label}: {said}" for lane in race.lanes for said in (lane.problem, *lane.notes) if said]
    reference = race.reference
    others = [lane for lane in race.run if lane is not reference]
    if reference is None or not others:
        return found
    parted = {parting.other: parting for parting in race.partings}
    same = [lane.label for lane in others if lane.label not in parted]
    if same:
        count = len(reference.report.token_ids) if reference.report else 0
        found.insert(0, f"Identical text: {', '.join([reference.label, *same])} ({count} tokens).")
    promise = _promise(race)
    if parted and promise:
        found.append(promise)
    return [*found, *(parting.words() for parting in race.partings)]


def _promise(race: Race) -> str:
    if race.rule == "typical":
        return "The rule `typical` is lossy: texts differ by design."
    if race.rule == "rejection" and race.sampling.temperature != 0:
        return "The rule `rejection` keeps the law of sampled text, not the text itself: it may differ by design."
    return ""


def head_row(race: Race) -> tuple[str, ...]:
    """The table's heading."""
    return ("", *(lane.label for lane in race.lanes))


def table(race: Race) -> str:
    """The table as text, its columns aligned."""
    return render.table(head_row(race), rows(race), range(1, 1 + len(race.lanes)))


def text(race: Race) -> str:
    """Sentences and table for a terminal or a pipe."""
    return render.printable("\n".join([race.head(), "", *sentences(race), "", table(race), ""]))


def markdown(race: Race) -> str:
    """Heading, table and sentences, to be pasted."""
    head = head_row(race)
    lines = [
        f"**{render.markdown_cell(race.head())}**",
        "",
        f"| {' | '.join(map(render.markdown_cell, head))} |",
        f"| --- |{' ---: |' * (len(head) - 1)}",
        *(f"| {' | '.join(render.markdown_cell(cell.strip()) for cell in row)} |" for row in rows(race)),
    ]
    told = sentences(race)
    return "\n".join([*lines, "", *(f"- {render.markdown_cell(one)}" for one in told)] if told else lines) + "\n"
