"""Makes the report of ``fairlead usage`` from what was recorded: sums, rows, cost lines, and the comparison of two periods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

import msgspec
from msgspec import Struct

from fairlead.controller.records_folder import Recorded, named
from fairlead.jobs.allocations import Allocation, joined
from fairlead.jobs.busy_definition import DEFINITION, Band, Ladder, Period, ladder, ladders_by, mix, with_capacity
from fairlead.jobs.cost_and_energy import CostLine, UsageOptions, cost_lines
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.node_rows import NodeEvent, NodeGpus
from fairlead.jobs.period_comparison import Comparison, Side, compared, gpus_by_node

DAYS_MAX = 400


class UsageInput(Struct, frozen=True, kw_only=True):
    """Holds what the report counts: the allocations, runs and nodes that a person has chosen."""

    allocations: tuple[Allocation, ...]
    runs: tuple[JobRun, ...]
    nodes: tuple[NodeGpus, ...] | None
    events: tuple[NodeEvent, ...] | None
    mistakes: tuple[str, ...]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Holds a report. rows: a ladder for each user, account or partition. days: a ladder for each day of the period."""

    period: Period
    sums: Ladder
    rows: tuple[tuple[str, Ladder], ...]
    days: tuple[Ladder, ...]
    mix: dict[str, float]
    costs: tuple[CostLine, ...]
    mistakes: tuple[str, ...]


def chosen(of: Recorded, nodes: frozenset[str] | None, partition: str, now: float) -> UsageInput:
    """Return what was recorded of these nodes and of this partition (None and "": of all)."""
    found = joined(of.runs, (record for _, record in of.records), now)
    names = nodes
    if partition and of.nodes is not None:
        of_partition = frozenset(node.node for node in of.nodes if partition in node.partitions)
        names = of_partition if names is None else names & of_partition
    return UsageInput(
        allocations=tuple(
            a for a in found.allocations if (nodes is None or a.node in nodes) and partition in ("", a.job.partition)
        ),
        runs=of.runs,
        nodes=None if of.nodes is None else tuple(n for n in of.nodes if names is None or n.node in names),
        events=of.events,
        mistakes=(*of.mistakes, *named(of.records, found.left_out)),
    )


def report(of: UsageInput, period: Period, key: Callable[[Allocation], str] | None, options: UsageOptions) -> UsageReport:
    """Return the report of a period."""
    sums = with_capacity(ladder(of.allocations, period), of.nodes, of.events, period)
    return UsageReport(
        period=period,
        sums=sums,
        rows=tuple(ladders_by(of.allocations, period, key)) if key is not None else (),
        days=tuple(with_capacity(ladder(of.allocations, day), of.nodes, of.events, day) for day in days(period)),
        mix=mix(of.allocations, period),
        costs=cost_lines(sums, options),
        mistakes=of.mistakes,
    )


def days(period: Period) -> list[Period]:
    """Return the days of a period, or its weeks if it has more than ``DAYS_MAX`` days."""
    step = 86400.0 if period.seconds <= DAYS_MAX * 86400 else max(7 * 86400.0, period.seconds / DAYS_MAX)
    count = -int(-period.seconds // step)
    begins = [period.begin_unix + step * i for i in range(count)]
    return [Period(begin, min(begin + step, period.end_unix)) for begin in begins]


def comparison(of: UsageInput, before: Period, after: Period, now: float) -> Comparison:
    """Return the comparison of two periods."""
    sides = []
    for period in (before, after):
        sums = with_capacity(ladder(of.allocations, period), of.nodes, of.events, period)
        sides.append(Side(period=period, sums=sums, mix=mix(of.allocations, period), gpus=gpus_by_node(of.allocations, period)))
    return compared(sides[0], sides[1], of.runs, now)


# -- JSON ---------------------------------------------------------------------------------------------


class LadderData(TypedDict):
    """The sums of a period in GPU-seconds, and ratios from 0 to 1. Absent: not known. A band: between two bounds."""

    jobs: int
    capacity_seconds: NotRequired[float]
    available_seconds: NotRequired[float]
    allocated_seconds: float
    measured_seconds: float
    unmeasured_seconds: float
    shared_seconds: float
    divided_seconds: float
    sm_measured_seconds: float
    energy_measured_seconds: float
    nodes_without_record: int
    busy_seconds: NotRequired[float]
    zero_seconds: NotRequired[float]
    sm_active_seconds: NotRequired[float]
    energy_joules: NotRequired[float]
    coverage: NotRequired[float | Band]
    allocated_of_capacity: NotRequired[float | Band]
    allocated_of_available: NotRequired[float | Band]
    busy_of_allocated: NotRequired[float | Band]
    busy_of_capacity: NotRequired[float | Band]
    sm_of_allocated: NotRequired[float | Band]
    sm_of_busy: NotRequired[float | Band]


class NamedLadder(LadderData):
    """The sums of one user, account or other key."""

    name: str


class PeriodData(TypedDict):
    """A period of time."""

    name: str
    begin_unix: float
    end_unix: float


class UsageData(TypedDict):
    """The usage of a period. costs: CostLine, without what is not known. mistakes: rows that could not be read."""

    definition: str
    period: PeriodData
    sum: LadderData
    rows: list[NamedLadder]
    mix_seconds: dict[str, float]
    costs: list[dict[str, Any]]
    mistakes: list[str]


class ComparedSide(LadderData):
    """One side of a comparison."""

    period: PeriodData
    mix_seconds: dict[str, float]
    nodes: int
    gpus: int


class ComparisonData(TypedDict):
    """Two periods."""

    definition: str
    refused: list[str]
    before: ComparedSide
    after: ComparedSide


class RefusedData(TypedDict):
    """Why two periods cannot be compared."""

    definition: str
    refused: list[str]


def data(report: UsageReport) -> UsageData:
    """Return the report as values for JSON. Seconds are GPU-seconds. What is not known is absent."""
    return {
        "definition": DEFINITION,
        "period": _period(report.period),
        "sum": figures(report.sums),
        "rows": [{"name": name, **figures(sums)} for name, sums in report.rows],
        "mix_seconds": report.mix,
        "costs": [_known(msgspec.to_builtins(line)) for line in report.costs],
        "mistakes": list(report.mistakes),
    }


def comparison_data(found: Comparison) -> ComparisonData | RefusedData:
    """Return a comparison as values for JSON. A refused comparison has no figures."""
    if found.refused:
        return {"definition": found.definition, "refused": list(found.refused)}
    sides: dict[str, ComparedSide] = {
        name: {
            "period": _period(side.period),
            **figures(side.sums),
            "mix_seconds": side.mix,
            "nodes": len(side.gpus),
            "gpus": sum(map(len, side.gpus.values())),
        }
        for name, side in (("before", found.before), ("after", found.after))
    }
    return {"definition": found.definition, "refused": [], "before": sides["before"], "after": sides["after"]}


def figures(sums: Ladder) -> LadderData:
    """Return the sums of a ladder in GPU-seconds and its ratios, without what is not known."""
    ratios: dict[str, float | Band | None] = {
        "coverage": sums.coverage,
        "allocated_of_capacity": sums.allocated_of_capacity,
        "allocated_of_available": sums.allocated_of_available,
        "busy_of_allocated": sums.busy_of_allocated,
        "busy_of_capacity": sums.busy_of_capacity,
        "sm_of_allocated": sums.sm_of_allocated,
        "sm_of_busy": sums.sm_of_busy,
    }
    measured = {
        "busy_seconds": sums.busy if sums.seen else None,
        "zero_seconds": sums.zero if sums.seen else None,
        "sm_active_seconds": sums.sm if sums.sm_seen else None,
        "energy_joules": sums.energy_joules if sums.energy_seen else None,
    }
    known: Any = _known(
        {
            "jobs": sums.jobs,
            "capacity_seconds": sums.capacity,
            "available_seconds": sums.available,
            "allocated_seconds": sums.allocated,
            "measured_seconds": sums.seen,
            "unmeasured_seconds": sums.unmeasured,
            "shared_seconds": sums.shared,
            "divided_seconds": sums.divided,
            "sm_measured_seconds": sums.sm_seen,
            "energy_measured_seconds": sums.energy_seen,
            "nodes_without_record": sums.nodes_without_record,
            **measured,
            **{name: msgspec.to_builtins(value) for name, value in ratios.items()},
        }
    )
    found: LadderData = known
    return found


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}


def _period(period: Period) -> PeriodData:
    return {"name": period.name, "begin_unix": period.begin_unix, "end_unix": period.end_unix}
