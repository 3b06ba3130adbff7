"""Measures copies between host and GPU, and between each pair of GPUs, with nvbandwidth. Its text output and its JSON output
(``-j``) can be read.

The figure of a pair is a cell of nvbandwidth's matrix, and is named by the cell's row and column. A test that nvbandwidth waives
has no figure. It waives a test if two GPUs cannot reach each other's memory.

Source: NVIDIA/nvbandwidth, README.md, json_output.cpp, output.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead.measure.tool import Figure, MeasuredOutcome, Tool, ToolReading, last_line, unread
from fairlead.model.json_text import NOT_JSON

NAMES = {
    "host_to_device_memcpy_ce": "host_to_device",
    "device_to_host_memcpy_ce": "device_to_host",
    "device_to_device_memcpy_read_ce": "device_to_device",
}
_NUMBER = re.compile(r"^\d+(?:\.\d+)?(?:e[+-]?\d+)?$")
_RUNNING = re.compile(r"^Running (\w+)\.?\s*$")
_FAULT = re.compile(r"^(?:\[?CUDA_ERROR_|\[cudaError|NVML_ERROR|.*\bERROR\b|.*[Vv]erification (?:failed|error)).*$", re.M)
Matrix = list[list[str]]


def read(out: str, err: str) -> ToolReading:
    """Return the reading of the tests in ``NAMES``. The outcome is FAIL if a test ended with an error. nvbandwidth also reports
    wrong data as an error."""
    try:
        found, versions = _of_json(out) if out.lstrip()[:1] == "{" else _of_text(out)
    except ValueError as e:
        return unread(f"damaged output of nvbandwidth: {e}", "", "")
    except _Failed as e:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=str(e)[:200])
    fault = _FAULT.search(err)
    if fault:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=fault[0][:200])
    if not found:
        return unread("no output of nvbandwidth", out, err)
    if odd := _misshapen(found):
        return unread(f"damaged output of nvbandwidth: {odd}", "", "")
    figures: list[Figure] = []
    notes: list[str] = []
    for name, matrix in found.items():
        if matrix is None:
            notes.append(f"{name}: waived by nvbandwidth")
            continue
        try:
            figures += _figures(NAMES[name], matrix)
        except ValueError as e:
            return unread(f"damaged output of nvbandwidth: {name}: {e}", "", "")
    missing = [name for name in NAMES if name not in found]
    if missing:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"incomplete: no {', '.join(missing)}", versions=versions)
    if not figures:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why="; ".join(notes) or "no figure", versions=versions)
    gpus = len({f.device for f in figures if f.name == "host_to_device"})
    return ToolReading(
        outcome=MeasuredOutcome.PASS, figures=tuple(figures), ranks=gpus or None, versions=versions, notes=tuple(notes)
    )


def _misshapen(found: dict[str, Matrix | None]) -> str:
    """Return which matrix does not fit the number of GPUs, or "" if all fit. The matrix of a copy with the host has one row. The
    matrix of the pairs has as many rows as columns."""
    gpus = next((len(m[0]) for name, m in found.items() if NAMES[name] != "device_to_device" and m), 0)
    for name, matrix in found.items():
        if matrix is None:
            continue
        pairs = NAMES[name] == "device_to_device"
        ranks = gpus or len(matrix)  # without a copy with the host, the matrix of pairs gives the number
        if len(matrix) != (ranks if pairs else 1) or any(len(row) != ranks for row in matrix):
            return f"{name}: no matrix of {ranks} GPUs"
    return ""


class _Failed(Exception):
    """Says that a test of nvbandwidth ended with an error."""


def _figures(name: str, matrix: Matrix) -> Iterator[Figure]:
    """Yield the figures of a matrix. The diagonal of a matrix of pairs and all cells with N/A are left out. Raises ValueError for
    another cell that is no number."""
    pairs = name == "device_to_device"
    for r, row in enumerate(matrix):
        for c, cell in enumerate(row):
            if pairs and r == c:
                continue
            if cell == "N/A":
                continue
            if not _NUMBER.match(cell):
                raise ValueError(f"{cell[:40]!r} is no bandwidth")
            yield Figure(name=name, value=float(cell), unit="GB/s", device=f"gpu{r}-gpu{c}" if pairs else f"gpu{c}")


def _of_json(out: str) -> tuple[dict[str, Matrix | None], dict[str, str]]:
    try:
        data: dict[str, Any] = msgspec.json.decode(out)["nvbandwidth"]
        versions = {"nvbandwidth": str(data.get("version", "")), "driver": str(data.get("Driver Version", ""))}
        cuda = data.get("CUDA Runtime Version")
        if isinstance(cuda, int):  # 12040 means 12.4 (CUDA_VERSION)
            versions["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}"
        if data.get("error"):
            raise _Failed(f"nvbandwidth: {data['error']}")
        found: dict[str, Matrix | None] = {}
        for case in data.get("testcases", ()):
            name, status = case["name"], case["status"]
            if status == "Error" or case.get("error"):
                raise _Failed(f"{name}: {case.get('error') or 'Error'}")
            if name in NAMES and status in ("Passed", "Waived"):
                found[name] = [[str(cell) for cell in row] for row in case["bandwidth_matrix"]] if status == "Passed" else None
    except (*NOT_JSON, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a whole report: {e}") from None
    return found, {k: v for k, v in versions.items() if v}


def _of_text(out: str) -> tuple[dict[str, Matrix | None], dict[str, str]]:
    found: dict[str, Matrix | None] = {}
    name, rows, sums = "", [], set()  # type: str, Matrix, set[str]
    versions: dict[str, str] = {}
    for line in out.splitlines():
        words = line.split()
        if match := _RUNNING.match(line):
            name, rows = match[1], []
        elif line.startswith("nvbandwidth Version:"):
            versions["nvbandwidth"] = words[-1].removeprefix("v")
        elif line.startswith("Driver Version:"):
            versions["driver"] = words[-1]
        elif line.startswith("CUDA Runtime Version:") and words[-1].isdecimal():
            versions["cuda"] = f"{int(words[-1]) // 1000}.{int(words[-1]) % 1000 // 10}"
        elif line.startswith("Waived") and name in NAMES:
            found[name] = None
        elif line.startswith("SUM ") and len(words) > 1:
            sums.add(words[1])
        elif _FAULT.match(line):
            raise _Failed(line.strip())
        elif name in NAMES and words and words[0].isdecimal() and not all(w.isdecimal() for w in words):
            if int(words[0]) != len(rows):
                raise ValueError(f"row {words[0]} is where row {len(rows)} should be")
            rows.append(words[1:])
            found[name] = rows
    whole = {n: m for n, m in found.items() if m is None or n in sums}
    return whole, versions


def so_far(out: str) -> str:
    """Return in which test an unfinished run was."""
    names = [m[1] for line in out.splitlines() if (m := _RUNNING.match(line))]
    return f"in {names[-1]}" if names else last_line(out) or "no output"


tool = Tool(
    summary="Copies between host and GPU, and between each pair of GPUs",
    command=f"nvbandwidth -t {' '.join(NAMES)}",
    seconds=300,
    read=read,
    so_far=so_far,
)
