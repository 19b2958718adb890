"""What a user may say of the training of an EAGLE draft."""

from __future__ import annotations

from typing import Literal

import msgspec


class Settings(msgspec.Struct, kw_only=True):
    """What may be said with `--option`; `noise` and `token` for version 1, `steps`, `decay`, `layers` and `head` for 3."""

    version: Literal[1, 3] = 3
    words: int = 16384  # of the draft's head (version 1: that the loss looks at); 0: all
    steps: int = 3  # that are unrolled
    decay: float = 0.8  # of the weight of each further step
    layers: tuple[int, ...] | None = None  # numbers of the three states; None: as EAGLE-3 takes them
    width: int | None = None  # of the MLP inside; None: the target's
    head: bool = False  # its output rows are trained too
    noise: float = 0.1  # that is added to the target's states, up to so much either way
    token: float = 0.1  # weight of the loss on tokens beside that on states

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.decay <= 1 or self.words < 0:
            raise ValueError("steps must be at least 1, decay between 0 and 1, words 0 or more")
        if self.noise < 0 or self.token < 0:
            raise ValueError("noise and token must be 0 or more")
