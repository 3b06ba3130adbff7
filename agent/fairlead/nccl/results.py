"""Reads the output of nccl-tests, as text of any version or as its ``-J`` JSON, into one record per run.

The layout depends on the version: before 2.13 there is a column ``error``, and for some collectives no ``redop`` or ``root``.
Later versions have ``#wrong``. Since 2.17 the output names the version and the collective. A row has two sides, out-of-place and
in-place. ``-I`` adds four columns to each side, and ``-S`` adds a time stamp (nccl-tests, src/util.cu: writeResultHeader,
writeBenchmarkLineBody). mpirun and srun put their own prefix before each line, and NCCL prints its messages between the lines.

A run counts as complete only if both lines of its footer are there. The average bus bandwidth in the footer is over all sizes,
including small ones, so it does not show what a fabric can do. It only shows that the run is complete, and is never a figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import shown

ERRORS_MAX = 50  # the most different error lines that are kept of one run, which may fail on every rank
LINE_MAX = 2048  # a row has some 250 characters, and a message of NCCL at most 1024
_TEXT_MAX = 200

_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err|diag)>:\s?|\d+:\s(?=[\s#]|\d+\s))?\s*")
_ROW = re.compile(r"^\d+\s+\d+\s+[a-z][a-z0-9_]*\s")
_CUT_ROW = re.compile(r"^\d+\s+(?:\d+\s+[a-z]\w*\s|\([^()]*\)\s).*[\d.]")  # begins like a row, and is damaged
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+(\S+)\s+on\s+(\S+)")
_VERSION = re.compile(r"^# nccl-tests version (\S+)")
_STARTS = re.compile(r"^# (?:nccl-tests version|Collective test starting:|nThread\s+\d+)")
_PROGRAM = re.compile(r"(?:^|[\s/:])([a-z]+(?:_[a-z]+)*?)_perf(?:_mpi)?(?=\s|$)")
_BOUNDS = re.compile(r"^#\s*Out of bounds values\s*:\s*(\S+)\s*(\S*)")
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*(\S+)\s*(\S*)")
_BANDWIDTHS = re.compile(r"\b(?:bus|alg)_?bw\b|\bbus bandwidth\b", re.IGNORECASE)
_STAMP = re.compile(r"^\d{4}-\d\d-\d\d$|^\d\d:\d\d:\d\d(?:\.\d+)?$")
_NUMBER = re.compile(r"^(?:[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|N/A|[-+]?(?:inf|nan))$")

# A run that fails prints one of these (nccl-tests src/common.h NCCLCHECK, CUDACHECK, TESTCHECK; NCCL, libibverbs, mpirun, srun).
_FAILS = re.compile(
    r"Test (?:NCCL|CUDA|CU) failure|: Test failure|NCCL (?:failure|error)"
    r"|CUDA (?:failure|error)|ibv_\w{1,40} failed|not enough slots|Segmentation fault|Bus error|Aborted|core dumped|Killed"
    r"|^# error:|srun: error:|slurmstepd: error:|mpirun (?:noticed|was unable)|Invalid number of GPUs|MPI_ABORT",
    re.IGNORECASE,
)
_WARNS, _WARNS_OF = re.compile("NCCL WARN ", re.IGNORECASE), re.compile("fail|error|abort|timeout", re.IGNORECASE)


class ResultRow(Struct, frozen=True, kw_only=True):
    """Holds one measurement. time_us: the time of one operation. algbw_gbps, busbw_gbps: in 10^9 byte/s. wrong: the number of
    wrong values, or None if the data was not checked."""

    bytes: int
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    wrong: int | None
    inplace: bool


_DELTA = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}


class NcclTestRun(Struct, frozen=True, kw_only=True):
    """Holds one run of one test. A field is None if the output does not say.

    complete: both lines of the footer are there. wrong_total: the number of wrong elements in all rows or in the footer,
    whichever is greater. checked: the test compared the data of at least one row. errors: the lines that report a failure, each
    once. peak_busbw_gbps: the bus bandwidth of the best row.
    """

    collective: str | None = None
    version: str | None = None
    ranks: int | None = None
    rows: tuple[ResultRow, ...] = ()
    complete: bool = False
    wrong_total: int = 0
    checked: bool = False
    errors: tuple[str, ...] = ()
    peak_busbw_gbps: float | None = None

    @property
    def passed(self) -> bool:
        """Say whether the run is complete and has rows, with nothing wrong and nothing failed. This does not judge speed."""
        return self.complete and bool(self.rows) and not self.wrong_total and not self.errors


class _Open(Struct):
    """Collects a run while its output is read."""

    collective: str | None = None
    version: str | None = None
    header: tuple[str, ...] = ()
    ranks: dict[int, set[str]] = field(default_factory=dict)
    rows: list[ResultRow] = field(default_factory=list)
    bounds: bool = False
    average: bool = False
    out_of_bounds: int = 0
    errors: dict[str, None] = field(default_factory=dict)
    compared: bool = False  # the older column "error" shows that the data was compared

    def error(self, text: str) -> None:
        if len(self.errors) < ERRORS_MAX:
            self.errors.setdefault(shown(text.strip()[: 4 * _TEXT_MAX], "?")[:_TEXT_MAX])


def parse(text: str) -> tuple[NcclTestRun, ...]:
    """Return the runs in an output, text or JSON. Raises DataError when nothing in it is output of nccl-tests."""
    if text.lstrip()[:1] == "{":
        return (_from_json(text),)
    runs = tuple(_from_lines(text.splitlines()))
    if runs:
        return runs
    what = "nothing in it is output of nccl-tests"
    if _BANDWIDTHS.search(text):
        what = "it has bandwidths, but not in the form of nccl-tests: it was reformatted, or another program printed it"
    raise DataError(what, hint="give the whole output of all_reduce_perf or another *_perf, as it was printed")


def _from_lines(lines: Iterable[str]) -> Iterator[NcclTestRun]:
    run = _Open()
    touched = False
    for whole in lines:
        raw = whole[:LINE_MAX]
        line = raw[_PREFIX.match(raw).end() :].rstrip()  # type: ignore[union-attr]  # the pattern matches the empty string too
        if _STARTS.match(line) and (run.average or run.rows):
            yield _close(run)
            run, touched = _Open(), False
        touched = _read_line(run, line) or touched
    if touched:
        yield _close(run)


def _read_line(run: _Open, line: str) -> bool:
    """Read one line into the run, and say whether it is a line of nccl-tests."""
    if _ROW.match(line):
        rows = _rows(run, line)
        if rows is None:
            run.error(f"row cannot be read: {line}")
        run.rows += rows or ()
        return True
    if match := _RANK.match(line):
        run.ranks.setdefault(int(match[1]), set()).add(f"{match[2]} {match[3]}")
        return True
    if match := _BOUNDS.match(line):
        run.bounds = True
        run.out_of_bounds += int(match[1]) if match[1].isdecimal() else 0
        if match[2] != "OK" or not match[1].isdecimal():
            run.error(line.lstrip("# "))
        return True
    if match := _AVERAGE.match(line):
        run.average = True
        if match[2] == "FAILED":
            run.error(line.lstrip("# "))
        return True
    if _fails(line):
        run.error(line)
        return True
    if match := _VERSION.match(line):
        run.version = match[1]
        return True
    words = line.lstrip("#").split()
    if line.startswith("#") and words[:2] == ["size", "count"]:
        run.header = tuple(words)
        return True
    if _CUT_ROW.match(line):
        run.error(f"row cannot be read: {line}")
        return True
    if run.collective is None and (program := _PROGRAM.search(line)):
        run.collective = program[1]
    return bool(_STARTS.match(line))


def _fails(line: str) -> bool:
    warns = _WARNS.search(line)
    return _FAILS.search(line) is not None or (warns is not None and _WARNS_OF.search(line, warns.end()) is not None)


def _rows(run: _Open, line: str) -> tuple[ResultRow, ...] | None:
    """Return the out-of-place and the in-place result of a row, or only in-place if only that was run. Return None if the row
    cannot be read."""
    size, _, kind, *rest = line.split()
    while rest and _STAMP.match(rest[-1]):
        del rest[-1]
    both = run.collective not in (None, "alltoall", "sendrecv")  # in place, these two overwrite the data that they would compare
    if rest and not _NUMBER.match(rest[0]):
        both |= rest.pop(0) != "none"  # redop
    if not all(_NUMBER.match(word) for word in rest):
        return None
    wide = 8 if "i_min" in run.header or len(rest) in (16, 17) else 4
    if len(rest) % wide == 1:
        both |= rest.pop(0).isdecimal()  # root
    if len(rest) not in (wide, 2 * wide):
        return None
    old = "error" in run.header or (not run.header and any("e-" in rest[at] for at in range(3, len(rest), wide)))
    sides = []
    for start in range(0, len(rest), wide):
        time, algbw, busbw = (float(word.replace("N/A", "nan")) for word in rest[start : start + 3])
        if old:
            wrong = _off(run, kind, rest[start + 3]) if both or start == 0 else None
        else:
            wrong = _wrong(rest[start + 3])
        if not all(map(math.isfinite, (time, algbw, busbw))):
            return None
        inplace = len(rest) == wide or start > 0
        sides.append(ResultRow(bytes=int(size), time_us=time, algbw_gbps=algbw, busbw_gbps=busbw, wrong=wrong, inplace=inplace))
    run.compared |= old and any(rest[at] != "N/A" for at in range(3, len(rest), wide))
    return tuple(sides)


def _off(run: _Open, kind: str, word: str) -> int | None:
    """Return 1 if the older column "error" is above the limit of the test itself, else None. The column has the greatest
    difference from the right value.

    The limit is DeltaMaxValue(type) * (ranks - 1) in src/common.cu of nccl-tests 2.11. If the output lists no rank, 4096
    ranks are assumed.
    """
    limit = _DELTA.get(kind, 0.0) * max(1, (len(run.ranks) or 4096) - 1)
    return None if word == "N/A" or float(word) <= limit else 1


def _wrong(word: str) -> int | None:
    """Return the number of wrong elements, or None if the data was not checked. A number that is not finite counts as 1, because
    the test compared the data and found it wrong."""
    value = math.nan if word == "N/A" else float(word)
    return None if word == "N/A" else int(value) if math.isfinite(value) else 1


def _close(run: _Open) -> NcclTestRun:
    if any(len(processes) > 1 for processes in run.ranks.values()):
        run.error("several processes have the same rank: the test was built without MPI, and each process measured itself alone")
    if run.bounds and not run.rows:
        run.error("no row of results")
    counted = sum(row.wrong or 0 for row in run.rows)
    return NcclTestRun(
        collective=run.collective,
        version=run.version,
        ranks=max(run.ranks) + 1 if run.ranks else None,
        rows=tuple(run.rows),
        complete=run.bounds and run.average,
        wrong_total=max(counted, run.out_of_bounds),
        checked=run.compared or any(row.wrong is not None for row in run.rows),
        errors=tuple(run.errors),
        peak_busbw_gbps=max((row.busbw_gbps for row in run.rows), default=None),
    )


# --- JSON (nccl-tests since 2.17.5, -J FILE; JSON_FILE_VERSION 1 to 3) ---


class _Side(Struct):
    alg_bw: float
    bus_bw: float
    time: float | None = None
    cpu_time: float | None = None
    nwrong: float | None = None


class _Result(Struct):
    size: int
    out_of_place: _Side | None = None
    in_place: _Side | None = None


class _Bounds(Struct):
    count: int = 0
    okay: bool = False


class _Average(Struct):
    bandwidth: float | None = None
    okay: bool | str = "unchecked"


class _ResultsFile(Struct):
    args: list[str] = []
    config: dict[str, Any] = {}
    results: list[_Result] | None = None
    out_of_bounds: _Bounds | None = None
    average_bus_bandwidth: _Average | None = None
    errors: list[str] | None = None


def _from_json(text: str) -> NcclTestRun:
    try:
        file = msgspec.json.decode(text, type=_ResultsFile)
    except NOT_JSON as e:  # a killed run leaves half a document
        raise DataError(f"not a whole JSON report of nccl-tests: {e}", hint="parse the text output of that run instead") from None
    if file.results is None and "nthreads" not in file.config:
        raise DataError(
            "JSON, but not a report of nccl-tests: it has neither results nor config", hint="give the file of its option -J"
        )
    run = _Open()
    program = _PROGRAM.search(file.args[0]) if file.args else None
    for result in file.results or ():
        for side, inplace in ((result.out_of_place, False), (result.in_place, True)):
            if side is not None:
                run.rows.append(_json_row(result.size, side, inplace=inplace))
    devices = file.config.get("devices")
    ranks = (
        [d["rank"] for d in devices if isinstance(d, dict) and isinstance(d.get("rank"), int)]
        if isinstance(devices, list)
        else []
    )
    for at, rank in enumerate(ranks):
        run.ranks.setdefault(rank, set()).add(str(at))
    bounds, average = file.out_of_bounds, file.average_bus_bandwidth
    run.bounds, run.average = bounds is not None, average is not None
    if bounds is not None:
        run.out_of_bounds = bounds.count
        if not bounds.okay:
            run.error(f"Out of bounds values : {bounds.count} FAILED")
    if average is not None and average.okay is False:
        run.error(f"Avg bus bandwidth : {average.bandwidth} FAILED")
    for error in file.errors or ():
        if error:
            run.error(error)
    run.collective = program[1] if program else None
    return _close(run)


def _json_row(size: int, side: _Side, *, inplace: bool) -> ResultRow:
    time = side.time if side.time is not None else side.cpu_time
    if time is None:
        raise DataError(f"not a whole JSON report of nccl-tests: the result of {size} bytes has no time")
    wrong = None if side.nwrong is None else int(side.nwrong)
    return ResultRow(bytes=size, time_us=time, algbw_gbps=side.alg_bw, busbw_gbps=side.bus_bw, wrong=wrong, inplace=inplace)
