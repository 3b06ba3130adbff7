"""gpu_throttle, gpu_power_brake, gpu_clocks, gpu_temperature, gpu_power_limit, gpu_fabric, gpu_leftovers: each fault fires,
and the same signal where it is normal does not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import (
    gpu_clocks,
    gpu_fabric,
    gpu_leftovers,
    gpu_power_brake,
    gpu_power_limit,
    gpu_temperature,
    gpu_throttle,
)
from fairlead.daemon.history import History
from fairlead.host.gpu_load import LoadSums
from fairlead.model.check import Past
from fairlead.model.facts import Gpu, GpuProcess, Missing, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Service
from fairlead.model.gpu_load import NOT_READ, ClockEvents, Fabric, Owner
from tests.checks.nodes import BOOT, LOAD, NA, UNSUPPORTED, gpu, node

IDLE = {"throttle_reasons": 0x1, "utilization_percent": 0, "clock_sm_hertz": 345_000_000}
BUSY = {"throttle_reasons": 0x0, "utilization_percent": 100, "clock_sm_hertz": 1_755_000_000}
CAPPED = {**BUSY, "throttle_reasons": 0x4, "clock_sm_hertz": 1_200_000_000}
HW_HOT = {**BUSY, "throttle_reasons": 0x48, "clock_sm_hertz": 900_000_000}
SW_HOT = {**BUSY, "throttle_reasons": 0x20}
FAST_TRIGGER = {**BUSY, "throttle_reasons": 0x8}
BRAKED = {**BUSY, "throttle_reasons": 0x88, "clock_sm_hertz": 800_000_000}
LOW = {**BUSY, "clock_sm_hertz": 345_000_000}
STEP_SECONDS = 14.0


def judged(module: Any, *changed: Gpu, past: Past | None = None, **params: Any) -> list[Finding]:
    return list(module.judge(node(*changed), past or Past(available=True), module.Params(**params)))


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
    return list(module.check.judge(facts, history.past(), module.Params(**params)))


# -- gpu_throttle ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "words", "level"),
    [
        ([HW_HOT] * 60, "slowed by heat (hardware)", Level.DRAIN),
        ([BUSY] * 50 + [HW_HOT] * 10, "slowed by heat (hardware)", Level.DRAIN),
        ([BUSY] * 30 + [FAST_TRIGGER] * 30, "slowed by its hardware", Level.DRAIN),
        ([SW_HOT] * 60, "slowed by heat (software)", Level.WARN),
    ],
)
def test_throttling_under_load(states: list[dict[str, Any]], words: str, level: Level) -> None:
    (finding,) = watched(gpu_throttle, states)
    assert (finding.level, finding.device) == (level, gpu(3).pci)
    assert words in finding.summary
    assert "s under load" in finding.evidence[0]


@pytest.mark.parametrize(
    "states",
    [
        [BUSY] * 60,
        [IDLE] * 60,
        [CAPPED] * 60,  # the power cap is normal under full load
        [{**IDLE, "throttle_reasons": 0x48}] * 60,  # nobody is slowed
        [BUSY] * 99 + [FAST_TRIGGER],  # one sight of it, as during a change of clocks
        [BUSY] * 80 + [SW_HOT] * 10,
        [HW_HOT] * 5,  # too little load to say anything
        [BRAKED] * 60,  # that is gpu_power_brake's
    ],
)
def test_what_is_no_throttling(states: list[dict[str, Any]]) -> None:
    assert watched(gpu_throttle, states) == []


def test_a_site_may_judge_the_power_cap() -> None:
    (finding,) = watched(gpu_throttle, [CAPPED] * 60, sw_power_cap_share_max=0.5)
    assert finding.level is Level.WARN


def test_what_the_sweeps_missed_counts_where_the_driver_counts() -> None:
    assert watched(gpu_throttle, [BUSY] * 60, events={"hw_thermal_slowdown_seconds": 0.4}) == []
    (finding,) = watched(gpu_throttle, [BUSY] * 60, events={"hw_thermal_slowdown_seconds": 200.0})
    assert finding.fault == "is slowed by heat (hardware)"


def test_throttling_that_is_over_leaves_the_window() -> None:
    assert watched(gpu_throttle, [HW_HOT] * 30 + [BUSY] * 200, window_seconds=1800) == []


@pytest.mark.parametrize("module", [gpu_throttle, gpu_clocks])
def test_load_that_cannot_be_read(module: Any) -> None:
    (finding,) = judged(module, gpu(3, utilization_percent=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(module, gpu(3, utilization_percent=NA, mig_current=True)) == []  # NVML gives none in MIG mode
    (finding,) = judged(module, gpu(3, throttle_reasons=NA))
    assert finding.level is Level.UNKNOWN
    assert judged(module, gpu(3, lost=True, throttle_reasons=NA)) == []


def test_one_look_says_that_it_needs_history() -> None:
    for module, state in ((gpu_throttle, HW_HOT), (gpu_power_brake, BRAKED), (gpu_clocks, LOW)):
        (finding,) = judged(module, gpu(3, **state), past=Past())
        assert finding.needs_history and finding.level is Level.OK
        assert judged(module, gpu(3, **IDLE), past=Past()) == []


# -- gpu_power_brake -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "fires"),
    [
        ([BRAKED] * 60, True),
        ([{**IDLE, "throttle_reasons": 0x89}] * 60, True),
        ([BUSY] * 55 + [BRAKED] * 5, True),
        ([BUSY] * 60, False),
        ([BUSY] * 70 + [BRAKED], False),
        ([HW_HOT] * 60, False),
    ],
)
def test_the_power_brake(states: list[dict[str, Any]], fires: bool) -> None:
    found = watched(gpu_power_brake, states)
    assert [(f.level, f.service) for f in found] == [(Level.DRAIN, Service.DRAIN_AFTER_JOB)] * fires


def test_the_drivers_count_of_the_power_brake() -> None:
    found = watched(gpu_power_brake, [BUSY] * 60, events={"hw_power_brake_slowdown_seconds": 100.0})
    assert [f.level for f in found] == [Level.DRAIN]


def test_a_power_brake_that_cannot_be_read() -> None:
    assert [f.level for f in judged(gpu_power_brake, gpu(3, throttle_reasons=NA))] == [Level.UNKNOWN]
    assert judged(gpu_power_brake, gpu(3, throttle_reasons=UNSUPPORTED)) == []


# -- gpu_clocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "fires"),
    [
        ([LOW] * 60, True),
        ([BUSY] * 10 + [LOW] * 60, True),
        ([IDLE] * 60, False),  # low clocks save power
        ([CAPPED] * 60, False),
        ([{**LOW, "throttle_reasons": 0x2}] * 60, False),  # somebody set that clock
        ([BUSY] * 60, False),
        ([BUSY] * 50 + [LOW] * 5, False),
        ([LOW] * 5, False),
        ([{**LOW, "utilization_percent": 20}] * 60, False),
    ],
)
def test_clocks_that_stay_low(states: list[dict[str, Any]], fires: bool) -> None:
    found = watched(gpu_clocks, states)
    assert [(f.level, f.action) for f in found] == [(Level.DRAIN, Action.RESET_GPU)] * fires


def test_a_site_that_locks_its_clocks() -> None:
    locked = [{**BUSY, "clock_sm_hertz": 990_000_000}] * 60
    assert [f.level for f in watched(gpu_clocks, locked)] == [Level.DRAIN]
    assert watched(gpu_clocks, locked, full_hertz=990_000_000) == []


def test_clocks_that_cannot_be_read() -> None:
    assert [f.level for f in judged(gpu_clocks, gpu(3, clock_sm_hertz=NA))] == [Level.UNKNOWN]
    unknown_max = gpu(3, load=replace(LOAD, clock_sm_max_hertz=NA))
    assert [f.level for f in judged(gpu_clocks, unknown_max)] == [Level.UNKNOWN]
    assert judged(gpu_clocks, unknown_max, full_hertz=990_000_000) == []


# -- the sums --------------------------------------------------------------------------------------


def test_what_was_not_watched_is_not_counted() -> None:
    """A machine that slept, or an agent that was stopped: nobody knows what the clocks did."""
    seen = LoadSums()
    hot = tuple(gpu(i, **HW_HOT) for i in range(8))
    for seconds in (0.0, 10.0, 4000.0, 4010.0):
        gpus = seen.add(hot, seconds)
    assert gpus[0].load.seen.busy_seconds == 20.0
    (lost,) = seen.add((gpu(0, lost=True, **HW_HOT),), 4020.0)
    assert lost.load.seen.busy_seconds == 20.0


def test_a_restarted_agent_begins_its_sums_anew() -> None:
    history = History("", BOOT)
    for start in (0.0, 900.0):  # two agents
        seen = LoadSums()
        for number in range(30):
            now = start + number * STEP_SECONDS
            gpus = seen.add(tuple(gpu(i, **(HW_HOT if i == 3 else IDLE)) for i in range(8)), now)
            facts = node(gpus=gpus, uptime_seconds=10000.0 + now)
            history.add_samples(facts.uptime_seconds, gpu_throttle.samples(facts))
    (finding,) = gpu_throttle.judge(facts, history.past(), gpu_throttle.Params())
    assert finding.evidence[0].startswith("100 % of ")


# -- gpu_temperature -------------------------------------------------------------------------------


def heat(**changes: Any) -> Gpu:
    celsius = changes.pop("celsius", 34)
    return gpu(3, temperature_celsius=celsius, load=replace(LOAD, **changes))


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (heat(margin_celsius=20), []),
        (heat(margin_celsius=5), [Level.WARN]),
        (heat(margin_celsius=0), [Level.DRAIN]),
        (heat(margin_celsius=-3), [Level.DRAIN]),
        (heat(margin_celsius=NA, celsius=60), []),  # an older driver: by its threshold
        (heat(margin_celsius=NA, celsius=86), [Level.WARN]),
        (heat(margin_celsius=NA, celsius=90), [Level.DRAIN]),
        (heat(margin_celsius=20, slowdown_celsius=NA), []),
        (heat(margin_celsius=NA, slowdown_celsius=NA), [Level.UNKNOWN]),
        (heat(margin_celsius=UNSUPPORTED, slowdown_celsius=UNSUPPORTED), []),
        (heat(margin_celsius=NA, celsius=NA), [Level.UNKNOWN]),
        (heat(memory_celsius=96), []),  # this driver says no limit
        (heat(memory_celsius=94, memory_max_celsius=95), []),
        (heat(memory_celsius=95, memory_max_celsius=95), [Level.DRAIN]),
        (heat(memory_celsius=NA), []),
    ],
)
def test_temperature(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_temperature, changed)
    assert [f.level for f in found] == levels
    assert all(f.device == changed.pci for f in found)


def test_a_declared_limit_of_memory() -> None:
    assert [f.level for f in judged(gpu_temperature, heat(memory_celsius=96), memory_max_celsius=95)] == [Level.DRAIN]
    assert judged(gpu_temperature, heat(memory_celsius=96, memory_max_celsius=95), memory_max_celsius=105) == []


def test_a_memory_temperature_that_went_away() -> None:
    past = Past(available=True, readable=frozenset({f"{gpu(3).pci}/load.memory_celsius"}))
    assert [f.level for f in judged(gpu_temperature, heat(memory_celsius=NA), past=past)] == [Level.UNKNOWN]


# -- gpu_power_limit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("watts", "declared", "levels"),
    [
        (700.0, None, []),
        (500.0, None, [Level.DRAIN]),
        (500.0, 500.0, []),  # the site wants it so
        (699.8, None, []),
        (700.0, 500.0, [Level.WARN]),
        (NA, None, [Level.UNKNOWN]),
        (UNSUPPORTED, None, []),
    ],
)
def test_power_limit(watts: float | Missing, declared: float | None, levels: list[Level]) -> None:
    found = judged(gpu_power_limit, gpu(3, power_limit_watts=watts), limit_watts=declared)
    assert [f.level for f in found if f.device == gpu(3).pci] == levels


def test_a_default_limit_that_cannot_be_read() -> None:
    changed = gpu(3, load=replace(LOAD, power_default_watts=NA))
    assert [f.level for f in judged(gpu_power_limit, changed)] == [Level.UNKNOWN]


# -- gpu_fabric ------------------------------------------------------------------------------------


def joined(**changes: Any) -> Gpu:
    fabric = Fabric(**{"state": 3, "status": 0, "clique": 0, "cluster": "0" * 32, "health": 0, **changes})
    return gpu(3, load=replace(LOAD, fabric=fabric))


def health(**parts: int) -> int:
    """A mask in which everything else is well."""
    shifts = {"bandwidth": 0, "recovery": 2, "unhealthy": 4, "timeout": 6, "configuration": 8, "partition": 12, "manager": 14}
    well = {"bandwidth": 2, "recovery": 2, "unhealthy": 2, "timeout": 2, "configuration": 1, "partition": 1, "manager": 1}
    return sum({**well, **parts}[name] << shift for name, shift in shifts.items())


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (joined(), []),
        (joined(health=health()), []),
        (joined(health=NOT_READ), []),  # a driver without health
        (joined(state=1), [Level.DRAIN]),
        (joined(state=2), [Level.DRAIN]),
        (joined(state=0), [Level.DRAIN]),
        (joined(status=999), [Level.DRAIN]),
        (joined(health=health(bandwidth=1)), [Level.DRAIN]),
        (joined(health=health(recovery=1)), [Level.WARN]),
        (joined(health=health(unhealthy=1)), [Level.DRAIN]),
        (joined(health=health(timeout=1)), [Level.WARN]),
        (joined(health=health(configuration=5)), [Level.DRAIN]),
        (joined(health=health(configuration=14)), [Level.DRAIN]),
        (joined(health=health(partition=2)), [Level.DRAIN]),
        (joined(health=health(manager=2)), [Level.WARN]),
        (joined(clique=7), [Level.DRAIN]),
        (joined(cluster="f" * 32), [Level.DRAIN]),
        (gpu(3, load=replace(LOAD, fabric=NA)), [Level.UNKNOWN]),
        (gpu(3, load=replace(LOAD, fabric=UNSUPPORTED)), []),
    ],
)
def test_fabric(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_fabric, changed, required=True)
    assert [(f.device, f.level) for f in found] == [(changed.pci, level) for level in levels]


def test_gpus_without_a_fabric() -> None:
    """An HGX A100 or an L40S: no fabric is expected, and none is missed. One that is still joining is not well anywhere."""
    none = [gpu(i, load=replace(LOAD, fabric=NA)) for i in range(8)]
    assert judged(gpu_fabric, *none) == []
    unknown = [gpu(i, load=replace(LOAD, fabric=Fabric(state=0, status=0, clique=0, cluster="0" * 32))) for i in range(8)]
    assert judged(gpu_fabric, *unknown) == []
    assert [f.level for f in judged(gpu_fabric, joined(state=2))] == [Level.DRAIN]


# -- gpu_leftovers ---------------------------------------------------------------------------------


def used(*owners: Owner | Missing, memory: int = 0, **changes: Any) -> Gpu:
    processes = tuple(GpuProcess(4000 + n, 1 << 30, owner) for n, owner in enumerate(owners))
    return gpu(3, processes=processes, memory_used_bytes=memory, **changes)


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (used(), []),
        (used(Owner(job=812), memory=70 << 30), []),  # a job's
        (used(Owner(unit="nvidia-mps.service")), []),
        (used(Owner(unit="dcgm-exporter.service"), Owner(unit="gdm3.service")), []),
        (used(Owner(unit="slurmd.service")), []),  # jobs of a site without Slurm's cgroups
        (used(Owner(uid=1000)), [Level.DRAIN]),
        (used(Owner(unit="ollama.service"), Owner(job=812)), [Level.DRAIN]),
        (used(Owner(unit="")), [Level.DRAIN]),
        (used(Owner(gone=True)), [Level.DRAIN]),
        (used(unreadable("EACCES")), [Level.UNKNOWN]),
        (used(memory=20 << 30), [Level.DRAIN]),
        (used(memory=200 << 20), []),  # what a desktop holds
        (used(memory=20 << 30, mig_current=True), []),
        (gpu(3, processes=NA), [Level.UNKNOWN]),
        (gpu(3, memory_used_bytes=NA), [Level.UNKNOWN]),
    ],
)
def test_leftovers(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_leftovers, changed)
    assert [(f.device, f.level) for f in found] == [(changed.pci, level) for level in levels]


def test_a_site_allows_its_own_services() -> None:
    changed = used(Owner(unit="inference@7.service"))
    assert [f.level for f in judged(gpu_leftovers, changed)] == [Level.DRAIN]
    assert judged(gpu_leftovers, changed, allowed_units=("inference@*.service",)) == []


def test_many_leftovers_fit_on_a_line() -> None:
    (finding,) = judged(gpu_leftovers, used(*[Owner(uid=1000)] * 40))
    assert finding.evidence[0] == ("processes 4000 (user 1000), 4001 (user 1000), 4002 (user 1000), 4003 (user 1000) and 36 more")
    assert len(finding.summary) < 100


def all_missing() -> Node:
    return node(gpus=unreadable("no answer"))


@pytest.mark.parametrize(
    "module", [gpu_throttle, gpu_power_brake, gpu_clocks, gpu_temperature, gpu_power_limit, gpu_fabric, gpu_leftovers]
)
def test_no_gpus_at_all_is_unknown(module: Any) -> None:
    assert [f.level for f in module.judge(all_missing(), Past(available=True), module.Params())] == [Level.UNKNOWN]
