"""Decides whether two periods may be compared, and what a claim "before and after" has to show.

A comparison needs: the same figure of the same definition, at least four weeks each, periods that are over and do not overlap,
the same GPUs, a coverage of at least 95 %, unmeasured time as a band, and the mix of jobs. It is refused if one of them is
missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from fairlead.jobs.allocations import Allocation
from fairlead.jobs.busy_definition import DEFINITION, Ladder, Period
from fairlead.jobs.job_run import JobRun
from fairlead.model.nodelist import fold

DAY = 86400.0
SECONDS_MIN = 28 * DAY
COVERAGE_MIN = 0.95
#: Accounting that does not reach over the whole period would count less. Each end of a period needs a job within this time.
EDGE_SECONDS = 3 * DAY


class Side(Struct, frozen=True, kw_only=True):
    """Holds one period of a comparison. gpus: the UUIDs that records name, by node."""

    period: Period
    sums: Ladder
    mix: dict[str, float]
    gpus: dict[str, frozenset[str]]


class Comparison(Struct, frozen=True, kw_only=True):
    """Holds both periods, or in ``refused`` each condition that is not met, with what to do."""

    definition: str
    before: Side
    after: Side
    refused: tuple[str, ...] = ()


def gpus_by_node(allocations: Iterable[Allocation], period: Period) -> dict[str, frozenset[str]]:
    """Return the GPUs that records of this period name, by node."""
    found: dict[str, set[str]] = {}
    for each in allocations:
        if each.record is not None and period.part(each.begin_unix, each.end_unix):
            # Of a MIG device the GPU counts: the devices of a GPU may be made anew for each job.
            found.setdefault(each.node, set()).update(gpu.pci if gpu.mig else gpu.uuid for gpu in each.record.gpus)
    return {node: frozenset(gpus) for node, gpus in found.items() if gpus}


def compared(before: Side, after: Side, runs: Sequence[JobRun], now: float) -> Comparison:
    """Return both sides, with each condition that they do not meet."""
    refused = [*_of_periods(before.period, after.period, now)]
    for side in (before, after):
        refused += _of_side(side, runs)
    refused += _of_gpus(before.gpus, after.gpus)
    return Comparison(definition=DEFINITION, before=before, after=after, refused=tuple(refused))


def _of_periods(before: Period, after: Period, now: float) -> Iterable[str]:
    for period in (before, after):
        if period.seconds < SECONDS_MIN:
            yield f"{period.name} has {period.seconds / DAY:.1f} days, and a comparison needs at least {SECONDS_MIN / DAY:.0f}"
        if period.end_unix > now:
            yield f"{period.name} is not over"
    if before.begin_unix < after.end_unix and after.begin_unix < before.end_unix:
        yield f"{before.name} and {after.name} overlap"


def _of_side(side: Side, runs: Sequence[JobRun]) -> Iterable[str]:
    name, sums = side.period.name, side.sums
    if sums.coverage is None:
        yield f"{name} has no job with a GPU"
        return
    if sums.coverage < COVERAGE_MIN:
        lost = f"{sums.nodes_without_record} times a node gave no record" if sums.nodes_without_record else "there are gaps"
        yield f"{name} has a coverage of {sums.coverage:.1%}, and a comparison needs {COVERAGE_MIN:.0%} ({lost})"
    if sums.capacity is None:
        yield f"the capacity in {name} is not known: sinfo has to answer, or its output has to be in nodes.psv"
    first, last = side.period.begin_unix + EDGE_SECONDS, side.period.end_unix - EDGE_SECONDS
    for words, edge in (("first", Period(side.period.begin_unix, first)), ("last", Period(last, side.period.end_unix))):
        if not any(edge.part(run.begin_unix, run.end_unix) for run in runs):
            yield f"there is no job in the {words} {EDGE_SECONDS / DAY:.0f} days of {name}: do the rows of sacct cover it?"


def _of_gpus(before: dict[str, frozenset[str]], after: dict[str, frozenset[str]]) -> Iterable[str]:
    same = [node for node in before if before[node] == after.get(node)]
    other = sorted((before.keys() | after.keys()) - set(same))
    if other:
        step = f"compare only nodes with the same GPUs: --nodelist '{fold(same)}'" if same else "no node has the same GPUs"
        yield f"the records do not name the same GPUs on {fold(other)[:200]}; {step}"
