"""The picture of a race: tokens over seconds, a line for each lane, with its figures and what is said of the texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from outrider.app import plot
from outrider.app.chat.compare import verdict
from outrider.app.chat.compare.race import Lane, Race
from outrider.app.chat.compare.replay import Track
from outrider.app.chat.meter import mean_per_pass, speed

_WIDTH, _LEFT, _RIGHT, _TOP, _HEIGHT = 760, 56, 24, 78, 260
_ROW, _COLUMNS = 20, 118
_TICKS = 8  # at most on an axis
_SHAPE = ".way{fill:none;stroke-width:2.5px;stroke-linejoin:round}"


def svg(race: Race) -> str:
    """The whole picture."""
    tracks = [Track(lane) for lane in race.run]
    seconds = max((track.end for track in tracks), default=0.0) or 1.0
    most = max((track.counts[-1] for track in tracks), default=0) or 1
    body = [plot.text(16, 28, f"Race: {race.prompt}", "title"), plot.text(16, 50, race.head(), "quiet")]
    body += _axes(seconds, most)
    for number, track in enumerate(tracks):
        points = " ".join(f"{_x(t, seconds):.1f},{_y(count, most):.1f}" for t, count in _corners(track))
        body.append(f'<polyline class="way s{number % len(plot.LIGHT)}" points="{points}"/>')
    y = _TOP + _HEIGHT + 48
    for number, lane in enumerate(race.run):
        body.append(
            f'<rect class="c{number % len(plot.LIGHT)}" x="{_LEFT}" y="{y - 10}" width="12" height="12" rx="2"/>'
        )
        body.append(plot.text(_LEFT + 20, y, lane.label, "group"))
        body.append(plot.text(_LEFT + 190, y, _figures(race, lane), "quiet"))
        y += _ROW
    for sentence in verdict.sentences(race):
        for line in textwrap.wrap(sentence, _COLUMNS):
            body.append(plot.text(_LEFT, y + 6, line, "quiet"))
            y += _ROW
    return plot.page((_WIDTH, y + 16), f"Race: {race.prompt}", race.head(), _SHAPE, body)


def _corners(track: Track) -> Iterator[tuple[float, int]]:
    """The steps of a lane's way."""
    for place, moment in enumerate(track.times):
        yield moment, track.counts[place]
        yield moment, track.counts[place + 1]


def _figures(race: Race, lane: Lane) -> str:
    report = lane.report
    assert report is not None
    ratio, mean = verdict.speedup(race, lane), mean_per_pass(report)
    parts = [speed(report.tokens_per_second)]
    parts += [f"{ratio:.2f}× plain"] if ratio is not None else []
    parts += [f"{mean:.2f} tokens/pass"] if mean else []
    parts += [f"{100 * report.accepted / report.proposed:.0f}% accepted"] if report.proposed else []
    parts.append(f"{len(report.token_ids)} tokens in {lane.steps[-1].t:.1f} s")
    return " · ".join(parts)


def _x(moment: float, seconds: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * moment / seconds


def _y(count: float, most: int) -> float:
    return _TOP + _HEIGHT * (1 - count / most)


def _axes(seconds: float, most: int) -> Iterator[str]:
    bottom = _TOP + _HEIGHT
    for value in _ticks(seconds):
        x = _x(value, seconds)
        yield f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
        yield plot.text(x, bottom + 18, f"{value:g} s", "quiet", "middle")
    for value in _ticks(most):
        y = _y(value, most)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
        yield plot.text(_LEFT - 8, y + 4, f"{value:g}", "quiet", "end")
    yield plot.text(_LEFT, _TOP - 8, "tokens", "quiet", "end")


def _ticks(most: float) -> list[float]:
    """Round values from 0 to `most`, eight at most."""
    step = 0.01
    while most / step > _TICKS:
        step *= 2 if f"{step:e}"[0] in "15" else 2.5
    return [round(step * number, 6) for number in range(int(most / step) + 1)]
