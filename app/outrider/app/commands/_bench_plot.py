"""The picture of a benchmark: a bar for each drafter in each category, with its interval, as one SVG without any script."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from outrider.app import plot
from outrider.app.commands import _bench

_WIDTH, _LEFT, _RIGHT = 760, 150, 120  # names stand left of the bars, figures right
_ROW, _BAR, _GAP, _TOP = 22, 14, 34, 78
_MOST = 12.0  # the longest bar's ratio; one beyond it is cut and its figure tells
_STEPS = (0.25, 0.5, 1.0, 2.0)

_SHAPE = ".one{stroke-dasharray:4 3}.edge,.range{fill:none}.edge{stroke-width:4px}.range{stroke-width:1.5px}"


def svg(data: dict[str, Any]) -> str:
    """Ratios to plain decoding by category. Raises nothing for a run without drafters: the picture says so."""
    groups = [*data["categories"].items()]
    if len(groups) > 1:
        groups.append(("total", data["total"]))
    names = [name for name in data["drafters"] if name != _bench.PLAIN]
    scale = _Scale([scores[name] for _, scores in groups for name in names])
    bottom = _TOP + len(groups) * (_GAP + len(names) * _ROW)
    body = [*_title(data), *_axis(scale, bottom)]
    for number, (category, scores) in enumerate(groups):
        top = _TOP + number * (_GAP + len(names) * _ROW)
        body.append(plot.text(_LEFT, top + 20, category, "group"))
        for row, name in enumerate(names):
            body += _bar(scale, top + _GAP - 4 + row * _ROW, name, scores[name], row % len(plot.LIGHT))
    if not names:
        body.append(plot.text(_LEFT, _TOP + 20, "No drafter was measured.", "group"))
    height = bottom + 44
    title = "Tokens per second against plain decoding"
    return plot.page((_WIDTH, height), title, _bench.head(data), _SHAPE, body)


class _Scale:
    """From ratios to places on the page."""

    def __init__(self, scores: list[dict[str, Any]]) -> None:
        highest = max((max(one["ratio"], *(one["interval"] or (0,))) for one in scores), default=1.0)
        self.step = next((step for step in _STEPS if highest / step <= 8), _STEPS[-1])
        self.most = min(_MOST, max(self.step * math.ceil(highest / self.step), 1.0 + self.step))

    def at(self, ratio: float) -> float:
        """The place of a ratio, from the left."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(ratio, self.most) / self.most

    def ticks(self) -> list[float]:
        """Ratios that have a line."""
        return [self.step * number for number in range(round(self.most / self.step) + 1)]


def _title(data: dict[str, Any]) -> Iterator[str]:
    yield plot.text(16, 28, "Tokens per second against plain decoding", "title")
    yield plot.text(16, 50, _bench.head(data), "quiet")


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    for ratio in scale.ticks():
        x = scale.at(ratio)
        kind = "one" if ratio == 1 else "grid"
        yield f'<line class="{kind}" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom + 8}"/>'
        yield plot.text(x, bottom + 26, f"{ratio:g}×", "quiet", "middle")


def _bar(scale: _Scale, top: int, name: str, scores: dict[str, Any], colour: int) -> Iterator[str]:
    ratio, interval, middle = scores["ratio"], scores["interval"], top + _BAR / 2
    width = scale.at(ratio) - scale.at(0)
    yield plot.text(_LEFT - 8, middle + 4, name, "name", "end")
    yield f'<rect class="c{colour}" x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2"/>'
    end = scale.at(ratio)
    if interval:
        low, high = scale.at(interval[0]), scale.at(interval[1])
        ends = "".join(f"M{x:.1f} {top + 3}v{_BAR - 6}" for x in (low, high))
        for kind in ("edge", "range"):
            yield f'<path class="{kind}" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>'
        end = max(end, high)
    figure = f"{ratio:.2f}×" + (f"  ({_bench.between(interval)})" if interval else "")
    yield plot.text(end + 8, middle + 4, figure, "figure")
