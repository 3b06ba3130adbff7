"""GPUs that were watched for a while, loaded or idle, and what a check says of them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.history.memory import History
from fairlead.host.gpu_load_reader import LoadSums
from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu
from fairlead.model.finding import Finding
from fairlead.model.gpu_load import ClockEvents
from tests.checks.nodes import BOOT, LOAD, gpu, node

IDLE = {"throttle_reasons": 0x1, "utilization_percent": 0, "clock_sm_hertz": 345_000_000}
BUSY = {"throttle_reasons": 0x0, "utilization_percent": 100, "clock_sm_hertz": 1_755_000_000}
CAPPED = {**BUSY, "throttle_reasons": 0x4, "clock_sm_hertz": 1_200_000_000}
HW_HOT = {**BUSY, "throttle_reasons": 0x48, "clock_sm_hertz": 900_000_000}
BRAKED = {**BUSY, "throttle_reasons": 0x88, "clock_sm_hertz": 800_000_000}
LOW = {**BUSY, "clock_sm_hertz": 345_000_000}
STEP_SECONDS = 14.0


def judged(module: Any, *changed: Gpu, past: Past | None = None, **params: Any) -> list[Finding]:
    return list(module.check.findings(node(*changed), past or Past(available=True), module.Params(**params)))


def watched(module: Any, states: list[dict[str, Any]], *, events: dict[str, float] | None = None, **params: Any) -> list[Finding]:
    """What the check says of GPU 3 after it was seen in these states, one every 14 s. ``events``: the driver's counters at
    the end, from 0."""
    seen, history = LoadSums(), History("", BOOT)
    facts = node()
    for number, state in enumerate(states):
        load = LOAD
        if events is not None:
            share = number / (len(states) - 1)
            load = replace(LOAD, events=ClockEvents(**{name: value * share for name, value in events.items()}))
        changed = gpu(3, load=load, **state)
        gpus = seen.add(tuple(changed if i == 3 else gpu(i, **IDLE) for i in range(8)), number * STEP_SECONDS)
        facts = node(gpus=gpus, uptime_seconds=10000.0 + number * STEP_SECONDS)
        history.add_samples(facts.uptime_seconds, module.check.samples(facts))
    return list(module.check.findings(facts, history.past(), module.Params(**params)))
