"""The law of what the rejection rule lets through, for the conformance kit: counts against the target's own probabilities."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from torch import Tensor

from outrider.core.decode.rounds import Rounds
from outrider.core.drafting.active import GuardedDrafter
from outrider.core.model.model import TargetModel
from outrider.core.sampling.accept import NO_DRAFT, rejection
from outrider.core.sampling.draft_tree import DraftTree
from outrider.core.sampling.noise import Noise
from outrider.core.sampling.sample import Sampler, Settings

from .rig import Broken, Nothing

LOOSE = Settings(temperature=1.0, top_p=1.0)
TRIALS = 8  # drafts that show which words a drafter likes
WORDS = 6  # tokens that are possible: few, so that each is seen often
BIAS = 500.0  # lifts them above all others
SPREAD = 2.0  # natural-log units between the likeliest and the least likely of them
ENOUGH = 5.0  # times that a bin is expected
UNLIKELY = (
    4.5  # standard deviations: 3.4 in a million. A check judges text and drafts, so it wrongs one drafter in 150 000
)


class Law:
    """Two tokens after a fixed text, drawn many times under the rejection rule, against the target's own law.

    And the draft tokens themselves, against what the drafter reported: a wrong report must not hide where its drafts are
    rejected anyway. Few words are possible, some that the target likes and some that the drafter likes, so that drafts
    of one that has learnt nothing are accepted and rejected too.

    A draft is stopped where its drafter says that it is less sure than usual: one that tells so by what it drew is caught by
    that.

    The threshold of 4.5 standard deviations, passed 3.4 times in a million, holds for each of the two tables: an honest
    drafter is wronged once in about 150 000 checks.
    """

    def __init__(self, target: TargetModel, tokens: list[int], drafter: GuardedDrafter) -> None:
        self._target, self._tokens = target, tokens
        self._seen: dict[tuple[int, ...], Tensor] = {}  # logits by draft: the text stays, so each is verified once
        self._laws: dict[tuple[int, ...], Tensor] = {}
        self._counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        self._drawn: dict[int, Counter[int]] = defaultdict(Counter)  # by node
        self._told: dict[int, Tensor] = {}  # by node: the sum of what was told
        self.n = self.proposed = 0
        self._heard: dict[int, list[float]] = defaultdict(list)  # by depth: how sure the drafter was
        trials = [self._draft(drafter, LOOSE, seed)[0] for seed in range(TRIALS)]
        self._heard.clear()  # with these settings no drafter is as sure as with those that follow
        liked = Counter(token for draft in trials for token in draft.ids).most_common()
        self._settings = few(self._logits(NO_DRAFT)[0], [token for token, _ in liked])

    def draw(self, drafter: GuardedDrafter, seed: int) -> bool:
        """One round with that seed; whether its draft told probabilities."""
        draft, sampler = self._draft(drafter, self._settings, seed)
        logits = self._logits(draft)
        taken = rejection(logits, draft, sampler, len(self._tokens), sampler.noise)
        fresh, rows = taken.tokens.tolist(), taken.path.tolist()
        for depth, token in enumerate(fresh[:2]):
            before = tuple(fresh[:depth])
            if before not in self._laws:
                self._laws[before] = sampler.distribution(logits[rows[depth]])
            self._counts[before][token] += 1
        self.n += 1
        self.proposed += len(draft)
        if draft.probs is None:
            return False
        for node, token in enumerate(draft.ids):
            self._drawn[node][token] += 1
            probs = draft.probs[node].double()
            self._told[node] = self._told[node] + probs if node in self._told else probs
        return True

    def _draft(self, drafter: GuardedDrafter, settings: Settings, seed: int) -> tuple[DraftTree, Sampler]:
        sampler = Sampler(settings, Noise(seed), self._tokens, "rejection")
        rounds = Rounds(self._target, self._tokens, sampler)
        rounds.worth_drafting = self._worth_drafting
        return rounds.propose(drafter, 2), sampler

    def _worth_drafting(self, depth: int, confidence: float) -> bool:
        """Where it is no less sure than half of the time before, up to rounding."""
        before = self._heard[depth]
        least = 0.999 * median(before) if before else 0.0
        before.append(confidence)
        return confidence >= least

    def _logits(self, draft: DraftTree) -> Tensor:
        key = (*draft.ids, *draft.above)
        if key not in self._seen:
            parents = None if draft.chain else draft.above
            self._seen[key] = self._target.forward([self._tokens[-1], *draft.ids], parents=parents).logits
        return self._seen[key]

    def verdict(self) -> str:
        """Raises Broken if the counts are not those of the laws."""
        text = [_bins(seen, self._laws[before] * seen.total()) for before, seen in self._counts.items()]
        drafts = [_bins(seen, self._told[node]) for node, seen in self._drawn.items()]
        strange, told = _chi(text)
        if strange:
            raise Broken(f"The tokens do not have the target's law ({told}).")
        if (drawn := _chi(drafts))[0]:
            raise Broken(f"Its drafts are not drawn from the law that `probs` tells ({drawn[1]}).")
        if not self.proposed:
            raise Nothing("It proposed nothing here.")
        if not told:
            raise Nothing("The target is too sure of itself here: there is one token to draw.")
        return f"The tokens have the target's law ({told}, {self.n} draws)."


def few(row: Tensor, liked: Sequence[int]) -> Settings:
    """Sampling in which few words are possible: one half the best of `row` [V], the other what a drafter likes."""
    best = row.topk(min(WORDS, int(row.isfinite().sum()))).indices.tolist()
    liked = [word for word in liked if row[word].isfinite()]  # the others have no token, and never come
    words = list(dict.fromkeys([*best[: WORDS // 2], *liked[: WORDS // 2], *best]))[:WORDS]
    spread = float(row[words].max() - row[words].min())
    bias = tuple((word, BIAS) for word in sorted(words))
    return Settings(temperature=max(1.0, spread / SPREAD), top_k=len(words), top_p=1.0, logit_bias=bias)


def _chi(tables: list[list[tuple[float, float]]]) -> tuple[bool, str]:
    """Whether counts are too far from what was expected, and the chi-square in words; "" if there is nothing to count."""
    chi = sum((seen - expected) ** 2 / expected for bins in tables for seen, expected in bins)
    freedom = sum(max(0, len(bins) - 1) for bins in tables)
    if not freedom:
        return False, ""
    share = 2 / (9 * freedom)
    z = ((chi / freedom) ** (1 / 3) - 1 + share) / math.sqrt(share)  # Wilson and Hilferty: about normal
    return z > UNLIKELY, f"chi-square {chi:.1f} with {freedom} degrees of freedom"


def _bins(counts: Counter[int], expected: Tensor) -> list[tuple[float, float]]:
    """Seen and expected counts of tokens, rare ones together with the next ids until they are enough. Raises Broken."""
    bins: list[tuple[float, float]] = []
    many, likely = 0.0, 0.0
    for token in sorted({*expected.nonzero()[:, 0].tolist(), *counts}):
        seen, wanted = counts[token], float(expected[token])
        if seen and not wanted:
            raise Broken(f"Token {token} came, which has no probability.")
        if wanted >= ENOUGH:
            bins.append((seen, wanted))
            continue
        many, likely = many + seen, likely + wanted
        if likely >= ENOUGH:
            bins.append((many, likely))
            many, likely = 0.0, 0.0
    return bins
