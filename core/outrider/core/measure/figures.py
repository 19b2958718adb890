"""What the runs of a benchmark add up to: speeds with intervals, acceptance by depth, costs of passes and drafts, noise.

Speeds are those of totals, the sum of tokens over the sum of seconds. Where answers were repeated, each counts once, with the
median of its times. A pass gives the accepted draft tokens and one of the target's own, which `tokens_per_pass` counts and
`acceptance` does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, quantiles
from typing import Any

import msgspec
import torch

from outrider.core.session.answer_runs import PLAIN, Pass, Run, Score, score

SAMPLES = 1000  # of the bootstrap
CONFIDENCE = 0.95
FIXED = 0.9  # of all drafts: where so many have the same length, it is the drafter's length
LOOP = 0.5  # share of repeated pieces above which an answer runs in circles
SPREAD = 0.3  # of plain passes, above which a run is noisy
BUSY = 0.25  # of the cores, above which others are at work
EXPLAINED = 1.1  # times its tokens for each pass that a ratio may be; nothing but noise makes more of them
APART = 0.1  # share by which the same plain answer may take longer or shorter again

Interval = tuple[float, float] | None


class Figures(Score, kw_only=True):
    """One drafter over the answers of one category. `whole`: with the prompts' own time, as a person waits for it."""

    interval: Interval  # of `ratio`; None for plain decoding and where one prompt alone was measured
    whole_per_second: float
    whole_ratio: float
    whole_interval: Interval
    first_s: float  # median time to the first token
    limited: int  # answers that were cut at the limit
    looping: int  # answers that repeat themselves


class Worst(msgspec.Struct, frozen=True):
    """The prompt on which a drafter does worst."""

    prompt: str
    category: str
    ratio: float


class Drafting(msgspec.Struct, kw_only=True):
    """What the passes of one drafter tell. Costs are shares of a plain pass.

    `predicted`: (1 - a^(K+1)) / ((1 - a)(cK + 1)) with `a` the rate, `K` the length, `c` the cost; it knows of no cost of
    verifying more than one row, which is `verify_more`. `measured` is of the same passes: those with a draft.
    """

    passes: int
    rounds: int  # passes with a draft
    drafters: dict[str, int]  # passes by who drafted
    length: float  # tokens of a draft; of a tree its levels
    fixed: bool  # whether all have that length; else it is the mean
    rate: float  # of tokens that were right, among those before which all were right
    reached: list[int]  # by depth from 1: drafts that were right up to there
    depths: list[float]  # by depth from 1: share of those that were right there
    draft_ms: float  # median of a round with a draft
    draft_share: float  # of all time, spent on drafting
    cost: float  # of one draft token
    verify_more: float  # of verifying a draft, beyond a plain pass
    predicted: float
    measured: float


class Together(msgspec.Struct, kw_only=True):
    """So many answers at once. `problem`: why there are none."""

    count: int
    drafter: str
    tokens: int = 0
    seconds: float = 0.0  # from the first prompt to the last token
    tokens_per_second: float = 0.0
    states: int = 0  # bytes of all their keys, values and states
    problem: str = ""


class Curve(msgspec.Struct, frozen=True):
    """What a pass of so many rows takes, in milliseconds, and how many were seen."""

    ms: float
    passes: int


class Noise(msgspec.Struct, kw_only=True):
    """How steady the machine was. `spread`: of plain passes, from the 10th to the 90th percentile over the median."""

    spread: float
    low_ms: float
    high_ms: float
    load_before: float | None
    load_after: float | None
    words: list[str]  # what is wrong, empty where nothing is
    control: float | None = (
        None  # median share by which plain answers differ that were made before and after a drafted one
    )
    unexplained: list[Unexplained] = []  # ratios that are noise


class Unexplained(msgspec.Struct, frozen=True):
    """A ratio that is more than the tokens of a pass can bring. `category`: total, or that of some prompts."""

    category: str
    drafter: str
    ratio: float
    tokens_per_pass: float


# ------------------------------------------------------------------------------------------------ speeds


def merged(runs: Iterable[Run]) -> list[Run]:
    """Repeated answers as one each: the median of every time, the first one's counts, the same text only if all had it."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.drafter, run.prompt, run.turn), []).append(run)
    return [_middle(group) for group in groups.values()]


def _middle(group: Sequence[Run]) -> Run:
    times = {name: median(getattr(run, name) for run in group) for name in ("decode_s", "prefill_s", "first_s")}
    sides = zip(*(run.beside for run in group), strict=True) if all(run.beside for run in group) else ()
    beside = [median(side) for side in sides]
    return msgspec.structs.replace(group[0], **times, beside=beside, same_text=all(run.same_text for run in group))


def figures(runs: Sequence[Run], plain: Sequence[Run]) -> Figures:
    """One drafter's answers against the plain ones of the same turns; both as `merged` makes them."""
    totals = score(runs, plain)
    decode, whole = _by_prompt(runs, plain, _decode), _by_prompt(runs, plain, _whole)
    seconds = sum(_whole(run)[1] for run in runs)
    fields = {name: getattr(totals, name) for name in Score.__struct_fields__}
    if any(run.beside for run in runs):
        fields["ratio"] = ratio(decode.values())
    return Figures(
        **fields,
        interval=None if runs is plain else interval(list(decode.values())),
        whole_per_second=totals.tokens / seconds if seconds else 0.0,
        whole_ratio=ratio(whole.values()),
        whole_interval=None if runs is plain else interval(list(whole.values())),
        first_s=median(run.first_s for run in runs) if runs else 0.0,
        limited=sum(run.finish == "length" for run in runs),
        looping=sum(run.repeated > LOOP for run in runs),
    )


Pair = tuple[float, float, float, float]  # tokens and seconds of a drafter, then of plain decoding


def _decode(run: Run) -> tuple[float, float]:
    """Tokens behind the first, which the prefill gives, and their seconds."""
    return max(0, run.tokens - 1), run.decode_s


def _whole(run: Run) -> tuple[float, float]:
    return run.tokens, run.prefill_s + run.decode_s


def _by_prompt(runs: Sequence[Run], plain: Sequence[Run], part: Any) -> dict[str, Pair]:
    """The sums of each prompt, over its turns. Plain answers count with the time of those beside the drafted ones."""
    sums: dict[str, list[float]] = {}
    beside = {(run.prompt, run.turn): fmean(run.beside) for run in runs if run.beside}
    plain = [msgspec.structs.replace(run, decode_s=beside.get((run.prompt, run.turn), run.decode_s)) for run in plain]
    for first, some in ((0, runs), (2, plain)):
        for run in some:
            total = sums.setdefault(run.prompt, [0.0] * 4)
            tokens, seconds = part(run)
            total[first] += tokens
            total[first + 1] += seconds
    return {prompt: (one[0], one[1], one[2], one[3]) for prompt, one in sums.items()}


def ratio(pairs: Iterable[Pair]) -> float:
    """Tokens per second over those of plain decoding; 0 where there is nothing to divide."""
    tokens, seconds, plain_tokens, plain_seconds = (sum(column) for column in zip(*pairs, strict=True))
    return tokens * plain_seconds / (seconds * plain_tokens) if seconds * plain_tokens > 0 else 0.0


def interval(pairs: Sequence[Pair], samples: int = SAMPLES) -> Interval:
    """Where the ratio is with 95 % confidence: percentiles over prompts drawn again with replacement, each with its plain
    answers. None for fewer than two prompts."""
    if len(pairs) < 2:
        return None
    table = torch.tensor(pairs, dtype=torch.float64)  # [prompts, 4]
    draw = torch.Generator().manual_seed(0)
    ratios: list[float] = []
    for _ in range(samples):
        drawn = torch.randint(len(pairs), (len(pairs),), generator=draw)  # [prompts]
        tokens, seconds, plain_tokens, plain_seconds = table[drawn].sum(0).tolist()
        ratios.append(ratio([(tokens, seconds, plain_tokens, plain_seconds)]))
    ratios.sort()
    tail = round(samples * (1 - CONFIDENCE) / 2)
    return ratios[tail], ratios[-1 - tail]


def worst(runs: Sequence[Run], plain: Sequence[Run]) -> Worst | None:
    """The prompt with the lowest ratio; both as `merged` makes them. None where none has one."""
    categories = {run.prompt: run.category for run in runs}
    ratios = {prompt: ratio([pair]) for prompt, pair in _by_prompt(runs, plain, _decode).items()}
    known = [prompt for prompt, value in ratios.items() if value > 0]
    if not known:
        return None
    lowest = min(known, key=ratios.__getitem__)
    return Worst(lowest, categories[lowest], ratios[lowest])


# ------------------------------------------------------------------------------------------------ passes


def predicted(rate: float, length: float, cost: float) -> float:
    """The speed-up of drafts of that length, each token right with probability `rate`, made at `cost` plain passes each."""
    tokens = length + 1 if rate >= 1 else (1 - rate ** (length + 1)) / (1 - rate)
    return tokens / (cost * length + 1)


def by_depth(passes: Iterable[Pass]) -> tuple[list[int], list[int]]:
    """How often each depth, from 1, was reached, and how often it was right."""
    reached: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for one in passes:
        for depth in range(min(one.depth, one.accepted + 1)):
            reached[depth] += 1
            right[depth] += depth < one.accepted
    depths = range(max(reached, default=-1) + 1)
    return [reached[depth] for depth in depths], [right[depth] for depth in depths]


def drafting(passes: Sequence[Pass], plain: Sequence[Pass]) -> Drafting:
    """What one drafter's passes tell beside plain ones."""
    rounds = [one for one in passes if one.proposed]
    reached, right = by_depth(rounds)
    length, fixed = _length([one.depth for one in rounds])
    rate = sum(right) / sum(reached) if reached else 0.0
    plain_ms = _median(one.spent_ms for one in plain)
    plain_verify = _median(one.verify_ms for one in plain)
    draft_ms = _median(one.draft_ms for one in rounds)
    cost = draft_ms / (length * plain_ms) if length and plain_ms else 0.0
    spent = sum(one.spent_ms for one in passes)
    return Drafting(
        passes=len(passes),
        rounds=len(rounds),
        drafters=dict(Counter(one.drafter for one in passes)),
        length=length,
        fixed=fixed,
        rate=rate,
        reached=reached,
        depths=[good / tried for good, tried in zip(right, reached, strict=True)],
        draft_ms=draft_ms,
        draft_share=sum(one.draft_ms for one in passes) / spent if spent else 0.0,
        cost=cost,
        verify_more=_median(one.verify_ms for one in rounds) / plain_verify - 1 if rounds and plain_verify else 0.0,
        predicted=predicted(rate, length, cost),
        measured=_pace(rounds) / _pace(plain) if _pace(plain) else 0.0,
    )


def _length(lengths: Sequence[int]) -> tuple[float, bool]:
    """The usual length of a draft, and whether there is one; else the mean. At the limit of an answer drafts are shorter."""
    if not lengths:
        return 0.0, False
    usual, times = Counter(lengths).most_common(1)[0]
    fixed = times >= FIXED * len(lengths)
    return (float(usual), True) if fixed else (sum(lengths) / len(lengths), False)


def _pace(passes: Sequence[Pass]) -> float:
    """Tokens for each millisecond."""
    spent = sum(one.spent_ms for one in passes)
    return sum(one.tokens for one in passes) / spent if spent else 0.0


def curve(passes: Iterable[Pass]) -> dict[int, Curve]:
    """Median time of verifying, by rows: the draft and the token before it."""
    times: dict[int, list[float]] = {}
    for one in passes:
        times.setdefault(one.proposed + 1, []).append(one.verify_ms)
    return {rows: Curve(median(values), len(values)) for rows, values in sorted(times.items())}


def noise(plain: Sequence[Pass], cores: int, threads: int, loads: tuple[float | None, float | None]) -> Noise:
    """How steady plain passes were. `loads`: the load average before and after the run."""
    times = [one.spent_ms for one in plain]
    middle = _median(times)
    low, high = (quantiles(times, n=10)[0], quantiles(times, n=10)[-1]) if len(times) > 1 else (middle, middle)
    spread = (high - low) / middle if middle else 0.0
    before, after = loads
    words = []
    if spread > SPREAD:
        words.append(f"Noisy: most plain passes took between {low:.1f} and {high:.1f} ms.")
    if before is not None and before > BUSY * cores:
        words.append(f"Others were at work: the load average was {before:.1f} before it began.")
    if after is not None and after > threads + BUSY * cores:
        words.append(
            f"Others were at work: the load average was {after:.1f} at the end, with {threads} threads of our own."
        )
    return Noise(spread=spread, low_ms=low, high_ms=high, load_before=before, load_after=after, words=words)


def doubted(told: Noise, scores: Mapping[str, Mapping[str, Figures]], runs: Iterable[Run]) -> Noise:
    """The noise with what the results themselves say of it. `scores`: by category, then by drafter."""
    off = [abs(run.beside[1] / run.beside[0] - 1) for run in runs if run.beside and run.beside[0] > 0]
    control = median(off) if off else None
    unexplained = [
        Unexplained(category, name, one.ratio, one.tokens_per_pass)
        for category, by_drafter in scores.items()
        for name, one in by_drafter.items()
        if name != PLAIN.name and one.tokens_per_pass and one.ratio > EXPLAINED * one.tokens_per_pass
    ]
    words = list(told.words)
    if control is not None and control > APART:
        words.append(
            f"The same plain answer took {control:.0%} more or less time again: smaller differences are noise."
        )
    words += [
        f"{one.category}, {one.drafter}: {one.ratio:.2f}× is noise, as {one.tokens_per_pass:.2f} tokens a pass cannot make it."
        for one in unexplained
    ]
    return msgspec.structs.replace(told, words=words, control=control, unexplained=unexplained)


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return median(known) if known else 0.0
