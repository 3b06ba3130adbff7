"""Compares the agent's metrics of one GPU with what outside programs print: nvidia-smi and nvitop.

A value that moves is read from the agent before and after the outside program runs. The program's value must lie between the two,
or as close to them as ``tolerance`` allows.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEGA, MEBI = 1e6, float(1 << 20)
SERIES = re.compile(r"^fairlead_gpu_(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Value:
    """One metric and its names outside: nvidia-smi's query, nvitop's expression, and the factors to the metric's unit.

    ``metric``: the name after ``fairlead_gpu_``, with the value of the label that tells its series apart, if it has one.
    ``tolerance``: how far apart the values may be, in the metric's unit: half a step of the program's rounding, and what a value
    may move in a second.
    """

    metric: str
    smi: str = ""
    smi_factor: float = 1.0
    nvitop: str = ""
    nvitop_factor: float = 1.0
    tolerance: float = 0.0


VALUES = (
    Value("temperature_celsius", "temperature.gpu", nvitop="temperature()", tolerance=2),
    Value("memory_temperature_celsius", "temperature.memory", tolerance=2),
    Value("power_draw_watts", "power.draw", nvitop="power_usage()", nvitop_factor=1e-3, tolerance=10),
    Value("power_limit_watts", "power.limit", nvitop="power_limit()", nvitop_factor=1e-3, tolerance=0.01),
    Value("power_limit_default_watts", "power.default_limit", tolerance=0.01),
    Value("sm_clock_hertz", "clocks.sm", MEGA, "sm_clock()", MEGA, 30 * MEGA),
    Value("sm_clock_max_hertz", "clocks.max.sm", MEGA, "max_sm_clock()", MEGA),
    Value("memory_used_bytes", "memory.used", MEBI, "memory_used()", tolerance=2 * MEBI),
    Value("memory_size_bytes", "memory.total", MEBI, "memory_total()", tolerance=MEBI),
    Value("utilization_ratio", "utilization.gpu", 0.01, "gpu_utilization()", 0.01, 0.05),
    Value("performance_state", "pstate", nvitop="performance_state()"),
    Value("persistence_mode", "persistence_mode", nvitop="persistence_mode()"),
    Value("mig_mode", "mig.mode.current", nvitop="mig_mode()"),
    Value("ecc_mode", "ecc.mode.current"),
    Value("ecc_errors_total volatile_corrected", "ecc.errors.corrected.volatile.total"),
    Value("ecc_errors_total volatile_uncorrected", "ecc.errors.uncorrected.volatile.total",
          nvitop="total_volatile_uncorrected_ecc_errors()"),
    Value("ecc_errors_total aggregate_corrected", "ecc.errors.corrected.aggregate.total"),
    Value("ecc_errors_total aggregate_uncorrected", "ecc.errors.uncorrected.aggregate.total"),
    Value("pcie_link_generation", "pcie.link.gen.gpucurrent"),
    Value("pcie_link_generation_max", "pcie.link.gen.max"),
    Value("pcie_link_width_lanes", "pcie.link.width.current"),
    Value("pcie_link_width_max_lanes", "pcie.link.width.max"),
)  # fmt: skip
Name = Callable[[Value], tuple[str, float]]  # a value's name in one program, and the factor to the metric's unit
WORDS = {"Enabled": 1.0, "Disabled": 0.0, "Yes": 1.0, "No": 0.0}
#: What nvitop's process prints: each expression with what nvitop says, as text.
NVITOP = """
import json, sys
from nvitop import Device
device = Device(sys.argv[1])
print(json.dumps({word: str(getattr(device, word.removesuffix("()"))()) for word in sys.argv[2:]}))
"""


def metrics_of(text: str, pci: str) -> dict[str, float]:
    """Return the metrics of one GPU. A series with one more label than those of every GPU has that label's value in its key."""
    found = {}
    for name, labels, value in SERIES.findall(text):
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        if pairs.pop("pci", "") == pci:
            rest = [label for key, label in pairs.items() if key not in ("index", "uuid", "name", "serial")]
            found[" ".join([name, *rest])] = float(value)
    return found


def number(text: str) -> float | None:
    """Return what a program printed as a number, or None where it says that it has no value."""
    text = text.strip()
    if text in WORDS:
        return WORDS[text]
    match = re.fullmatch(r"P?(-?\d+(?:\.\d+)?)", text)
    return float(match[1]) if match else None


def smi_values(names: list[str], output: str) -> dict[str, float | None]:
    """Return nvidia-smi's values by the names that it was asked for, from its CSV line. Raises ValueError for anything else."""
    rows = list(csv.reader(io.StringIO(output)))
    if len(rows) != 1 or len(rows[0]) != len(names):
        raise ValueError(f"nvidia-smi printed {output.strip()[:200]!r}")
    return dict(zip(names, map(number, rows[0]), strict=True))


def nvitop_values(output: str) -> dict[str, float | None]:
    """Return nvitop's values by expression. Raises ValueError where the output is no JSON object."""
    found: dict[str, Any] = json.loads(output)
    return {word: number(text) for word, text in found.items()}


def compare(
    before: dict[str, float],
    after: dict[str, float],
    outside: dict[str, float | None],
    which: Callable[[Value], tuple[str, float]],
) -> list[dict[str, Any]]:
    """Return one row for each value that the outside program has a name for. ``which``: that name, and the factor.

    A row has "agrees": True, False, or None where one of the two has no value.
    """
    rows = []
    for value in VALUES:
        name, factor = which(value)
        if not name:
            continue
        ours, theirs = [found[value.metric] for found in (before, after) if value.metric in found], outside.get(name)
        row: dict[str, Any] = {"metric": value.metric, "ours": ours, "name": name, "theirs": theirs, "agrees": None}
        if ours and theirs is not None:
            row["theirs"] = theirs * factor
            slack = value.tolerance + 1e-9 * abs(row["theirs"])
            row["agrees"] = min(ours) - slack <= row["theirs"] <= max(ours) + slack
        rows.append(row)
    return rows
