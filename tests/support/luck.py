"""Exact laws: a piece of code that tosses coins and draws is run once for every way these can turn out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Luck:
    """Takes every branch of coins and draws once; `weight` is the probability of the one that is being taken."""

    script: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    at: int = 0
    weight: float = 1.0

    def branch(self, chances: Sequence[float]) -> int:
        possible = [index for index, chance in enumerate(chances) if chance > 0]
        if self.at == len(self.script):
            self.script.append(0)
            self.sizes.append(len(possible))
        choice = possible[self.script[self.at]]
        self.at += 1
        self.weight *= chances[choice]
        return choice

    def coin(self, position: int, chance: float, turn: int = 0) -> bool:
        return self.branch([chance, 1 - chance]) == 0

    def draw(self, stream: str, position: int, probs: Tensor) -> int:
        return self.branch((probs / probs.sum()).tolist())

    def rounds(self) -> Iterator[Luck]:
        """Itself, once for every way."""
        while True:
            self.at, self.weight = 0, 1.0
            yield self
            while self.script and self.script[-1] + 1 == self.sizes[-1]:
                self.script.pop()
                self.sizes.pop()
            if not self.script:
                return
            self.script[-1] += 1
