"""Logits -> distribution -> token, once for everybody: target and drafter, drafted and plain, greedy and sampled.

`device` does the same with tensors alone.

Order: repeat, presence and frequency penalties, logit bias, temperature, top-k, top-p, min-p. The repeat penalty counts
the whole context, the other two the answer only; tokens of a draft count for the rows after them.

Letters: `V` vocabulary, `m` ids that the filters left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.core.base.errors import ModelError
from outrider.core.base.protocol import Sampling
from outrider.core.model.kernels import ops

from .noise import Noise, gumbel

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
    """Draws the tokens of one answer. `context` are the ids of the prompt; `commit` adds what was emitted.

    `rule`: how drafts are accepted: match, rejection or typical.
    """

    def __init__(self, settings: Settings, noise: Noise, context: Sequence[int] = (), rule: str = "match") -> None:
        self.settings = settings
        self.noise = noise
        self.rule = rule
        self.greedy = settings.temperature == 0 and not settings.penalised and not settings.logit_bias
        """Temperature 0 and nothing that changes logits: argmax of the raw rows."""
        self._context = Counter(context) if settings.repeat_penalty != 1.0 else Counter[int]()
        self._answer: Counter[int] = Counter()

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
            raise not_a_number()
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
        raise not_a_number()
    return ids


def not_a_number() -> ModelError:
    """For logits that are not finite."""
    return ModelError("The model's output is not a number.", "Try --dtype fp32 or bf16.")


def certainty(logits: Tensor) -> Tensor:
    """[..., V] -> [...] the share of each row's best id, 0 to 1; not finite where a row is no numbers."""
    fast = ops.fused(logits)
    if fast is None:
        return logits.softmax(-1, dtype=torch.float32).amax(-1)
    return fast.certainty(logits.reshape(-1, logits.shape[-1])).view(logits.shape[:-1])


def _nucleus(x: Tensor, ids: Tensor | None, mass: float) -> tuple[Tensor, Tensor]:
    """The smallest set of best ids that holds `mass`; log-weights and ids, best first.

    Sorting a whole vocabulary is slow, so the ids near the best are tried first; their share of the mass shows whether
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
