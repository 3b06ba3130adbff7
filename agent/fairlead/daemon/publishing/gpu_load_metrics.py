"""Renders metrics of the GPUs' temperature, power limit, clocks, fabric and processes, and of the driver's versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.daemon.publishing.gpu_labels import LABELS, Labels
from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.gpu_load import REASONS, ClockEvents, GpuFabric, GpuLoad

_GAUGES = (
    ("margin_celsius", "temperature_margin_celsius", "Degrees below the slowdown temperature; negative above it."),
    ("memory_celsius", "memory_temperature_celsius", "GPU memory temperature."),
    ("power_default_watts", "power_limit_default_watts", "Default power limit of the GPU card."),
    ("clock_sm_max_hertz", "sm_clock_max_hertz", "Highest clock of the streaming multiprocessors."),
)


def families(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    """Yield the metric families of every GPU that NVML lists."""
    for attribute, metric, text in _GAUGES:
        family = GaugeMetricFamily(f"fairlead_gpu_{metric}", text, labels=LABELS)
        for gpu, name in gpus:
            value = getattr(gpu.load, attribute)
            if not isinstance(value, Missing):
                family.add_metric(name, float(value))
        yield family
    yield from _fabric_and_processes(gpus)
    yield from _clocks(gpus)


def driver_family(node: Node) -> Metric:
    """Return the metric family with the versions of the driver's module and libraries."""
    driver = node.driver
    said = [driver.module_version, driver.library_version, driver.software.library_file]
    info = GaugeMetricFamily(
        "fairlead_driver_info", "The NVIDIA driver; always 1.", labels=["module", "library", "library_on_disk"]
    )
    info.add_metric([v if isinstance(v, str) else "" for v in said], 1)
    return info


def _fabric_and_processes(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "fairlead_gpu_fabric_state",
        "NVLink fabric of the GPU: 0 not supported, 1 not started, 2 in progress, 3 completed.",
        labels=LABELS,
    )
    alone = GaugeMetricFamily(
        "fairlead_gpu_processes_without_job", "Compute processes that belong to no Slurm job.", labels=LABELS
    )
    for gpu, name in gpus:
        if isinstance(gpu.load.fabric, GpuFabric):
            state.add_metric(name, gpu.load.fabric.state)
        if not isinstance(gpu.processes, Missing):
            none = [p for p in gpu.processes if not isinstance(p.owner, Missing) and p.owner.job is None]
            alone.add_metric(name, len(none))
    yield from (state, alone)


def _clocks(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    loaded = CounterMetricFamily(
        "fairlead_gpu_loaded_seconds", "Time in which this agent saw the GPU at 50 % utilisation or more.", labels=LABELS
    )
    limited = CounterMetricFamily(
        "fairlead_gpu_loaded_clock_event_seconds",
        "Part of fairlead_gpu_loaded_seconds_total in which this reason limited the clocks, for reasons seen at least once.",
        labels=[*LABELS, "reason"],
    )
    counted = CounterMetricFamily(
        "fairlead_gpu_clock_event_seconds",
        "Time in which this reason limited the clocks, loaded or not, as the driver counts it.",
        labels=[*LABELS, "reason"],
    )
    for gpu, name in gpus:
        facts: GpuLoad = gpu.load
        loaded.add_metric(name, facts.seen.busy_seconds)
        for (_, reason), seconds in zip(REASONS, facts.seen.reasons_seconds, strict=True):
            if seconds:
                limited.add_metric([*name, reason], seconds)
        for event in ClockEvents.__struct_fields__:
            seconds = getattr(facts.events, event)
            if not isinstance(seconds, Missing):
                counted.add_metric([*name, event.removesuffix("_seconds")], seconds)
    yield from (loaded, limited, counted)
