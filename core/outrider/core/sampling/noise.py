"""Counter-based noise: every random number is a pure function of (seed, stream, position, token id).

Nothing is consumed, so the text of an answer depends on weights, prompt and seed alone, whoever drafts. Streams are
separated by key: `target` draws tokens, `draft` is a drafter's own, `accept` and `residual` belong to the rejection rule.

The hash is a multiply-xorshift finaliser on 64 bits (David Stafford's variant 13 constants, as in SplitMix64).
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor

STREAMS = {"target": 1, "draft": 2, "accept": 3, "residual": 4}

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # odd: id -> id * _STEP is a bijection
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def fresh_seed() -> int:
    """A new 63-bit seed."""
    return secrets.randbits(63)


def _mix(x: int) -> int:
    x = (x ^ (x >> 30)) * _M1 & _MASK
    x = (x ^ (x >> 27)) * _M2 & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _mix_(x: Tensor) -> Tensor:
    """`_mix` on int64, in place; int64 products wrap, shifts are made logical by a mask."""
    scratch = torch.empty_like(x)
    for shift, factor in ((30, _M1), (27, _M2), (31, 0)):
        torch.bitwise_right_shift(x, shift, out=scratch)
        scratch &= (1 << (64 - shift)) - 1
        x ^= scratch
        if factor:
            x *= _signed(factor)
    return x


class Noise:
    """The random numbers of one request."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._keys = {name: _mix(seed * _STEP + number & _MASK) for name, number in STREAMS.items()}
        self._stepped: Tensor | None = None  # id * _STEP for a whole vocabulary

    def uniform(self, stream: str, position: int, ids: Tensor) -> Tensor:
        """Float64 in (0, 1), one for each of `ids` (int64, any shape): (h + 0.5) / 2^52 with 52 bits of hash."""
        x = ids * _signed(_STEP)
        x += _signed(_mix(self._keys[stream] + position * _STEP & _MASK))
        return self._finish(x)

    def uniform_all(self, stream: str, position: int, vocab: int, device: torch.device) -> Tensor:
        """`uniform` for ids 0 … vocab - 1, [V]."""
        if self._stepped is None or self._stepped.shape[0] != vocab or self._stepped.device != device:
            self._stepped = torch.arange(vocab, device=device) * _signed(_STEP)
        return self._finish(self._stepped + _signed(_mix(self._keys[stream] + position * _STEP & _MASK)))

    def key(self, stream: str) -> int:
        """What separates a stream of this request from all others, as int64."""
        return _signed(self._keys[stream])

    @staticmethod
    def uniform_at(key: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
        """`uniform` of a stream's `key` where only the device knows it and the positions; all broadcast together."""
        return Noise._finish(ids * _signed(_STEP) + _mix_(key + positions * _signed(_STEP)))

    def coin(self, position: int, chance: float, turn: int = 0) -> bool:
        """True with probability `chance`, from the `accept` stream; `turn` separates coins of one position."""
        return float(self.uniform("accept", position, torch.tensor(turn, dtype=torch.int64))) < chance

    def draw(self, stream: str, position: int, probs: Tensor) -> int:
        """One id from `probs` [V] (non-negative, any sum), by the largest log p + Gumbel."""
        ids = probs.nonzero()[:, 0]
        scores = probs[ids].double().log() + gumbel(self.uniform(stream, position, ids))
        return int(ids[scores.argmax()])

    def draft_stream(self, position: int, root: int = 0) -> DraftStream:
        """The private noise of a drafter for one position in the round of that root.

        The next round has other noise: what is chosen there may depend on what was drawn in this one and never verified.
        """
        return DraftStream(self, position + (root << 32))

    @staticmethod
    def _finish(x: Tensor) -> Tensor:
        _mix_(x)
        x >>= 12
        x &= (1 << 52) - 1
        return x.double().add_(0.5).mul_(2.0**-52)


class DraftStream:
    """All that a drafter sees of the noise: draws from its own stream."""

    def __init__(self, noise: Noise, position: int) -> None:
        self._noise, self._position = noise, position

    def draw(self, probs: Tensor) -> int:
        """One id drawn from `probs` [V]."""
        return self._noise.draw("draft", self._position, probs)


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from uniforms in (0, 1)."""
    return uniform.log().neg_().log_().neg_()
