"""Renders the metrics of MIG devices: which there are, their memory, and the uncorrectable errors of their SRAM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.daemon.publishing.gpu_labels import LABELS, Labels
from fairlead.model.facts import Gpu, Missing

_BY = (*LABELS, "mig_uuid")


def families(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    """Yield the metric families. A value that cannot be read gets no series, because 0 would be a reading.

    The labels ``pci``, ``index`` and ``uuid`` are those of the GPU that the device is a part of.
    """
    info = GaugeMetricFamily(
        "fairlead_mig_info", "Always 1. The labels name a MIG device.", labels=[*_BY, "gi", "ci", "profile", "start", "size"]
    )
    used = GaugeMetricFamily("fairlead_mig_memory_used_bytes", "Frame buffer in use, of the GPU instance.", labels=_BY)
    size = GaugeMetricFamily("fairlead_mig_memory_size_bytes", "Frame buffer size, of the GPU instance.", labels=_BY)
    errors = CounterMetricFamily(
        "fairlead_mig_ecc_sram_uncorrected_errors", "SRAM errors of the instance since the driver was loaded.", labels=_BY
    )
    for gpu, name in gpus:
        for device in () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices:
            by = [*name, device.uuid]
            details = (device.gi, device.ci, device.profile, device.start, device.size)
            info.add_metric([*by, *("" if isinstance(value, Missing) else str(value) for value in details)], 1.0)
            for family, value in (
                (used, device.memory_used_bytes),
                (size, device.memory_total_bytes),
                (errors, device.sram_uncorrected),
            ):
                if not isinstance(value, Missing):
                    family.add_metric(by, float(value))
    yield from (info, used, size, errors)
