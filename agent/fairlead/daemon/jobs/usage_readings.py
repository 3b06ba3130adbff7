"""Takes from the facts of a sweep what each GPU and each MIG device has done, for the usage records of jobs.

NVML is asked for these sums only in some sweeps. In the other sweeps the facts hold older sums. Only sums that have changed since
the sweep before were read in this sweep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec.structs import replace

from fairlead.host.job_records import Job
from fairlead.host.node_counters import NodeCounters
from fairlead.jobs.gpu_usage_sums import GpuReading
from fairlead.jobs.node_usage_sums import NicReading, NodeCountersReading
from fairlead.model.facts import Gpu, Missing, Node, NvLink
from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_load import REASONS
from fairlead.model.gpu_state import MigDevice
from fairlead.model.load_window import is_busy

_NOT_TEXT = re.compile(r"[^A-Za-z0-9_.:+/ -]")  # see jobs.usage_record.Text
_TEXT_MAX = 128
_IDLE = "gpu_idle"  # it slows the clocks of a GPU that has no work


class GpuReadings:
    """Holds the readings of the last sweep. ``all``: by UUID of the GPU or MIG device. ``fresh``: the UUIDs of those that were
    read in this sweep. ``index``: NVML's index by PCI address."""

    def __init__(self) -> None:
        self.all: dict[str, GpuReading] = {}
        self.fresh: frozenset[str] = frozenset()
        self.index: dict[str, int] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._ages: dict[str, float] = {}

    def take(self, node: Node, boot: float) -> bool:
        """Take the readings of a sweep, and return whether any is fresh. ``boot``: the present CLOCK_BOOTTIME in seconds.

        In most sweeps nothing was read. Then the last readings stay, ``all`` as the same object.
        """
        self.fresh = frozenset()
        if isinstance(node.gpus, Missing):
            return False
        before, self._gpus = self._gpus, node.gpus
        if len(before) == len(self._gpus) > 0 and all(map(_is_unread, before, self._gpus)):
            return False
        self.index = {gpu.pci: gpu.index for gpu in node.gpus}
        self.all = {reading.uuid: reading for gpu in node.gpus for reading in _readings(gpu, boot)}
        ages = {r.uuid: r.activity.measured_seconds + r.activity.gap_seconds for r in self.all.values()}
        self.fresh = frozenset(uuid for uuid, age in ages.items() if self._ages.get(uuid) != age)
        self._ages |= ages
        return bool(self.fresh)

    def of_job(self, job: Job, pci_by_index: Mapping[int, str]) -> list[GpuReading]:
        """Return the readings of the job's GPUs and MIG devices. A GPU that is not known, or that the driver does not list, is
        left out. ``pci_by_index``: the PCI addresses of the GPUs by GRES index."""
        indices = sorted(job.gpus)
        names = job.names if len(job.names) == len(indices) else ()
        whole = {reading.pci: reading for reading in self.all.values() if not reading.mig}
        found = []
        for index, name in zip(indices, names or (str(i) for i in indices), strict=True):
            reading = self.all.get(name) or whole.get(pci_by_index.get(index, ""))
            if reading is not None:
                found.append(replace(reading, gres_index=index))
        return found


def _is_unread(before: Gpu, now: Gpu) -> bool:
    """Return whether this is the same GPU as in the last sweep, whole, and its sums were not read since then."""
    same = before.activity is now.activity and before.pci == now.pci and before.uuid == now.uuid and before.index == now.index
    return same and not _devices(before) and not _devices(now)


def _devices(gpu: Gpu) -> tuple[MigDevice, ...]:
    return () if isinstance(gpu.mig_devices, Missing) else gpu.mig_devices


def _readings(gpu: Gpu, boot: float) -> Iterator[GpuReading]:
    minor = None if isinstance(gpu.minor, Missing) else gpu.minor
    name = "" if isinstance(gpu.name, Missing) else _text(gpu.name)
    if not isinstance(gpu.uuid, Missing):
        yield GpuReading(
            uuid=_text(gpu.uuid),
            pci=gpu.pci,
            minor=minor,
            name=name,
            at=boot,
            activity=_activity(gpu),
            memory_used_bytes=_number(gpu.memory_used_bytes),
            memory_total_bytes=_number(gpu.memory_total_bytes),
            throttled_seconds=_throttled(gpu),
            clock_hertz=_number(gpu.clock_sm_hertz) if is_busy(gpu) else None,
            errors=_errors(gpu),
        )
    for device in _devices(gpu):
        profile = "" if isinstance(device.profile, Missing) else device.profile
        yield GpuReading(
            uuid=_text(device.uuid),
            pci=gpu.pci,
            minor=minor,
            mig=_text(f"{device.gi}/{device.ci}/{profile}"),
            name=name,
            at=boot,
            activity=_activity(device),
            memory_used_bytes=_number(device.memory_used_bytes),
            memory_total_bytes=_number(device.memory_total_bytes),
        )


def _activity(device: Gpu | MigDevice) -> GpuActivity:
    return GpuActivity() if isinstance(device.activity, Missing) else device.activity


def _number(value: int | Missing) -> int | None:
    return None if isinstance(value, Missing) or value < 0 else value


def _throttled(gpu: Gpu) -> dict[str, float]:
    seconds = gpu.load.seen.reasons_seconds
    return {name: value for (_, name), value in zip(REASONS, seconds, strict=True) if name != _IDLE and value}


def _errors(gpu: Gpu) -> dict[str, int]:
    """Return the driver's counters of errors. A counter that could not be read is not there."""
    found = {}
    if not isinstance(gpu.pcie, Missing):
        found["pcie_replays"] = gpu.pcie.replays
    if not isinstance(gpu.ecc, Missing):
        found["ecc_corrected"] = gpu.ecc.volatile_corrected
    known = {name: value for name, value in found.items() if not isinstance(value, Missing) and value >= 0}
    return known | ({} if isinstance(gpu.nvlinks, Missing) else _link_errors(gpu.nvlinks))


@lru_cache(maxsize=64)  # the counters of a GPU's links are the same at most sweeps
def _link_errors(links: tuple[NvLink, ...]) -> dict[str, int]:
    found = {}
    for name in ("crc_errors", "replay_errors", "recovery_errors", "receive_errors", "recoveries"):
        counts = [value for link in links if not isinstance(value := getattr(link, name), Missing)]
        if counts and sum(counts) >= 0:
            found[f"nvlink_{name}"] = sum(counts)
    return found


def _text(value: str) -> str:
    return _NOT_TEXT.sub("_", value)[:_TEXT_MAX]


def node_reading(counters: NodeCounters, boot: float) -> NodeCountersReading:
    """Return the counters of the node as a reading. ``boot``: the present CLOCK_BOOTTIME in seconds."""
    nics = (
        NicReading(name=_text(n.name), receive_bytes=n.receive_bytes, transmit_bytes=n.transmit_bytes, errors=n.errors)
        for n in counters.nics
    )
    return NodeCountersReading(
        at=boot, stalled_microseconds=counters.stalled_microseconds, events=counters.events, nics=tuple(nics)
    )
