"""Renders the error counters that only some GPUs have: retired pages, and the PCIe errors that the kernel counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.daemon.publishing.gpu_labels import LABELS, Labels
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_health import AerCounts, RetiredPages


def families(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    """Yield the metric families. A value that cannot be read gets no series."""
    by = [*LABELS, "kind"]
    pages = GaugeMetricFamily("fairlead_gpu_retired_pages", "Retired memory pages, on GPUs before Ampere.", labels=by)
    errors = CounterMetricFamily(
        "fairlead_gpu_pcie_errors",
        "AER errors of the GPU and of the port above it: correctable, nonfatal, fatal.",
        labels=[*LABELS, "at", "kind"],
    )
    for gpu, name in gpus:
        if isinstance(gpu.retired, RetiredPages):
            for kind in ("single_bit", "double_bit", "pending"):
                _add(pages, [*name, kind], getattr(gpu.retired, kind))
        for at, counts in (("gpu", gpu.aer), ("port", gpu.port_aer)):
            if isinstance(counts, AerCounts):
                for kind in ("correctable", "nonfatal", "fatal"):
                    _add(errors, [*name, at, kind], getattr(counts, kind))
    yield from (pages, errors)


def _add(family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float | Missing) -> None:
    if not isinstance(value, Missing):
        family.add_metric(labels, float(value))
