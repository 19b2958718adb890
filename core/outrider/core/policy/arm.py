"""What is known of one drafter: what gets accepted, how sure it is, how often it drafts, when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.core.sampling.draft_tree import DraftTree

from .acceptance import Acceptance
from .confidence import Calibrated
from .decisions import Outcome

PROBE_FIRST = 16  # rounds between the first probes
OFFERED = 0.05  # moving average of how often a drafter proposes anything
FAINT = 0.02  # survival below which no node is looked at


@dataclass(slots=True)
class Arm:
    """What is known of one drafter."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    calibrated: Calibrated = field(default_factory=Calibrated)
    confident: int = 0  # positions with a confidence
    offered: float = 1.0  # how often it proposes anything when asked
    filled: float = 1.0  # how much of what was asked for, if it does, in rounds of several answers
    slim: float = 1.0  # depth of its drafts over their nodes
    gap: int = PROBE_FIRST
    wait: int = 0
    away: int = 0  # rounds for which it is left out
    won: bool = False  # its last probe was worth its time
    dear: bool = False  # its next probe is due, and costs more than probes may
    ridden: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def learn(self, outcome: Outcome, phase: str) -> None:
        """What a round gave, in text of that kind."""
        depth = outcome.proposed if outcome.depth is None else outcome.depth
        self.slim += (
            OFFERED * (depth / outcome.proposed - self.slim) if depth < outcome.proposed or self.slim < 1 else 0.0
        )
        accepted, reached = outcome.accepted, min(depth, outcome.accepted + 1)
        if outcome.kept is not None:  # what came after the answer's end was never judged
            reached, accepted = min(reached, outcome.kept), min(accepted, outcome.kept)
            if accepted == outcome.kept:
                depth = accepted
        if outcome.confidence is not None and reached:
            rates = list(self.acceptance.rates(phase, reached)[:reached])
            for at, (sure, base) in enumerate(zip(outcome.confidence[:reached], rates, strict=False)):
                self.calibrated.learn(at, sure, base, at < accepted)
                self.confident += 1
        self.acceptance.learn(phase, depth, accepted)

    def usual(self, phase: str, most: int) -> list[float]:
        """Tokens that drafts of 1, 2, … `most` nodes get accepted, by the counts alone."""
        rates = self.acceptance.rates(phase, most)
        survival, expected, depth, expectations = 1.0, 0.0, 0, list[float]()
        for nodes in range(1, most + 1):
            if nodes * self.slim > depth:
                survival *= rates[depth]
                expected += survival
                depth += 1
            expectations.append(expected)
        return expectations

    def promise(self, offer: DraftTree, phase: str, most: int) -> list[float]:
        """Tokens that the first 1, 2, … `most` nodes of an offer get accepted."""
        chain, nodes = offer.parents is None, len(offer.ids)
        depths, parents = (range(nodes), range(-1, nodes - 1)) if chain else (offer.depths, offer.above)
        rates = self.acceptance.rates(phase, max(depths) + 1)
        believe, sure = self.calibrated.believe, offer.confidences
        chances, found, expected = list[float](), list[float](), 0.0
        for node in range(most):
            depth, above = depths[node], parents[node]
            chance = chances[above] if above >= 0 else 1.0
            if chance > FAINT:
                base = rates[depth]
                chance *= base if sure is None else believe(depth, sure[node], base)
            elif chain and node:  # nor is anything after it
                break
            expected += chance
            chances.append(chance)
            found.append(expected)
        return found


Drafters = dict[str, Arm]
