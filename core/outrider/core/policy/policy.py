"""Which drafter is used and how many tokens it may guess, from measured pass cost and measured acceptance.

Two doors: `choose` before a round, `learn` after it and whenever a drafter was asked or an offer was judged. All else is read.
A round of several answers is learnt from in the same way; `BatchPolicy` chooses for it by what is known here.
The rate of a choice is expected tokens over expected seconds: E(K) = 1 + sum of survival to depth j, T(K) = one pass of
K + 1 rows + drafting. "No drafting" is always one of the choices. State is pooled across the answers of one engine.

Letters: `K` draft tokens, `j` depth, `W` = K + 1 rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from .acceptance import KEEP, DrafterRecord
from .arm import OFFERED, PROBE_FIRST, Arm, Drafters
from .confidence import Calibrated
from .costs import Costs
from .decisions import NONE, Candidate, Choice, Drafted, Judged, Outcome, Share, SharedRound, UpcomingRound
from .drafting_pause import DraftingPause, DraftsAhead, PlainRuns
from .metering import MeterSchedule
from .plain import Stalls

LADDER = (1, 2, 3, 4, 6, 8, 12, 16, 32)
MARGIN, STAY = 1.03, 1.0  # what drafting must promise over plain decoding to begin, and to go on
PROBE_LAST = 128  # rounds between probes at most; they double
SHARE = 0.01  # of decode time that probes may cost
ALLOWANCE = 2.0  # plain passes that probes may cost before there is any decode time
ANSWER = 400.0  # tokens of an answer, until some are known
FAR, AWAY = 0.92, 8  # promise below which a drafter that works for its drafts is left out, and for so many rounds
KNOWN = 12  # drafts behind which a drafter that promises a clear loss in all kinds of text need not be loaded
SURE = 50  # verified positions from which a drafter may end its own drafts by its confidence

_GAIN = attrgetter("gain")
ALONE = ("meter", "first", "rest", "off")  # rounds in which no drafter is asked


class Policy:
    """Chooses per round; learns from every round. One for each loaded target."""

    def __init__(self, width: Callable[[int], int] | None = None) -> None:
        self.meter = MeterSchedule()
        self.stalls = Stalls()  # of the answers so far
        self.plain = 0  # plain passes so far
        self.costs = Costs(width)
        self.batch_costs: Costs | None = None  # in rounds of several answers, once there were any
        self.chosen = Choice("off")
        self._arms: dict[str, Arm] = {}
        self._now = UpcomingRound()
        self._drafting = False
        self._decoded = self._probed = 0.0  # seconds: all, lost to probes
        self._survival = 1.0  # of the draft that is being made
        self._rate = 0.0  # tokens for each second that it competes with
        self._answer = ANSWER
        self._resting = DraftingPause()
        self._parked = Choice("silent")  # the last choice without a drafter
        self._runs = PlainRuns()
        self._ahead = DraftsAhead()
        self._metered = False  # whether the next round is to be a plain one for the meter
        self._own = Choice("silent")  # the best in the last round that was thought about, offers of free drafters apart

    # ------------------------------------------------------------------ choosing

    def choose(
        self, now: UpcomingRound, candidates: Callable[[], Sequence[Candidate]] | None, *, instead: bool = False
    ) -> Choice:
        """The best of all (drafter, K) and of none, or a probe, or a plain pass on purpose; it is kept as `chosen`.

        `candidates` is called only where drafting is thought of at all; None: there is no drafter.
        `instead`: the one that was chosen for this round had nothing to propose.
        """
        if candidates is None:
            self.chosen = Choice("off")
            return self.chosen
        plain = None if instead else self._begin(now)
        if plain is not None:
            self.chosen = plain
            return plain
        there, able = False, list[Candidate]()
        for one in candidates():
            if one.most > 0:
                there = True
                if one.offer is not None or not self._away(one):
                    able.append(one)
        if not able:
            self.chosen = self._parked if there else Choice("silent")
        elif now.pinned is not None:
            self.chosen = self._pinned(able, now.pinned)
        else:
            self.chosen = self._free(able)
        return self.chosen

    def _begin(self, now: UpcomingRound) -> Choice | None:
        """The plain pass that a round is to be on purpose, None for one in which drafting is thought of."""
        if now.phase != self._now.phase:
            for arm in self._arms.values():
                arm.gap, arm.wait, arm.away = PROBE_FIRST, 0, 0
            self._resting.wake()
        self._now, self._survival = now, 1.0
        if now.pinned is not None:
            return None
        if not self.costs.known:
            return Choice("first")
        if now.park and self._resting.begins():
            return Choice("rest")
        return Choice("meter") if self.meter.due(self._plain_cost(now.context), now.context) else None

    def worth_drafting(self, depth: int, confidence: float) -> bool:
        """Whether a token at `depth` (from 0), of which the chosen drafter is so sure, should be in its draft.

        It should where it is likelier to be used than the time is worth that the pass takes more: survival > R (t(j+2) - t(j+1)).
        """
        arm = self._stopping()
        if arm is None:
            return True
        believed = arm.calibrated.believe(depth, confidence, arm.acceptance.rates(self._now.phase, depth + 1)[depth])
        if self._survival * believed <= self._rate * self._one_more(depth):
            return False
        self._survival *= believed
        return True

    def worth_extending(self, depth: int) -> bool:
        """Whether it is worth the time to find out what a token at `depth` would be: survival > R (c1 + t(j+2) - t(j+1))."""
        arm = self._stopping()
        if arm is None:
            return True
        survival = self._survival * arm.acceptance.rates(self._now.phase, depth + 1)[depth]
        return survival > self._rate * (self.costs.drafting(self.chosen.name).line()[1] + self._one_more(depth))

    def _stopping(self) -> Arm | None:
        """The chosen drafter, if it may end its drafts."""
        arm = self._arms.get(self.chosen.name)
        return arm if arm is not None and self.chosen.what == "ride" and arm.confident >= SURE else None

    def _one_more(self, depth: int) -> float:
        """Seconds that a token at `depth` adds to the pass."""
        context = self._now.context
        return self.costs.of(depth + 2, context) - self.costs.of(depth + 1, context)

    def next_round(self, context: int) -> tuple[str, int] | None:
        """Who will draft in the next round and how many tokens, 0 for a plain one, so that it may be launched before this one is
        read; None where that has to be waited for.

        Rounds of rest and of the meter are known beforehand. Otherwise whoever was best in the last round that was thought about
        goes on, unless a probe is due, or what free drafters may offer is worth more than the wait.
        """
        chosen, own = self.chosen, self._own
        if self._now.pinned is not None:
            return chosen.name, chosen.tokens
        if not self.costs.known:
            return None
        self._metered = self.meter.due(self._plain_cost(context), context)
        if self._metered or (chosen.what == "rest" and self._resting.left):
            return NONE, 0
        due = {name for name, arm in self._arms.items() if arm.wait + 1 >= arm.gap and not arm.dear}
        if due and not (self._drafting and due == {own.name}):
            return None
        if not chosen.tokens and not (self._drafting and chosen.what == "meter"):
            return (NONE, 0) if self._runs.go_on else None
        if not own.tokens or own.gain < STAY or not self._ahead.pays:
            return None
        return own.name, _further(own.tokens) if due else own.tokens

    def launched(self, name: str, tokens: int) -> None:
        """The round at hand was launched before it was chosen, with a draft of so many tokens; 0: as a plain one.

        A probe that was to be made is made in the next round.
        """
        chosen = self.chosen
        if chosen.name == name if chosen.tokens and tokens else chosen.tokens == tokens:
            return
        if chosen.what == "probe":
            arm = self.arm(chosen.name)
            arm.wait = arm.gap = max(PROBE_FIRST, arm.gap // 2)
        if tokens:
            self.chosen = Choice("ride", name, tokens)
        elif self._metered:
            self.chosen = Choice("meter")
        elif chosen.tokens:
            self.chosen = self._parked
            self._runs.missed()

    def likeliest(self, candidates: Sequence[Candidate]) -> Choice:
        """Who gets most tokens accepted, whatever the pass costs; for rounds whose length somebody else has chosen."""
        there = [one for one in candidates if one.most > 0]
        choices = [self._length(one, self._arms.get(one.name) or Arm(), self._now, one.most) for one in there]
        return max(choices, key=attrgetter("expected"), default=Choice("silent"))

    def pays(self, name: str, most: int = LADDER[5]) -> bool:
        """Whether a drafter may be worth its time, by all that is known; True until enough is."""
        arm = self._arms.get(name)
        if arm is None or min(arm.acceptance.trials, self.costs.drafting(name).n) < KNOWN:
            return True
        one, rounds = Candidate(name, most), [UpcomingRound(phase) for phase in arm.acceptance.phases]
        return max(self._length(one, arm, now).gain for now in rounds) >= FAR

    @property
    def wait(self) -> int | None:
        """Rounds until the parked drafter is tried again; None where its offers are looked at in every round."""
        if self.chosen.what == "rest":
            return self._resting.left + 1
        arm = self._arms.get(self.chosen.name)
        return None if arm is None or not arm.wait else max(1, arm.gap - arm.wait)

    def _pinned(self, able: Sequence[Candidate], tokens: int) -> Choice:
        choices = [self._length(one, self.arm(one.name), self._now, min(tokens, one.most)) for one in able]
        return replace(max(choices, key=_GAIN), what="pinned")

    def _free(self, able: Sequence[Candidate]) -> Choice:
        choices = [self._best(one) for one in able]
        best = max(choices, key=_GAIN)
        plain = self.costs.of(1, self._now.context)
        asked = [choice for choice, one in zip(choices, able, strict=True) if one.offer is None]
        self._own = max(asked, key=_GAIN, default=Choice("silent"))
        self._ahead.looked(best.gain, self._own.gain)
        good = not self._now.park or best.gain >= (STAY if self._drafting else MARGIN)
        rate = (best.gain if good else 1.0) / plain
        probe = self._probe(able, choices, best if good else None, rate)
        if probe is not None:
            return probe
        self._drafting, self._rate = good, rate
        if not good:
            best = self._parked = replace(best, what="parked", tokens=0)
        return best

    def _away(self, one: Candidate) -> bool:
        """Whether a drafter that promised a clear loss is left out of this round: even asking what it promises takes time."""
        arm = self._arms.get(one.name)
        if arm is None or not arm.away or not self._now.park or self._now.pinned is not None:
            return False
        arm.away -= 1
        arm.wait += 1
        return True

    def _best(self, one: Candidate) -> Choice:
        """The length with the best rate, or a longer one of a drafter that ends its drafts."""
        arm = self.arm(one.name)
        best = self._length(one, arm, self._now)
        line = one.most if one.line is None else one.line
        if one.offer is None and arm.confident >= SURE and best.tokens <= line:  # it ends its drafts by itself
            most = min(self._frontier(one, arm, self._now), line)
            best = replace(best, tokens=min(most, 2 * best.tokens + 2))
        return best

    def _length(self, one: Candidate, arm: Arm, now: UpcomingRound, only: int | None = None) -> Choice:
        """The length with the best rate, of those of the ladder and the longest; the shorter of equal ones.

        `only`: that one, or what is nearest.
        """
        context, late = now.context, 0.0
        plain = self.costs.of(1, context)
        if one.behind:
            late = one.behind * self.costs.drafting(one.name).behind / self._answer
        if one.offer is None:
            most = self._frontier(one, arm, now) if only is None else only
            chances = arm.usual(now.phase, most)
            first, each = self.costs.drafting(one.name).line()
            often = arm.offered
        else:
            most = min(one.most if only is None else only, len(one.offer.ids))
            chances = arm.promise(one.offer, now.phase, most)
            first, each, often = 0.0, 0.0, 1.0
        best = 0, 1.0, 0.0, 0.0  # tokens, expected, seconds, gain
        for tokens, expected in enumerate(chances, 1) if only is None else [(most, chances[-1])]:
            if tokens not in LADDER and tokens != most:
                continue
            seconds = often * self.costs.of(tokens + 1, context) + (1 - often) * plain + first + each * tokens
            mean = 1 + often * expected
            seconds += late * mean
            gain = mean * plain / seconds
            if gain > best[3]:
                best = tokens, mean, seconds, gain
        return Choice("ride", one.name, *best)

    def _frontier(self, one: Candidate, arm: Arm, now: UpcomingRound) -> int:
        """Twice as far as the counts reach, and one further: a long draft is worth trying once the short ones are known."""
        if one.block or arm.slim < 1:
            return one.most
        return min(one.most, 2 * arm.acceptance.trusted(now.phase) + 1)

    def _probe(
        self, able: Sequence[Candidate], choices: Sequence[Choice], best: Choice | None, rate: float
    ) -> Choice | None:
        """A round for a drafter that nothing is learnt of otherwise, or for longer drafts of the one in use."""
        for one, choice in zip(able, choices, strict=True):
            if one.offer is not None:
                continue
            arm = self.arm(one.name)
            arm.wait += 1
            if arm.wait < arm.gap:
                if choice.gain < FAR:
                    arm.away = min(AWAY, arm.gap - arm.wait - 1)
                continue
            if best is not None and choice.name == best.name:
                choice = self._length(one, arm, self._now, min(one.most, _further(choice.tokens)))
            spent = self._lost(choice, rate) + one.behind * self.costs.drafting(one.name).behind + self._probed
            arm.dear = not arm.won and spent > SHARE * self._decoded + ALLOWANCE * self.costs.of(1)
            if arm.dear:
                continue
            arm.wait, arm.gap = 0, min(arm.gap * 2, PROBE_LAST)
            self._rate = rate
            return replace(choice, what="probe")
        return None

    def _lost(self, choice: Choice, rate: float) -> float:
        """Seconds that a choice takes more than its tokens would by another way."""
        return max(0.0, choice.seconds - choice.expected / rate)

    def _plain_cost(self, context: int) -> float:
        """Seconds that a plain pass takes longer than its token would otherwise."""
        return max(0.0, self.costs.of(1, context) - (1 / self._rate if self._rate else 0.0))

    # ------------------------------------------------------------------ learning

    def calibrate(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows was measured at load."""
        self.costs.calibrate(rows, seconds)

    def learn(self, event: Outcome | Drafted | Judged | SharedRound) -> None:
        """What a round gave, as `chosen` wanted it; what a draft took; or what became of an offer that was not verified."""
        if isinstance(event, Outcome):
            self._learn_round(event)
        elif isinstance(event, Judged):
            offered, accepted = event.scored
            if offered:
                line = Outcome(event.drafter, offered, accepted, 0.0, 0.0, confidence=event.confidence)
                self.arm(event.drafter).learn(line, self._now.phase)
        elif isinstance(event, SharedRound):
            assert self.batch_costs is not None
            self.batch_costs.saw(event.rows, event.seconds, 0)
            for share in event.shares:
                self._learn_share(share, self.batch_costs)
        else:
            costs = self.costs.drafting(event.drafter)
            if event.behind:
                costs.caught_up(event.behind, event.catching_up)
            if event.tokens:
                costs.saw(event.tokens, event.seconds)
            else:
                self._silent(event.drafter)

    def _learn_round(self, outcome: Outcome) -> None:
        chosen, rest = self.chosen, outcome.rest
        if chosen.what != "probe":
            self._runs.add(plain=not (outcome.proposed or chosen.tokens))
        self._decoded += outcome.drafting + rest
        self._ahead.took(outcome.host, outcome.drafting + rest)
        if not outcome.from_exit:
            self.costs.saw(outcome.proposed + 1, rest, outcome.context)
        if outcome.proposed or outcome.from_exit:
            self.meter.drafted(outcome.drafter if outcome.proposed else chosen.name, outcome.drafting + rest)
        else:
            self.plain += 1
            lost = self._plain_cost(self._now.context) / self.costs.of(1, self._now.context) * rest
            self.meter.plain(outcome.drafting + rest, self._now.context, lost if chosen.what == "meter" else 0.0)
        if chosen.what in ALONE:
            self._resting.alone(rest)
        elif chosen.what != "probe":  # which is paid for to learn something
            self._resting.asked(outcome.accepted + 1, outcome.drafting + rest)
        if chosen.what == "probe" and self._rate:
            lost = outcome.drafting + rest - (outcome.accepted + 1) / self._rate
            self._probed += max(0.0, lost)
            arm = self.arm(chosen.name)
            arm.won = lost < 0
            if arm.won:  # look again at once
                arm.gap = arm.wait = PROBE_FIRST
        if outcome.proposed:
            arm = self.arm(outcome.drafter)
            arm.offered += OFFERED * (1 - arm.offered)
            rounds, tokens, cost = arm.ridden
            taken = (outcome.drafting + rest) / self.costs.of(1, outcome.context)
            arm.ridden = KEEP * rounds + 1.0, KEEP * tokens + (outcome.accepted + 1.0), KEEP * cost + taken
            arm.learn(outcome, self._now.phase)
        elif chosen.tokens:
            self._silent(chosen.name)

    def _learn_share(self, share: Share, costs: Costs) -> None:
        outcome = share.outcome
        costs.drafting(outcome.drafter).saw(outcome.proposed, outcome.drafting)
        if not outcome.proposed:
            self._silent(outcome.drafter)
            return
        arm, depth = self.arm(outcome.drafter), outcome.proposed if outcome.depth is None else outcome.depth
        arm.offered += OFFERED * (1 - arm.offered)
        arm.filled += OFFERED * (min(1.0, depth / share.asked) - arm.filled)
        arm.learn(outcome, share.phase)

    def _silent(self, name: str) -> None:
        arm = self.arm(name)
        arm.offered -= OFFERED * arm.offered

    def dump(self) -> dict[str, DrafterRecord]:
        """What is known of every drafter."""
        return {
            name: DrafterRecord(
                0.0, arm.acceptance.dump(), arm.calibrated.state, arm.confident, arm.offered, arm.ridden
            )
            for name, arm in self._arms.items()
            if arm.acceptance.rounds
        }

    def remember(self, name: str, record: DrafterRecord) -> None:
        """What `dump` gave of a drafter in an earlier session."""
        arm = self.arm(name)
        arm.acceptance.remember(record.acceptance)
        arm.calibrated = Calibrated(record.calibrated)
        arm.confident = max(0, record.confident)
        arm.offered, arm.ridden = min(1.0, max(OFFERED, record.offered)), record.ridden

    def drafters(self) -> Drafters:
        """What is known of the drafters now, as `forget` takes it."""
        return {
            name: replace(arm, acceptance=arm.acceptance.copy(), calibrated=arm.calibrated.copy())
            for name, arm in self._arms.items()
        }

    def forget(self, before: Drafters) -> None:
        """An answer ended that says nothing of others: of drafters is known what was known before it. Costs stay."""
        self._arms = before
        self._resting.wake()
        self.meter.restart()

    def answered(self, tokens: int) -> None:
        """An answer ended with so many tokens; the next may be quite another text."""
        self._resting.wake()
        self.meter.restart()
        self._answer += 0.2 * (max(16, tokens) - self._answer)

    def arm(self, name: str) -> Arm:
        """What is known of a drafter."""
        arm = self._arms.get(name)
        if arm is None:
            arm = self._arms[name] = Arm()
        return arm


def _further(tokens: int) -> int:
    """The next longer draft."""
    return next((k for k in LADDER if k > tokens), tokens)
