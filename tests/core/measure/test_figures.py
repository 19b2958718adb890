"""What a benchmark makes of its runs and passes, on made-up ones."""

from __future__ import annotations

import math
import random
from statistics import median
from typing import Any

import pytest

from outrider.core.measure.figures import (
    by_depth,
    curve,
    doubted,
    drafting,
    figures,
    interval,
    merged,
    noise,
    predicted,
    ratio,
    worst,
)
from outrider.core.session.answer_runs import Pass, Run


def run_of(prompt: str, drafter: str = "none", **fields: Any) -> Run:
    """An answer of 11 tokens: 10 of them in one second, unless told otherwise."""
    told: dict[str, Any] = {"category": "a", "turn": 0, "repeat": 0, "tokens": 11, "decode_s": 1.0, "prefill_s": 0.5}
    told |= {"passes": 10, "proposed": 0, "accepted": 0, "same_text": True, "first_s": 0.5, **fields}
    return Run(prompt=prompt, drafter=drafter, **told)


def pass_of(
    proposed: int, accepted: int, draft: float = 0.0, verify: float = 8.0, depth: int | None = None, host: float = 2.0
) -> Pass:
    """A pass of a drafter named d, or a plain one."""
    levels = proposed if depth is None else depth
    return Pass("d" if proposed else "none", 5, proposed, levels, accepted, accepted + 1, draft, verify, host)


def test_repeats_count_once_with_the_median_of_their_times():
    seconds = (1.0, 9.0, 2.0)
    runs = [run_of("p", repeat=n, decode_s=s, same_text=n != 1) for n, s in enumerate(seconds)]
    (one,) = merged(runs)
    assert (one.decode_s, one.tokens, one.same_text) == (2.0, 11, False)
    assert len(merged([run_of("p"), run_of("p", turn=1), run_of("q"), run_of("p", "d")])) == 4


def test_ratios_are_those_of_totals_with_and_without_the_prompt():
    plain = [run_of("p"), run_of("q", tokens=101, decode_s=9.0)]
    drafted = [run_of("p", "d", decode_s=0.5, passes=5), run_of("q", "d", tokens=101, decode_s=9.5, finish="length")]
    found = figures(drafted, plain)
    assert found.ratio == pytest.approx((110 / 10.0) / (110 / 10.0))
    assert found.whole_ratio == pytest.approx((112 / 11.0) / (112 / 11.0))
    assert (found.limited, found.looping, found.first_s) == (1, 0, 0.5)
    drafted[1].decode_s = 4.5
    found = figures(drafted, plain)
    assert found.ratio == pytest.approx(2.0)
    assert found.whole_ratio == pytest.approx((112 / 6.0) / (112 / 11.0))
    assert found.interval is not None and found.interval[0] == pytest.approx(2.0) == found.interval[1]
    assert figures(plain, plain).interval is None


def test_the_interval_is_of_prompts_with_their_plain_answers():
    paired = [(10.0 * k, 5.0 * k, 10.0 * k, 10.0 * k) for k in (1, 7, 40)]  # twice as fast on each, however long it is
    assert interval(paired) == pytest.approx((2.0, 2.0))
    mixed = [(10.0, seconds, 10.0, 10.0) for seconds in (5.0, 10.0, 20.0, 10.0, 5.0)]
    found = interval(mixed)
    assert found is not None and found == interval(mixed)
    assert 0.5 < found[0] < ratio(mixed) < found[1] < 2.0
    wide, narrow = interval(mixed), interval(mixed * 16)
    assert wide is not None and narrow is not None and narrow[1] - narrow[0] < (wide[1] - wide[0]) / 2
    assert interval(mixed[:1]) is None


def test_the_worst_prompt_is_named_over_its_turns():
    plain = [run_of("p"), run_of("p", turn=1), run_of("q")]
    drafted = [run_of("p", "d", decode_s=2.0), run_of("p", "d", turn=1, decode_s=0.1), run_of("q", "d", decode_s=1.25)]
    found = worst(drafted, plain)
    assert found is not None
    assert (found.prompt, found.category, found.ratio) == ("q", "a", pytest.approx(0.8))
    empty = [run_of("p", tokens=1, decode_s=0.0)]
    assert worst(empty, empty) is None


@pytest.mark.parametrize(
    ("rate", "length", "cost", "wanted"),
    [
        (0.0, 4, 0.0, 1.0),
        (0.0, 4, 0.25, 0.5),
        (0.5, 2, 0.0, 1.75),
        (0.8, 3, 0.1, (1 + 0.8 + 0.64 + 0.512) / 1.3),
        (1.0, 4, 0.0, 5.0),
        (1.0, 4, 0.5, 5 / 3),
    ],
)
def test_the_predicted_speed_up(rate: float, length: float, cost: float, wanted: float):
    assert predicted(rate, length, cost) == pytest.approx(wanted)
    assert predicted(min(rate + 1e-9, 1.0), length, cost) == pytest.approx(wanted, rel=1e-6)  # no jump at 1


def test_acceptance_by_depth_counts_what_was_reached():
    passes = [pass_of(3, 3), pass_of(3, 1), pass_of(3, 0), pass_of(1, 1), pass_of(0, 0)]
    assert by_depth(passes) == ([4, 2, 1], [3, 1, 1])
    assert by_depth([]) == ([], [])
    tree = [pass_of(12, 2, depth=2), pass_of(12, 1, depth=2)]  # two levels: no third was there to be reached
    assert by_depth(tree) == ([2, 2], [2, 1])
    assert (drafting(tree, [pass_of(0, 0)]).length, drafting(tree, []).cost) == (2.0, 0.0)


def test_what_drafting_costs_and_brings():
    plain = [pass_of(0, 0)] * 4  # 10 ms each
    rounds = [pass_of(4, 4, draft=4.0, verify=10.0)] * 19 + [pass_of(2, 0, draft=4.0, verify=10.0)]
    silent = [pass_of(0, 0)] * 20
    found = drafting([*rounds, *silent], plain)
    assert (found.passes, found.rounds, found.drafters) == (40, 20, {"d": 20, "none": 20})
    assert (found.length, found.fixed) == (4.0, True)  # the last draft of an answer is shorter
    assert found.rate == pytest.approx(76 / 77)
    assert found.cost == pytest.approx(4.0 / 4 / 10.0)
    assert found.verify_more == pytest.approx(0.25)
    assert found.draft_share == pytest.approx(80 / (20 * 16 + 20 * 10))
    assert found.predicted == pytest.approx(predicted(76 / 77, 4, 0.1))
    assert found.measured == pytest.approx((19 * 5 + 1) / (20 * 16.0) * 10.0)
    mixed = drafting([pass_of(4, 0), pass_of(1, 0)], plain)
    assert (mixed.length, mixed.fixed, mixed.rate, mixed.depths) == (2.5, False, 0.0, [0.0])
    nothing = drafting(silent, plain)
    assert (nothing.rounds, nothing.length, nothing.depths, nothing.predicted, nothing.measured) == (
        0,
        0.0,
        [],
        1.0,
        0.0,
    )


def test_the_verify_curve_is_a_median_by_rows():
    passes = [pass_of(3, 0, verify=ms) for ms in (9.0, 90.0, 10.0)] + [pass_of(0, 0, verify=8.0)]
    found = curve(passes)
    assert list(found) == [1, 4]
    assert (found[4].ms, found[4].passes, found[1].ms) == (10.0, 3, 8.0)


def test_noise_is_told_in_words():
    steady = [pass_of(0, 0, verify=8.0 + 0.01 * n) for n in range(20)]
    quiet = noise(steady, 2, 2, (0.1, 2.2))
    assert quiet.words == [] and quiet.spread < 0.05
    assert "Others" in noise(steady, 2, 2, (0.9, 2.2)).words[0]
    assert "Others" in noise(steady, 2, 2, (0.1, 3.0)).words[0]
    assert noise(steady, 2, 2, (None, None)).words == []
    wild = noise([*steady, *(pass_of(0, 0, verify=50.0) for _ in range(4))], 2, 2, (0.0, 0.0))
    assert wild.words[0].startswith("Noisy: most plain passes took between 10.0 and 52.0 ms")
    assert math.isclose(noise(steady[:1], 2, 2, (0, 0)).spread, 0.0)
    assert noise([], 2, 2, (0, 0)).words == []


# ---------------------------------------------------------------------------------------------------- noise


class Clock:
    """Other work comes and goes, and makes everything twice as slow while it is there."""

    def __init__(self, seed: int) -> None:
        self.luck, self.now, self.until, self.busy = random.Random(seed), 0.0, 0.0, False

    def takes(self, seconds: float) -> float:
        """An answer of so many quiet seconds, a tenth at a time."""
        began = self.now
        for _ in range(10):
            while self.now >= self.until:
                self.busy, self.until = not self.busy, self.until + self.luck.expovariate(1 / 4.0)
            self.now += seconds / 10 * (2.0 if self.busy else 1.0) * self.luck.lognormvariate(0, 0.05)
        return self.now - began


def bench(seed: int, names: int = 6, prompts: int = 16) -> tuple[list[Run], list[Run]]:
    """The last of some drafters and plain decoding, as the bench makes them: its ratio is 1.5."""
    clock, drafted, plain = Clock(seed), list[Run](), list[Run]()
    for prompt in range(prompts):
        first = before = clock.takes(1.5)
        for name in range(names):
            seconds = clock.takes(1.0)
            after = clock.takes(1.5)
            if name == names - 1:
                drafted.append(
                    run_of(f"p{prompt}", "d", tokens=129, passes=60, decode_s=seconds, beside=[before, after])
                )
            before = after
        plain.append(run_of(f"p{prompt}", tokens=129, decode_s=first))
    return drafted, plain


def test_other_work_widens_the_interval_and_does_not_bend_the_ratio():
    made = [figures(*bench(seed)) for seed in range(5)]
    held = [one.interval is not None and one.interval[0] <= 1.5 <= one.interval[1] for one in made]
    assert sum(held) >= 4 and abs(median(one.ratio for one in made) - 1.5) < 0.08
    off = [0.0, 0.0]
    for drafted, plain in map(bench, range(40)):
        seconds = sum(run.decode_s for run in drafted)
        near, far = (sum(sum(run.beside) / 2 for run in drafted), sum(run.decode_s for run in plain))
        off = [so_far + abs(one / seconds - 1.5) for so_far, one in zip(off, (near, far), strict=True)]
    assert off[0] < 0.7 * off[1]  # than against the plain answer of the prompt alone


def test_what_tokens_cannot_explain_is_called_noise():
    quiet = noise([pass_of(0, 0, verify=10.0)] * 20, 2, 2, (0.0, 0.0))
    plain = [run_of(name, tokens=101, passes=100, decode_s=1.0) for name in ("a", "b")]
    fair = [run_of(name, "fair", tokens=101, passes=50, decode_s=0.6, beside=[1.0, 1.05]) for name in ("a", "b")]
    odd = [run_of(name, "odd", tokens=101, passes=90, decode_s=0.5, beside=[1.0, 1.4]) for name in ("a", "b")]
    scores = {"total": {"none": figures(plain, plain), "fair": figures(fair, plain), "odd": figures(odd, plain)}}
    told = doubted(quiet, scores, [*plain, *fair])
    assert told.control is not None and told.control < 0.1
    assert [(one.category, one.drafter) for one in told.unexplained] == [("total", "odd")]
    assert len(told.words) == 1 and "2.40× is noise" in told.words[0] and "1.11 tokens a pass" in told.words[0]
    told = doubted(quiet, {"total": {"none": figures(plain, plain)}}, [*plain, *odd])
    assert not told.unexplained and "40% more or less" in told.words[0]
