"""Renders what GPUs and MIG devices did as counters, and the gauge that says which job has which GPU.

A counter loses nothing when a scrape is missed. Only the gauge has a job label, so that a job makes no other new series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fairlead.daemon.publishing.gpu_labels import LABELS, Labels
from fairlead.model.facts import Gpu, Missing
from fairlead.model.node_jobs import GpuOfJob

_SHARED = (
    ("gpm_seconds", "Time that pairs of GPM samples cover, on Hopper and later. The other GPM counters are a part of it."),
    ("sm_active_seconds", "Integral of the fraction of streaming multiprocessors that were busy (GPM metric 2)."),
    ("tensor_active_seconds", "Integral of the fraction of time in which tensor cores worked (GPM metric 5)."),
    ("dram_active_seconds", "Integral of the fraction of the DRAM bandwidth that was used (GPM metric 10)."),
)
#: The attribute of GpuActivity, which is the metric's name too, and the help text.
_COUNTERS = (
    ("busy_seconds", "Time in which a kernel ran, by the driver's samples of the utilisation."),
    ("measured_seconds", "Time in which the utilisation is known. Divide the busy seconds by it."),
    ("spot_seconds", "Part of the measured seconds without samples, by single readings of the utilisation."),
    ("gap_seconds", "Time in which the utilisation is not known although the agent ran."),
    *_SHARED,
    ("energy_joules", "Energy, by the driver's counter of the GPU card."),
    ("energy_gap_seconds", "Time of which the energy is not known, because the driver was loaded again."),
    ("pcie_transmit_bytes", "Bytes that the GPU sent over PCIe."),
    ("pcie_receive_bytes", "Bytes that the GPU received over PCIe."),
    ("nvlink_transmit_bytes", "Bytes that the GPU sent over all NVLinks."),
    ("nvlink_receive_bytes", "Bytes that the GPU received over all NVLinks."),
)


def families(gpus: Sequence[tuple[Gpu, Labels]]) -> Iterator[Metric]:
    """Yield the counters of GPUs and of MIG devices. A value that the device does not have gets no series."""
    for attribute, text in _COUNTERS:
        family = CounterMetricFamily(f"fairlead_gpu_{attribute}", text, labels=LABELS)
        for gpu, name in gpus:
            value = gpu.activity if isinstance(gpu.activity, Missing) else getattr(gpu.activity, attribute)
            if not isinstance(value, Missing):
                family.add_metric(name, value)
        yield family
    for attribute, text in _SHARED:
        family = CounterMetricFamily(f"fairlead_mig_{attribute}", f"{text} Of the GPU instance.", labels=[*LABELS, "mig_uuid"])
        for gpu, name in gpus:
            for device in () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices:
                value = device.activity if isinstance(device.activity, Missing) else getattr(device.activity, attribute)
                if not isinstance(value, Missing):
                    family.add_metric([*name, device.uuid], value)
        yield family


def job_family(jobs: Sequence[GpuOfJob], names: Sequence[Labels]) -> Metric:
    """Return the gauge that maps GPUs and MIG devices to jobs. A whole GPU has an empty ``mig_uuid``."""
    text = "Always 1. A running job and a GPU that it has, or a MIG device of that GPU."
    family = GaugeMetricFamily("fairlead_job_gpu", text, labels=["job", *LABELS, "mig_uuid"])
    known = {name[0]: name for name in names}
    for job, pci, mig_uuid in jobs:
        if name := known.get(pci):
            family.add_metric([str(job), *name, mig_uuid], 1)
    return family
