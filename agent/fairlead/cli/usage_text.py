"""Writes a usage report as text and as CSV. A percentage is computed here and nowhere else."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TextIO

from fairlead.cli.output import columns
from fairlead.cli.time_options import local
from fairlead.cli.usage_report import UsageReport, figures
from fairlead.jobs.busy_definition import DEFINITION, Band, Ladder, Period
from fairlead.jobs.cost_and_energy import CostLine
from fairlead.jobs.period_comparison import Comparison

NOT_KNOWN = "not known"
MISTAKES_MAX = 10


def warn(mistakes: Sequence[str], out: TextIO) -> None:
    """Print what could not be read, at most ``MISTAKES_MAX`` lines of it."""
    for line in mistakes[:MISTAKES_MAX]:
        print(f"fairlead usage: {line}", file=out)
    if len(mistakes) > MISTAKES_MAX:
        print(f"fairlead usage: {len(mistakes) - MISTAKES_MAX} more such lines (--json has all)", file=out)


def text(report: UsageReport, by: str) -> str:
    """Return a report for people."""
    sums = report.sums
    out = [f"{report.period.name}: {span_words(report.period)}; definition {DEFINITION}; {sums.jobs} jobs with GPUs", ""]
    out.append(columns(figure_rows(sums)))
    if report.rows:
        out += ["", columns([row_cells(name, row) for name, row in report.rows], head(by))]
    out += ["", columns([cost_cells(line) for line in report.costs])]
    out += ["", "allocated GPU-hours by kind of job: " + mix_words(report.mix)]
    return "\n".join(out)


def head(by: str) -> tuple[str, ...]:
    """Return the names of the columns of ``row``."""
    return (by.upper(), "JOBS", "GPU-HOURS", "BUSY", "SM/BUSY", "AT 0 %", "COVERAGE", "KWH")


def row_cells(name: str, sums: Ladder) -> tuple[str, ...]:
    return (
        name or "-",
        str(sums.jobs),
        hours(sums.allocated),
        band(sums.busy_of_allocated),
        percent(sums.sm_of_busy),
        hours(sums.zero) if sums.seen else NOT_KNOWN,
        percent(sums.coverage),
        f"{sums.energy_joules / 3.6e6:,.1f}" if sums.energy_seen else NOT_KNOWN,
    )


def figure_rows(sums: Ladder) -> list[tuple[str, ...]]:
    """Return the ladder as rows: figure, GPU-hours, part of what."""
    no_nodes = "not known: neither sinfo nor nodes.psv says it"
    no_events = "not known: neither sacctmgr nor events.psv says it" if sums.capacity is not None else no_nodes
    rows = [
        ("capacity", hours(sums.capacity) if sums.capacity is not None else no_nodes, ""),
        ("available", hours(sums.available) if sums.available is not None else no_events, ""),
        (
            "allocated",
            hours(sums.allocated),
            _of((sums.allocated_of_capacity, "capacity"), (sums.allocated_of_available, "available")),
        ),
    ]
    busy = f"{band(sums.busy_of_allocated)} of allocated"
    if sums.busy_of_capacity is not None:
        busy += f"; {band(sums.busy_of_capacity)} of capacity"
    rows.append(("busy", hours(sums.busy), busy) if sums.seen else ("busy", NOT_KNOWN, "no record measured a GPU"))
    sm = f"{percent(sums.sm_of_busy)} of busy; {band(sums.sm_of_allocated)} of allocated"
    rows.append(("SM-active", hours(sums.sm), sm) if sums.sm_seen else ("SM-active", NOT_KNOWN, "no GPU with GPM"))
    rows.append(("at 0 %", hours(sums.zero) if sums.seen else NOT_KNOWN, "allocated, and no kernel ran between two readings"))
    why = f"coverage {percent(sums.coverage)}; {sums.nodes_without_record} times a node gave no record"
    rows.append(("unmeasured", hours(sums.unmeasured), why))
    if sums.shared:
        rows.append(("shared", hours(sums.shared), "GPUs that several jobs had at once; in no figure above"))
    if sums.divided:
        rows.append(("divided", hours(sums.divided), "of jobs that lie partly in the period: the same part of each sum counts"))
    return [("", "GPU-hours", ""), *rows]


def _of(*ratios: tuple[float | None, str]) -> str:
    return "; ".join(f"{percent(value)} of {name}" for value, name in ratios if value is not None)


def cost_cells(line: CostLine) -> tuple[str, str, str]:
    """Return a line of cost, energy or carbon as cells: name, value with unit, basis."""
    if line.low is None or line.high is None:
        return (line.name, "left out", line.left_out)
    same = f"{line.low:,.1f}" == f"{line.high:,.1f}"
    value = f"{line.low:,.1f}" if same else f"{line.low:,.1f} to {line.high:,.1f}"
    return (line.name, f"{value} {line.unit}".rstrip(), line.basis)


def comparison(found: Comparison) -> str:
    """Return a comparison for people, or each condition that it does not meet."""
    if found.refused:
        return "\n".join(["refused: this comparison would show nothing", *(f"  {line}" for line in found.refused)])
    sides = (found.before, found.after)
    rows = [
        ("period", *(span_words(side.period) for side in sides)),
        ("days", *(f"{side.period.seconds / 86400:.1f}" for side in sides)),
        ("nodes, GPUs", *(f"{len(side.gpus)}, {sum(map(len, side.gpus.values()))} (the same)" for side in sides)),
        ("coverage", *(percent(side.sums.coverage) for side in sides)),
        ("allocated of capacity", *(percent(side.sums.allocated_of_capacity) for side in sides)),
        ("busy of allocated", *(band(side.sums.busy_of_allocated) for side in sides)),
        ("SM-active of busy", *(percent(side.sums.sm_of_busy) for side in sides)),
        ("busy of capacity", *(band(side.sums.busy_of_capacity) for side in sides)),
        ("unmeasured GPU-hours", *(hours(side.sums.unmeasured) for side in sides)),
    ]
    for kind in found.before.mix:
        rows.append((f"mix: {kind}", *(_part(side.mix, kind) for side in sides)))
    table = columns(rows, ("", found.before.period.name, found.after.period.name))
    return f"definition {found.definition}; a band counts unmeasured time once as 0 and once as busy\n\n{table}"


def _part(mix: dict[str, float], kind: str) -> str:
    total = sum(mix.values())
    return f"{mix[kind] / total:.1%}" if total else NOT_KNOWN


def csv_rows(report: UsageReport, by: str) -> str:
    """Return a row for each name and one for the sum, as CSV (RFC 4180). A cell is empty if its value is not known."""
    rows = [*report.rows, ("sum", report.sums)]
    cells = [_flat(figures(sums)) for _, sums in rows]
    names = list(dict.fromkeys(name for row in cells for name in row))
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([by, "definition", "period", *names])
    for (name, _), row in zip(rows, cells, strict=True):
        writer.writerow([_cell(name), DEFINITION, report.period.name, *(row.get(n, "") for n in names)])
    return out.getvalue()


def _cell(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{name}" if name[:1] in "=+-@" else name


def _flat(values: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}_{end}": inner for end, inner in value.items()}
        else:
            found[name] = value
    return found


def hours(seconds: float | None) -> str:
    return NOT_KNOWN if seconds is None else f"{seconds / 3600:,.1f}"


def percent(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.1%}"


def band(value: Band | None) -> str:
    """Return ``71.0% (69.1% to 72.4%)``, or one percentage if all time was measured."""
    if value is None:
        return NOT_KNOWN
    ends = (f"{value.low:.1%}", f"{value.high:.1%}")
    return f"{value.measured:.1%}" if ends[0] == ends[1] else f"{value.measured:.1%} ({ends[0]} to {ends[1]})"


def span_words(period: Period) -> str:
    return f"{local(period.begin_unix)[:10]} to {local(period.end_unix - 1)[:10]}"


def mix_words(mix: dict[str, float]) -> str:
    found = [f"{kind} {hours(seconds)}" for kind, seconds in mix.items() if seconds]
    return ", ".join(found) or "none"
