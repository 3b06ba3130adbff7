"""Runs matrix products on every GPU at once with gpu_burn, and checks that they all gave the same result.

All GPUs run at the same time, so heat and power are as in real work. A GPU's figure is the median of the second half of the run,
when the GPU is warm. gpu_burn compares its results on the GPU. One error means that the GPU computes wrong results.

Source: wilicc/gpu-burn, gpu_burn-drv.cpp (listenClients); tests/data/gpu_burn.log of microsoft/superbenchmark.
"""

from __future__ import annotations

import re
from statistics import median

from fairlead.measure.tool import Figure, MeasuredOutcome, Tool, ToolReading, last_line, unread

_PERCENT = re.compile(r"^\d{1,3}(?:\.\d+)?$")
_CALCS = re.compile(r"^(-?\d+) \((\d+(?:\.\d+)?) Gflop/s\)$")
_ERRORS = re.compile(r"^(-?\d+)\s*(?:\((\w+)!\))?$")
_RESULT = re.compile(r"^\s*GPU (\d+): (OK|FAULTY)\s*$", re.M)
_TESTED = re.compile(r"^Tested (\d+) GPUs:", re.M)


def read(out: str, err: str) -> ToolReading:
    """Return the reading of an output. The figures have the GPU numbers that gpu_burn prints."""
    lines = _progress(out)
    if not lines:
        return unread("no output of gpu_burn", out, err)
    samples: dict[int, list[float]] = {}
    for percent, calculated, wrong in lines:
        calcs = [match for part in calculated.split(" - ") if (match := _CALCS.match(part.strip()))]
        errors = [match for part in wrong.split(" - ") if (match := _ERRORS.match(part.strip()))]
        if not len(calcs) == len(errors) == calculated.count(" - ") + 1 == wrong.count(" - ") + 1:
            return unread("damaged output of gpu_burn", f"proc'd: {calculated[:80]} errors: {wrong[:80]}", "")
        for gpu, (calc, error) in enumerate(zip(calcs, errors, strict=True)):
            if error[2] == "DIED" or int(calc[1]) < 0:
                return ToolReading(outcome=MeasuredOutcome.FAIL, why=f"GPU {gpu}: the work on it died")
            if int(error[1]):
                return ToolReading(outcome=MeasuredOutcome.FAIL, why=f"GPU {gpu}: {error[1]} wrong results")
            if percent >= 50 and float(calc[2]) > 0:
                samples.setdefault(gpu, []).append(float(calc[2]))
    tested, results = _TESTED.search(out), dict(_RESULT.findall(out))
    faulty = [gpu for gpu, word in results.items() if word == "FAULTY"]
    if faulty:
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=f"GPU {', '.join(faulty)}: FAULTY")
    if not tested or len(results) != int(tested[1]) or not results:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"incomplete, no result of every GPU: {so_far(out)}")
    without = [gpu for gpu in results if int(gpu) not in samples]
    if without:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"GPU {', '.join(without)}: no figure; it ran too short a time")
    figures = [
        Figure(name="tflops", value=median(values) / 1000, unit="Tflop/s", device=f"gpu{gpu}")
        for gpu, values in sorted(samples.items())
    ]
    return ToolReading(outcome=MeasuredOutcome.PASS, figures=tuple(figures), ranks=len(results))


def _progress(out: str) -> list[tuple[float, str, str]]:
    """Return (percent, what was calculated, errors) of each line of progress. Such a line begins with a carriage return."""
    found = []
    for line in out.replace("\r", "\n").split("\n"):
        percent, is_one, rest = line.partition("%  proc'd: ")
        calculated, has_errors, rest = rest.partition("  errors: ")
        wrong, is_whole, _ = rest.partition("  temps: ")
        if is_one and has_errors and is_whole and _PERCENT.match(percent):
            found.append((float(percent), calculated.strip(), wrong.strip()))
    return found


def so_far(out: str) -> str:
    """Return how far an unfinished run got, in percent."""
    lines = _progress(out)
    return f"at {lines[-1][0]} %" if lines else last_line(out) or "no output"


tool = Tool(
    summary="Matrix products on every GPU at once, and their results compared",
    command="gpu_burn -tc 60",
    seconds=240,
    read=read,
    so_far=so_far,
)
