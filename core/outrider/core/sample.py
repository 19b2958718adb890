"""Logits -> distribution -> token, once for everybody: target and drafter, drafted and plain, greedy and sampled.

`together` draws for several answers at once, `ChainSampler` makes a drafter's chain of it.

Order: repeat, presence and frequency penalties, logit bias, temperature, top-k, top-p, min-p. The repeat penalty counts
the whole context, the other two the answer only; tokens of a draft count for the rows behind them.

Letters: `V` vocabulary, `m` ids that the filters left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .drafting import Context, Draft
from .errors import ModelError
from .noise import Noise, gumbel
from .protocol import Sampling
from .target import ops

COLD = 1e-6  # temperature below which the likeliest token is all that is left: greedy
STRONGEST = 1e4  # of a logit bias: enough to force or forbid any token, and no infinity
_NEAR = (5.0, 10.0, math.inf)  # natural-log units below the best logit in which a top-p nucleus is looked for


@dataclass(frozen=True, slots=True)
class Settings:
    """`Sampling` with every default filled in."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def sampling(self, asked: Sampling) -> Sampling:
        """These values as the protocol has them; of the penalties those alone that `asked` names or that do something."""
        neutral = Settings()
        shown = {}
        for name in Settings.__dataclass_fields__:
            value, penalty = getattr(self, name), name.endswith("penalty")
            if name != "logit_bias" and not (
                penalty and value == getattr(neutral, name) and getattr(asked, name) is None
            ):
                shown[name] = value
        return Sampling(**shown, logit_bias=dict(self.logit_bias))

    @property
    def penalised(self) -> bool:
        """Whether logits depend on earlier tokens beyond the model itself."""
        return self.repeat_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def fill(sampling: Sampling, defaults: Sampling) -> Settings:
    """What the user set, else what the model recommends, else our own defaults."""
    own = Settings()
    values = {}
    for name in Settings.__dataclass_fields__:
        if name == "logit_bias":
            continue
        value = getattr(sampling, name)
        if value is None:
            value = getattr(defaults, name)
        values[name] = getattr(own, name) if value is None else value
    if values["temperature"] < COLD:
        values["temperature"] = 0.0
    biases = ((token, max(-STRONGEST, min(STRONGEST, bias))) for token, bias in sorted(sampling.logit_bias.items()))
    return Settings(**values, logit_bias=tuple(biases))


class Sampler:
    """Draws the tokens of one answer. `context` are the ids of the prompt; `commit` adds what was emitted."""

    def __init__(self, settings: Settings, noise: Noise, context: Sequence[int] = ()) -> None:
        self.settings = settings
        self.noise = noise
        self._context = Counter(context) if settings.repeat_penalty != 1.0 else Counter[int]()
        self._answer: Counter[int] = Counter()

    @property
    def greedy(self) -> bool:
        """Temperature 0 and nothing that changes logits: argmax of the raw rows."""
        s = self.settings
        return s.temperature == 0 and not s.penalised and not s.logit_bias

    def plain(self, vocab: int) -> int | None:
        """How many of `vocab` tokens it draws from where only the likeliest are kept, 0 where it is greedy; None: other rules."""
        s = self.settings
        if self.greedy:
            return 0
        ruled = s.penalised or s.logit_bias or s.top_p < 1 or s.min_p > 0 or s.temperature == 0
        return s.top_k if 0 < s.top_k < vocab and not ruled else None

    def commit(self, tokens: Sequence[int]) -> None:
        """These tokens were emitted; later rows are penalised for them."""
        if self.settings.penalised:
            self._answer.update(tokens)

    def kept(self, logits: Tensor, path: Sequence[int] = ()) -> tuple[Tensor | None, Tensor]:
        """What the filters leave of `logits` [V] after the draft tokens `path`: ids [m] and log-weights [m].

        Ids None means all of the vocabulary. Weights are not normalised. At temperature 0 one id is left.
        Raises ModelError for logits that are not finite.
        """
        x = self._processed(logits, path)
        best, index = x.max(-1)
        if not math.isfinite(best):
            raise ModelError("The model's output is not a number.", "Try --dtype fp32 or bf16.")
        s = self.settings
        if s.temperature == 0:
            return index[None], torch.zeros(1, dtype=torch.float64, device=x.device)
        x = x / s.temperature
        ids: Tensor | None = None
        if 0 < s.top_k < x.shape[0]:
            x, ids = x.topk(s.top_k)
        if s.top_p < 1:
            x, ids = _nucleus(x, ids, s.top_p)
        if s.min_p > 0:
            keep = (x >= x.max() + math.log(s.min_p)).nonzero()[:, 0]
            ids = keep if ids is None else ids[keep]
            x = x[keep]
        return ids, x.double()

    def distribution(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """[V] -> [V] float64 probabilities after processors and filters; a one-hot at temperature 0."""
        ids, weights = self.kept(logits, path)
        probs = weights.softmax(-1)
        if ids is None:
            return probs
        return torch.zeros(logits.shape[-1], dtype=torch.float64, device=logits.device).index_put_((ids,), probs)

    def token(self, logits: Tensor, position: int, path: Sequence[int] = ()) -> int:
        """The token of absolute `position`: argmax(log p + Gumbel(seed, position, id)) over what the filters left."""
        ids, weights = self.kept(logits, path)
        if ids is not None and ids.shape[0] == 1:
            return int(ids)
        best = int((weights + self._noise_of(ids, weights, position)).argmax())
        return best if ids is None else int(ids[best])

    def compared(self, logits: Tensor, position: int, path: Sequence[int] = ()) -> tuple[Tensor | None, Tensor]:
        """What the token of absolute `position` is the best of: ids [m] as in `kept`, and their scores [m].

        Log-weights with their noise; at temperature 0 the processed logits.
        """
        if self.settings.temperature == 0:
            return None, self._processed(logits, path)
        ids, weights = self.kept(logits, path)
        return ids, weights + self._noise_of(ids, weights, position)

    def _noise_of(self, ids: Tensor | None, weights: Tensor, position: int) -> Tensor:
        """Gumbel noise [m] of what `kept` gave."""
        if ids is None:
            return gumbel(self.noise.uniform_all("target", position, weights.shape[0], weights.device))
        return gumbel(self.noise.uniform("target", position, ids))

    def chain(self, logits: Tensor, position: int, path: Sequence[int] = ()) -> Tensor:
        """Rows [r, V] of consecutive positions -> ids [r]; each row follows the draws before it."""
        if self.greedy:
            return greedy_rows(logits)
        drawn: list[int] = []
        for row in logits:
            drawn.append(self.token(row, position + len(drawn), [*path, *drawn]))
        return torch.tensor(drawn, dtype=torch.int64, device=logits.device)

    def rows(self, logits: Tensor, position: int, draft: Tensor) -> Tensor:
        """The target's choice at every row: logits [1 + n, V], row i after the draft tokens before it -> ids [1 + n]."""
        if self.greedy:
            return greedy_rows(logits)
        path = draft.tolist() if self.settings.penalised else [0] * draft.shape[0]  # no penalty, no need to know
        drawn = [self.token(row, position + index, path[:index]) for index, row in enumerate(logits)]
        return torch.tensor(drawn, dtype=torch.int64, device=logits.device)

    def _processed(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        s = self.settings
        x = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        if s.penalised:
            x = self._penalised(x.clone(), path)
        if s.logit_bias:
            ids, bias = zip(*((i, b) for i, b in s.logit_bias if i < x.shape[0]), strict=True)
            x = x.index_add(0, torch.tensor(ids, device=x.device), torch.tensor(bias, dtype=x.dtype, device=x.device))
        return x

    def _penalised(self, x: Tensor, path: Sequence[int]) -> Tensor:
        s = self.settings
        answer = self._answer + Counter(path)
        if s.repeat_penalty != 1.0 and (seen := list({*self._context, *answer})):
            ids = torch.tensor(seen, device=x.device)
            rows = x[ids]
            x[ids] = torch.where(rows > 0, rows / s.repeat_penalty, rows * s.repeat_penalty)
        if answer and (s.presence_penalty or s.frequency_penalty):
            ids = torch.tensor(list(answer), device=x.device)
            counts = torch.tensor(list(answer.values()), dtype=x.dtype, device=x.device)
            x[ids] -= s.presence_penalty + s.frequency_penalty * counts
        return x


def in_target_ids(logits: Tensor, words: Tensor | None, vocab: int) -> Tensor:
    """[..., Vd] -> [..., V] of a drafter that knows only `words` [Vd]: all others get -inf. As it is where it knows all."""
    if words is None:
        return logits
    return logits.new_full((*logits.shape[:-1], vocab), -torch.inf).index_copy_(-1, words, logits)


def greedy_rows(logits: Tensor) -> Tensor:
    """[r, V] -> argmax of every row [r]. Raises ModelError for logits that are not finite."""
    fast = ops.fused(logits)
    best, ids = logits.max(-1) if fast is None else fast.best(logits)
    if not bool(best.isfinite().all()):
        raise ModelError("The model's output is not a number.", "Try --dtype fp32 or bf16.")
    return ids


def certainty(logits: Tensor) -> Tensor:
    """[..., V] -> [...] the share of each row's best id, 0 to 1; not finite where a row is no numbers."""
    fast = ops.fused(logits)
    if fast is None:
        return logits.softmax(-1, dtype=torch.float32).amax(-1)
    return fast.certainty(logits.reshape(-1, logits.shape[-1])).view(logits.shape[:-1])


def together(logits: Tensor, samplers: Sequence[Sampler], positions: Sequence[int]) -> list[int]:
    """The tokens of several answers, each as its own sampler draws it: logits [R, V], a row and a position for each.

    All samplers are `plain`. Raises ModelError for logits that are not finite.
    """
    made = torch.empty(len(samplers), dtype=torch.int64, device=logits.device)
    greedy = [row for row, sampler in enumerate(samplers) if sampler.greedy]
    drawing = [row for row, sampler in enumerate(samplers) if not sampler.greedy]
    if greedy:
        made[greedy] = greedy_rows(logits if not drawing else logits[greedy])
    if drawing:
        some = [samplers[row] for row in drawing]
        x, ids = (logits if not greedy else logits[drawing]).topk(some[0].settings.top_k)  # [r, k], best first
        if not bool(x[:, 0].isfinite().all()):
            raise ModelError("The model's output is not a number.", "Try --dtype fp32 or bf16.")
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        x = (x / x.new_tensor([sampler.settings.temperature for sampler in some])[:, None]).double()
        keys = torch.tensor([sampler.noise.key("target") for sampler in some], device=x.device)
        places = torch.tensor([positions[row] for row in drawing], device=x.device)
        x += gumbel(Noise.uniform_at(keys[:, None], places[:, None], ids))
        made[drawing] = ids.gather(1, x.argmax(-1, keepdim=True))[:, 0]
    return made.tolist()


class ChainSampler:
    """The tokens of one chain of at most `count`, picked one after the other from a drafter's rows of logits.

    They are coupled to the target's own noise or, where `probs` are wanted, drawn from the private stream with their laws
    told. How sure the drafter is of a token is known before it is picked, and `context.worth_drafting` may end the chain by that,
    `context.worth_extending` behind a token that was picked.
    `weighs` False: it is not looked at, so that passes which were captured ask the device for no more than they must.
    """

    def __init__(self, context: Context, count: int, *, weighs: bool = True) -> None:
        self._context, self._count, self._weighs = context, count, weighs
        self._laws: list[Tensor] = []
        self._held: list[float] = []
        self.path: list[int] = []
        self.broken = False  # a row was no numbers

    def add(self, logits: Tensor, own: Tensor | None = None, sure: float | None = None) -> bool:
        """Pick the next token by `logits` [V]; whether one more is wanted. Nothing is picked by a row that is no numbers.

        `own`: the same row in a shorter vocabulary [Vd], if the drafter has one; `sure`: what it holds of its best token, if
        it knows better than the row.
        """
        context, depth, row = self._context, len(self.path), logits if own is None else own
        held = float(certainty(row) if self._weighs else row.max())
        self.broken = not math.isfinite(held)
        held = held if sure is None else sure
        if self.broken or (
            self._weighs and context.worth_drafting is not None and not context.worth_drafting(depth, held)
        ):
            return False
        position = len(context.tokens) + depth
        if context.probs:
            law = context.to_probs(logits, self.path)
            self._laws.append(law)
            self.path.append(context.rng(position).draw(law))
        else:
            self.path.append(int(context.sample(logits[None], position, self.path)[0]))
        self._held.append(held)
        return len(self.path) < self._count and self._more(context)

    def _more(self, context: Context) -> bool:
        asks = self._weighs and context.worth_drafting is not None
        return not asks or context.worth_extending is None or context.worth_extending(len(self.path))

    def draft(self) -> Draft | None:
        """What was picked."""
        if not self.path:
            return None
        probs = torch.stack(self._laws) if self._laws else None
        held = torch.tensor(self._held) if self._weighs else None
        tokens = torch.tensor(self.path, device=None if probs is None else probs.device)
        return Draft(tokens, probs=probs, confidence=held)


def _nucleus(x: Tensor, ids: Tensor | None, mass: float) -> tuple[Tensor, Tensor]:
    """The smallest set of best ids that holds `mass`; log-weights and ids, best first.

    Sorting a whole vocabulary is slow, so the ids near the best are tried first; their share of the mass tells whether
    that is enough.
    """
    total, best = x.logsumexp(-1), x.max()
    for reach in _NEAR:
        pool = (x >= best - reach).nonzero()[:, 0]
        weights, order = x[pool].sort(descending=True, stable=True)
        share = (weights - total).double().exp()
        upto = share.cumsum(0)
        if upto[-1] >= mass:
            pool = pool[order[: int((upto - share < mass).sum())]]
            return x[pool], pool if ids is None else ids[pool]
    return x, ids if ids is not None else torch.arange(
        x.shape[0], device=x.device
    )  # rounding kept the sum below `mass`
