"""Sums up one launch of nccl-tests as times by message size, and puts the sizes into four groups.

NCCL chooses algorithm and protocol by size, so a change may help small messages and harm large ones. Every group is one
comparison, because each further comparison needs more launches (``launch_statistics``). Times are compared, because the
bandwidths of small sizes have too few digits. A time that is 5 % shorter is a bandwidth that is 5 % higher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairlead.errors import DataError
from fairlead.nccl.results import NcclTestRun

#: The groups of sizes, by their largest size in bytes.
GROUPS = ((64 << 10, "up to 64 KiB"), (1 << 20, "up to 1 MiB"), (32 << 20, "up to 32 MiB"))
ABOVE = "above 32 MiB"


def group_of(size: int) -> str:
    """Return the name of a size's group."""
    return next((name for most, name in GROUPS if size <= most), ABOVE)


def times(run: NcclTestRun) -> dict[int, float]:
    """Return the time of each size in microseconds: the geometric mean of out-of-place and in-place, and of equal rows.

    Raises DataError for a time that cannot be compared.
    """
    logs: dict[int, list[float]] = {}
    for row in run.rows:
        if not 0 < row.time_us < math.inf:
            raise DataError(f"the time of {row.bytes} bytes is {row.time_us:g} us, which cannot be compared")
        logs.setdefault(row.bytes, []).append(math.log(row.time_us))
    return {size: math.exp(sum(each) / len(each)) for size, each in sorted(logs.items())}


def grouped(by_size: Mapping[int, float]) -> dict[str, float]:
    """Return the geometric mean of the times in each group of sizes."""
    logs: dict[str, list[float]] = {}
    for size, time in by_size.items():
        logs.setdefault(group_of(size), []).append(math.log(time))
    return {name: math.exp(sum(each) / len(each)) for name, each in logs.items()}


def blocks_by_group(
    blocks: Sequence[tuple[Sequence[Mapping[int, float]], Sequence[Mapping[int, float]]]],
) -> dict[str, list[tuple[list[float], list[float]]]]:
    """Return the times of A and B by group and block, for ``launch_statistics``. Raises DataError if launches differ in sizes."""
    found: dict[str, list[tuple[list[float], list[float]]]] = {}
    sizes = {tuple(launch) for a, b in blocks for launch in (*a, *b)}
    if len(sizes) != 1:
        raise DataError("the launches do not have the same sizes", hint="let both commands use the same -b, -e and -f")
    for a, b in blocks:
        sides = [grouped(launch) for launch in a], [grouped(launch) for launch in b]
        for name in sides[0][0]:
            found.setdefault(name, []).append(([each[name] for each in sides[0]], [each[name] for each in sides[1]]))
    return found
