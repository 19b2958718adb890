"""What passes cost, measured when a model is loaded: threads first, then rows, then what a long context adds.

What was measured before on this machine is taken over, if a look at one width does not speak against it.

Letters: `W` rows of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from outrider.core.base import cpus
from outrider.core.base.errors import Cancelled
from outrider.core.decode.rounds import Rounds
from outrider.core.model.model import TargetModel
from outrider.core.policy.history import TURN, CostRecord
from outrider.core.policy.policy import Policy
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.sample import Sampler

WIDTHS = (1, 8, 17, 2, 4, 33)  # rows that are timed at load, in this order
WIDE = 8  # rows of the wide pass that is timed behind a long context
CHECKED = (8, 1)  # that are looked at where a record is known: the first, or the second where passes are narrower
SAMPLES, LOOKS = 5, 3  # times that each width is timed, and one row where a record is known
CALIBRATION = 1.5  # seconds after which no further width, or number of threads, is begun
ALL_THREADS = min(
    torch.get_num_threads(), cpus.available()
)  # what torch takes by itself, but not beyond a container's quota
PAYS = 0.97  # share of the best time that another number of threads must come below: a few passes show no more
FAR, CHUNK = 1024, 512  # tokens of context behind which passes are timed again, and how many of them one pass makes
PLAIN_TO_SEE = 1.08  # times that a pass must take there, to be more than noise


class Calibrator:
    """For one target. `cancelled` is asked between passes."""

    def __init__(self, target: TargetModel, sampler: Sampler, cancelled: Callable[[], bool]) -> None:
        self._target, self._sampler, self._cancelled = target, sampler, cancelled

    def policy(self, known: CostRecord | None, threads: int | None) -> Policy:
        """A policy that knows what passes cost: from a record, if it is still true, else measured. `threads`: asked for.

        Raises Cancelled.
        """
        runner = self._target.graph_runner
        policy = Policy(None if runner is None else runner.wide)
        self.choose_threads(threads, SAMPLES if known is None else LOOKS)
        if known is None or not self._recalled(policy, known):
            self.measure(policy)
        return policy

    def choose_threads(self, asked: int | None, samples: int = SAMPLES) -> None:
        """As many CPU threads as were asked for, else those that make a one-row pass fastest: more of them can be slower.

        All that may be used come first, then half as many, and so on while that pays; then counts near the best one, which
        is where processors have fast and slow cores.
        """
        target = self._target
        torch.set_num_threads(asked or ALL_THREADS)
        if (
            asked or target.exact or target.device.type != "cpu"
        ):  # exact mode: sums of a prompt may depend on the threads
            return
        best, times, spent = ALL_THREADS, dict[int, float](), 0.0

        def time_with(count: int) -> float:
            nonlocal spent
            torch.set_num_threads(count)
            passes = [self.timed(1) for _ in range(1 + samples)]
            spent += sum(passes)
            times[count] = min(passes)
            return times[count]

        def pays(count: int) -> bool:
            untried = 1 <= count <= ALL_THREADS and count not in times and spent < CALIBRATION
            return untried and time_with(count) <= times[best] * PAYS

        time_with(best)
        while pays(best // 2):
            best //= 2
        step = max(1, best // 4)
        while step:
            better = next((count for count in (best - step, best + step) if pays(count)), None)
            best, step = (best, step // 2) if better is None else (better, step)
        torch.set_num_threads(best)

    def measure(self, policy: Policy) -> None:
        """Time each width: the first pass builds kernels, the median of the others counts.

        They are taken in turns, so that what else the machine does falls on all widths alike.
        """
        times: dict[int, list[float]] = {}
        spent = 0.0
        for rows in self._widths():
            spent += self.timed(rows)
            times[rows] = [self.timed(rows)]
            spent += times[rows][0]
            if spent > CALIBRATION:
                break
        for rows in [*times] * (SAMPLES - 1):
            if spent < CALIBRATION or len(times[rows]) < 2:
                times[rows].append(self.timed(rows))
                spent += times[rows][-1]
        for rows, seconds in times.items():
            policy.calibrate(rows, median(seconds))
        if spent + FAR / WIDE * policy.costs.of(WIDE) < CALIBRATION:
            self._lean(policy)

    def timed(self, rows: int, context: int = 0) -> float:
        """Seconds of a round with so many rows behind so many tokens, as answers run them."""
        if self._cancelled():
            raise Cancelled
        began = time.perf_counter()
        rounds = Rounds(self._target, [0] * (context + 1), self._sampler, ahead=False)
        rounds.verify_draft(None, DraftTree(torch.zeros(rows - 1, dtype=torch.int64)))
        spent = time.perf_counter() - began
        self._target.rewind(context)
        return spent

    def _recalled(self, policy: Policy, known: CostRecord) -> bool:
        """Take over a record; False if it was made with other threads, or a pass takes another time now.

        Threads are chosen anew: while another program ran, fewer may have been the best.
        """
        if known.threads != torch.get_num_threads():
            return False
        captured = self._target.graph_runner is not None  # else the first rounds of an answer would pay for it
        for rows in self._widths() if captured else ():
            self.timed(rows)
        rows = next((one for one in CHECKED if one in known.passes and one <= self._target.most), None)
        if rows is None or min(known.passes.values()) <= 0:
            return False
        times = [self.timed(rows) for _ in range(4)]
        if abs(median(times[1:]) / known.passes[rows] - 1) > TURN:
            return False
        for some, seconds in known.passes.items():
            policy.calibrate(some, seconds)
        policy.costs.lean_by(*known.slopes)
        return True

    def _lean(self, policy: Policy) -> None:
        """What context adds. States that cannot be cut do not grow with it."""
        target = self._target
        if not target.cache.cut or target.context <= FAR + WIDE or target.most < WIDE:
            return
        for at in range(0, FAR, CHUNK):
            if self._cancelled():
                raise Cancelled
            target.forward([0] * CHUNK, last=True)
            target.commit(at + CHUNK)
        one, wide = (median([self.timed(rows, FAR) for _ in range(4)][1:]) for rows in (1, WIDE))
        target.rewind(0)
        if one > PLAIN_TO_SEE * policy.costs.of(1):
            policy.costs.lean(FAR, one, (WIDE, wide))

    def _widths(self) -> tuple[int, ...]:
        return tuple(rows for rows in WIDTHS if rows <= self._target.most)
