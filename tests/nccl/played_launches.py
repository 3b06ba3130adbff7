"""Times of launches whose truth is known: gains at some sizes, noise, drift, and launches that something disturbs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

SIZES = (8 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20, 128 << 20, 1 << 30)


@dataclass
class PlayedCluster:
    """noise: the spread of a launch (standard deviation of the logarithm). drift: how much slower the end of a run of about 50
    launches is than its begin. tails: which part of all launches is disturbed, by 5 to 30 %. gains: what B gains, by size."""

    chance: random.Random
    noise: float = 0.01
    drift: float = 0.0
    tails: float = 0.0
    gains: Mapping[int, float] = field(default_factory=dict)
    launched: int = 0

    def launch(self, arm: str) -> dict[int, float]:
        """Times by size. A launch has one common disturbance, and its sizes have a little noise of their own."""
        self.launched += 1
        common = self.chance.gauss(0, self.noise) + math.log1p(self.drift) * self.launched / 50
        if self.chance.random() < self.tails:
            common += math.log(1 / (1 - self.chance.uniform(0.05, 0.30)))
        gains = self.gains if arm == "B" else {}
        return {
            size: (10 + size / 4e5) * math.exp(common + self.chance.gauss(0, self.noise / 2)) / (1 + gains.get(size, 0.0))
            for size in SIZES
        }

    def blocks(self, count: int, other: str) -> list[tuple[list[dict[int, float]], list[dict[int, float]]]]:
        """Blocks of A B B A and B A A B in turn."""
        found = []
        for at in range(count):
            order = ("A", other, other, "A") if at % 2 == 0 else (other, "A", "A", other)
            sides: tuple[list[dict[int, float]], list[dict[int, float]]] = ([], [])
            for number, arm in enumerate(order):
                first = (number in (0, 3)) == (at % 2 == 0)
                sides[0 if first else 1].append(self.launch(arm))
            found.append(sides)
        return found
