"""Reads the output of nccl-tests for one collective on one node. One process drives all GPUs (option -g), so no MPI is needed.

The figure is the bus bandwidth at the largest size, as the mean of out-of-place and in-place. A run with one size prints this
mean as "Avg bus bandwidth", and the public reference figures come from such runs. ``fairlead.nccl.results`` counts the wrong
values. One wrong value in any row is a failure.
"""

from __future__ import annotations

import re

from fairlead.errors import DataError
from fairlead.measure.tool import Figure, MeasuredOutcome, Tool, ToolReading, last_line, unread
from fairlead.nccl.results import NcclTestRun, parse

# These errors say that the run could not be set up, or that its text is damaged. They say nothing about the GPUs.
_NOT_OF_THE_GPUS = re.compile(
    r"row cannot be read|no row of results|not enough slots|without MPI|srun: (?:error|Job step)|slurmstepd: error|Killed$"
)
_SIZES = re.compile(r"^.*\bminBytes (\d{1,18}) maxBytes \d+ step: (\d{1,18})\((factor|bytes)\)", re.M)
_LIBRARY = re.compile(r"^# nccl-tests version .*\bnccl-library=(\d{1,9})", re.M)
_SAID_VERSION = re.compile(r"NCCL version (\d[\w.]*?)(?:\+cuda(\d[\d.]*))?\s", re.M)


def read(collective: str, out: str, err: str) -> ToolReading:
    """Return the reading of an output of ``collective``. Errors that ranks wrote to standard error count like errors in standard
    output."""
    try:
        aside = tuple(e for run in parse(err) for e in run.errors)
    except DataError:
        aside = ()
    try:
        runs = parse(out)
    except DataError:
        if bad := [e for e in aside if not _NOT_OF_THE_GPUS.search(e)]:
            return ToolReading(outcome=MeasuredOutcome.FAIL, why=bad[0])
        return unread("no output of nccl-tests", out, err)
    run = runs[-1]
    versions = _versions(run, out)
    rows = [row for each in runs for row in each.rows]
    errors = tuple(e for each in runs for e in each.errors) + aside
    wrong = sum(each.wrong_total for each in runs)
    bad = [e for e in errors if not _NOT_OF_THE_GPUS.search(e)]
    if wrong:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=f"{wrong} wrong values", ranks=run.ranks, versions=versions)
    if bad:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=bad[0], ranks=run.ranks, versions=versions)
    if errors:
        return ToolReading(
            outcome=MeasuredOutcome.UNKNOWN, why=f"damaged or not set up: {errors[0]}", ranks=run.ranks, versions=versions
        )
    if not all(each.complete for each in runs) or not rows:
        why = f"incomplete, its footer is missing: {so_far(out)}"
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=why, ranks=run.ranks, versions=versions)
    if any(each.collective not in (None, collective) for each in runs):
        return ToolReading(
            outcome=MeasuredOutcome.UNKNOWN, why=f"it is of {run.collective}, not of {collective}", versions=versions
        )
    if hole := _hole(out, {row.bytes for row in rows}):
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"damaged: {hole}", ranks=run.ranks, versions=versions)
    size = max(row.bytes for row in rows)
    sides = [row.busbw_gbps for row in rows if row.bytes == size]
    figure = Figure(name="busbw", value=sum(sides) / len(sides), unit="GB/s", bytes=size)
    checked = all(each.checked for each in runs)
    return ToolReading(
        outcome=MeasuredOutcome.PASS if checked else MeasuredOutcome.WARN,
        why="" if checked else "the data was never checked: its option -c 1 does",
        figures=(figure,),
        ranks=run.ranks,
        versions=versions,
    )


def _hole(out: str, sizes: set[int]) -> str:
    """Return which row is missing, or "" if none is. A row is missing if the header announces its size, and the output has no
    row that can be recognised for it.

    nccl-tests rounds sizes down so that the ranks can divide them evenly. Therefore sizes are compared with a tolerance.
    """
    header = _SIZES.search(out)
    if header is None:
        return ""
    least, step, factor = int(header[1]), int(header[2]), header[3] == "factor"
    expected = least
    for size in sorted(sizes):
        if size > expected * 1.02 + (0 if factor else step / 2):
            return f"no row of {size_text(expected)}"
        expected = size * step if factor else size + step
    return ""


def so_far(out: str) -> str:
    """Return how far an unfinished run got: ranks, rows, last line."""
    try:
        run = parse(out)[-1]
    except DataError:
        said = last_line(out)
        return f"nothing of nccl-tests{f', last: {said}' if said else ''}"
    ranks = f"{run.ranks} ranks listed" if run.ranks is not None else "no rank listed"
    last = f", the last of {size_text(run.rows[-1].bytes)}" if run.rows else ""
    return f"{ranks}, {len({row.bytes for row in run.rows})} sizes done{last}"


def size_text(size: int) -> str:
    """Return a size as text such as ``16 GiB``, or in bytes if it is not a whole number of a larger unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} bytes"


def of(collective: str, summary: str) -> Tool:
    """Return the tool of one collective."""
    return Tool(
        summary=summary,
        command=f'{collective}_perf -b 1G -e 16G -f 2 -n 20 -c 1 -g "$GPUS"',
        seconds=600,
        read=lambda out, err: read(collective, out, err),
        so_far=so_far,
    )


def _versions(run: NcclTestRun, out: str) -> dict[str, str]:
    found = {"nccl-tests": run.version} if run.version else {}
    if match := _SAID_VERSION.search(out):
        found["nccl"] = match[1]
        if match[2]:
            found["cuda"] = match[2]
    elif (match := _LIBRARY.search(out)) and 2900 < int(match[1]) < 10_000_000:
        number = int(match[1])  # NCCL_VERSION (nccl.h): X*10000 + Y*100 + Z since 2.9
        found["nccl"] = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return found
