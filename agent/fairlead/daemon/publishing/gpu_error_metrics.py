"""Renders the error counters that only some GPUs have: retired pages, and the PCIe errors that the kernel counts."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_health import AerCounts, RetiredPages


def families(gpus: tuple[Gpu, ...]) -> Iterator[Metric]:
    """Yield the metric families. A value that cannot be read gets no series."""
    pages = GaugeMetricFamily(
        "fairlead_gpu_retired_pages", "Retired memory pages, on GPUs before Ampere.", labels=["pci", "kind"]
    )
    errors = CounterMetricFamily(
        "fairlead_gpu_pcie_errors",
        "AER errors of the GPU and of the port above it: correctable, nonfatal, fatal.",
        labels=["pci", "at", "kind"],
    )
    for gpu in gpus:
        if isinstance(gpu.retired, RetiredPages):
            for kind in ("single_bit", "double_bit", "pending"):
                _add(pages, [gpu.pci, kind], getattr(gpu.retired, kind))
        for at, counts in (("gpu", gpu.aer), ("port", gpu.port_aer)):
            if isinstance(counts, AerCounts):
                for kind in ("correctable", "nonfatal", "fatal"):
                    _add(errors, [gpu.pci, at, kind], getattr(counts, kind))
    yield from (pages, errors)


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float | Missing) -> None:
    if not isinstance(value, Missing):
        family.add_metric(labels, float(value))
