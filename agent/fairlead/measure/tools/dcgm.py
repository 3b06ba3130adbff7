"""Runs NVIDIA's own diagnostic, ``dcgmi diag -r 2 -j``: memory, PCIe and software, about two minutes.

The diagnostic passes or fails, and gives no figure to compare. A note names the tests that it skipped. The JSON of DCGM 3 and
that of DCGM 4 differ, and this module reads both.

Source: NVIDIA/DCGM, dcgmi/Diag.cpp, nvvs/include/NvvsJsonStrings.h, testing/python3/dcgm_diag_schema.json; DCGM user guide,
"DCGM Diagnostics".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fairlead.measure.tool import MeasuredOutcome, Tool, ToolReading, last_line, unread
from fairlead.model.json_text import NOT_JSON


def read(out: str, err: str) -> ToolReading:
    """Return the reading of a report. The outcome is FAIL if a test failed, and UNKNOWN if no test passed."""
    start, end = out.find("{"), out.rfind("}")
    try:
        data: dict[str, Any] = msgspec.json.decode(out[start : end + 1])
        key = next(k for k in data if k.startswith("DCGM"))  # it is "DCGM Diagnostic", and before version 4 "DCGM GPU Diagnostic"
        meta = data.get("metadata") or {}
        versions = {"dcgm": str(meta.get("version") or data[key].get("version") or "")}
        versions["driver"] = str(meta.get("Driver Version Detected") or data[key].get("Driver Version Detected") or "")
        fault = data[key].get("runtime_error") or data.get("runtime_error")
        tests = [] if fault else list(_tests(data[key]))
    except (*NOT_JSON, KeyError, TypeError, AttributeError, StopIteration):
        return unread("no report of dcgmi diag", out, err)
    versions = {k: v for k, v in versions.items() if v}
    if fault:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"dcgmi: {str(fault)[:200]}", versions=versions)
    failed = [f"{name}{f' on GPU {gpu}' if gpu else ''}: {why or word}" for name, gpu, word, why in tests if word == "fail"]
    if failed:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why="; ".join(failed[:3])[:400], versions=versions)
    skipped = sorted({name for name, _, word, _ in tests if word == "skip"})
    odd = sorted(
        {f"{name}: {word or 'no status'}" for name, _, word, _ in tests if word not in ("pass", "skip", "not run", "warn")}
    )
    warned = [f"{name}: {why or word}" for name, _, word, why in tests if word == "warn"]
    passed = sum(word == "pass" for _, _, word, _ in tests)
    notes = (f"skipped: {', '.join(skipped)}",) if skipped else ()
    if not passed or odd:
        why = f"no test passed{f', {notes[0]}' if notes else ''}" if not odd else "; ".join(odd[:3])[:400]
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=why, versions=versions)
    if warned:
        return ToolReading(outcome=MeasuredOutcome.WARN, why="; ".join(warned[:3])[:400], versions=versions, notes=notes)
    return ToolReading(outcome=MeasuredOutcome.PASS, versions=versions, notes=notes)


def _tests(diagnostic: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, GPU, status in lower case and warning, of every result and every summary."""
    for category in diagnostic["test_categories"]:
        for test in category.get("tests", ()):
            summary = test.get("test_summary")
            for result in (*test.get("results", ()), *((summary,) if summary else ())):
                gpu = result.get("gpu_id", result.get("gpu_ids", result.get("entity_id", "")))
                yield str(test["name"]), str(gpu), str(result["status"]).lower(), _warning(result)


def _warning(result: dict[str, Any]) -> str:
    warnings = result.get("warnings") or ""
    first = warnings[0] if isinstance(warnings, list) else warnings
    return str(first.get("warning", "") if isinstance(first, dict) else first)[:200]


def so_far(out: str) -> str:
    """Return the last line. dcgmi writes its report only at the end."""
    return last_line(out) or "no output"


tool = Tool(
    summary="NVIDIA's diagnostic (dcgmi diag)", command="dcgmi diag -r 2 -j", seconds=900, read=read, so_far=so_far, needed=False
)
