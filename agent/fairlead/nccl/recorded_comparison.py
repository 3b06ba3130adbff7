"""Compares two recorded outputs of nccl-tests size by size, and says which sizes differ and by how much.

The unit is a launch. If both outputs have several launches, the sizes are tested as ``launch_statistics`` says, without blocks,
because nobody knows in which order the launches ran. One launch on a side says nothing about the noise between launches. Then a
size counts as different if it differs by more than the floor that the caller gives, and the interval is that over the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from fairlead.errors import DataError
from fairlead.nccl.launch_figures import times
from fairlead.nccl.launch_statistics import Effect, differences, median
from fairlead.nccl.results import NcclTestRun

SEED = 1
LAUNCHES_MIN = 4  # with 4 launches on each side the smallest p-value is 0.029
LAUNCHES_MAX = 40


class ComparedSize(Struct, frozen=True, kw_only=True):
    """Holds one size. a_us, b_us: the median times. gain: by what fraction B is faster. low, high: the interval over launches, or
    None with few launches. differs: the size counts as different."""

    bytes: int
    a_us: float
    b_us: float
    gain: float
    low: float | None = None
    high: float | None = None
    differs: bool = False


class RecordedComparison(Struct, frozen=True, kw_only=True):
    """Holds a comparison. gain, low, high: over all sizes. launches: of A and B. only_a, only_b: sizes that one side lacks."""

    collective: str
    ranks: int | None
    launches: tuple[int, int]
    sizes: tuple[ComparedSize, ...]
    gain: float
    low: float
    high: float
    floor: float
    only_a: tuple[int, ...] = ()
    only_b: tuple[int, ...] = ()

    @property
    def tested(self) -> bool:
        return min(self.launches) >= LAUNCHES_MIN

    @property
    def differing(self) -> tuple[ComparedSize, ...]:
        return tuple(each for each in self.sizes if each.differs)

    @property
    def slower(self) -> str:
        """Return "A" or "B" if this side is slower at more sizes than it is faster, else ""."""
        balance = sum(1 if each.gain > 0 else -1 for each in self.differing)
        return "A" if balance > 0 else "B" if balance < 0 else ""


def compare(a: Sequence[NcclTestRun], b: Sequence[NcclTestRun], floor: float) -> RecordedComparison:
    """Return the comparison of the runs of two outputs. Raises DataError if they cannot be compared."""
    if max(len(a), len(b)) > LAUNCHES_MAX:
        raise DataError(f"more than {LAUNCHES_MAX} launches in one output", hint="compare fewer of them")
    kinds = {run.collective for run in (*a, *b)} - {None}
    if len(kinds) > 1:
        raise DataError(
            f"they are of different collectives: {', '.join(sorted(filter(None, kinds)))}", hint="record the same one"
        )
    ranks = {run.ranks for run in (*a, *b)} - {None}
    if len(ranks) > 1:
        raise DataError(f"they are of {' and '.join(map(str, sorted(filter(None, ranks))))} ranks", hint="record the same number")
    sides = [times(run) for run in a], [times(run) for run in b]
    every = [set.union(set(), *map(set, side)) for side in sides]
    common = sorted(size for size in every[0] & every[1] if all(size in launch for side in sides for launch in side))
    if not common:
        raise DataError("they have no size in common", hint="record both with the same -b, -e and -f")
    sizes = _sizes(common, sides, floor)
    return RecordedComparison(
        collective=next(iter(kinds), None) or "unknown collective",
        ranks=next(iter(ranks), None),
        launches=(len(a), len(b)),
        sizes=sizes,
        floor=floor,
        only_a=tuple(sorted(every[0] - set(common))),
        only_b=tuple(sorted(every[1] - set(common))),
        **_over_sizes([each.gain for each in sizes]),
    )


def _sizes(
    common: Sequence[int], sides: tuple[Sequence[dict[int, float]], Sequence[dict[int, float]]], floor: float
) -> tuple[ComparedSize, ...]:
    values = {size: ([launch[size] for launch in sides[0]], [launch[size] for launch in sides[1]]) for size in common}
    if min(map(len, sides)) >= LAUNCHES_MIN:
        floors = {str(size): floor for size in common}
        tested = differences({str(size): [both] for size, both in values.items()}, SEED, floors=floors)
        return tuple(
            ComparedSize(
                bytes=int(d.name),
                a_us=median(values[int(d.name)][0]),
                b_us=median(values[int(d.name)][1]),
                gain=d.gain,
                low=d.low,
                high=d.high,
                differs=d.effect is not Effect.NONE,
            )
            for d in tested
        )
    found = []
    for size, (a, b) in values.items():
        gain = median(a) / median(b) - 1
        found.append(ComparedSize(bytes=size, a_us=median(a), b_us=median(b), gain=gain, differs=abs(math.log1p(gain)) > floor))
    return tuple(found)


def _over_sizes(gains: Sequence[float]) -> dict[str, float]:
    """Return the median over the sizes, and between which values nine tenths of the sizes lie."""
    ordered = sorted(gains)
    edge = int(0.05 * len(ordered))
    return {"gain": median(ordered), "low": ordered[edge], "high": ordered[-1 - edge]}
