"""Adds up what each GPU and each MIG device did, from the NVML worker's sums and the driver's counters (``GpuActivity``).

The sums go on over a restart of the worker, whose own sums then begin at 0 again, and over a reload of the driver. The worker's
CLOCK_MONOTONIC is the same as this process's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Gpu
from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_state import MigDevice
from fairlead.model.missing import Missing, unreadable

PART = "activity"
#: The attribute of GpuActivity, and the driver's counter in nvml.json.
_BYTES = (
    ("pcie_transmit_bytes", "pcie.transmit_bytes"),
    ("pcie_receive_bytes", "pcie.receive_bytes"),
    ("nvlink_transmit_bytes", "activity.nvlink_transmit_bytes"),
    ("nvlink_receive_bytes", "activity.nvlink_receive_bytes"),
)
_GPM = ("sm_active", "tensor_active", "dram_active")
_NANO = 1_000_000_000
_NOT_OF_INSTANCE = unreadable("NVML has this value for the whole GPU only")


class ActivitySums:
    """Holds the sums of all GPUs by PCI address, and of all MIG devices by UUID."""

    def __init__(self) -> None:
        self._gpus: dict[str, _Sums] = {}
        self._last: dict[str, tuple[Gpu, Any, Gpu]] = {}  # by PCI address: a GPU, its part ``activity``, and the GPU with sums
        self._instances: dict[str, _Sums] = {}

    def add(self, gpus: tuple[Gpu, ...], nvml: Any, now: float) -> tuple[Gpu, ...]:
        """Return the GPUs with their sums up to the last close sweep.

        nvml: the snapshot in nvml.json form that the GPUs were converted from. now: CLOCK_MONOTONIC in seconds. The GPUs of a
        machine tree have no part ``activity``, and stay as they are.
        """
        entries = nvml.get("gpus") if isinstance(nvml, dict) else None  # an abstract class takes much longer here
        if not isinstance(entries, list) or len(entries) != len(gpus) or not any(PART in e for e in entries):
            return gpus
        found = tuple(self._of(gpu, entry, now) for gpu, entry in zip(gpus, entries, strict=True))
        there = {d.uuid for gpu in found if not isinstance(gpu.mig_devices, Missing) for d in gpu.mig_devices}
        if not any(isinstance(gpu.mig_devices, Missing) for gpu in found):  # else some devices are only not known now
            self._instances = {uuid: sums for uuid, sums in self._instances.items() if uuid in there}
        return found

    def _of(self, gpu: Gpu, entry: Mapping[str, Any], now: float) -> Gpu:
        if not gpu.pci or PART not in entry:
            return gpu
        last = self._last.get(gpu.pci)
        if last is not None and last[0] is gpu and last[1] is entry[PART] and _is_read_once(last[1]):
            return last[2]
        sums = self._gpus.setdefault(gpu.pci, _Sums())
        activity = sums.add(entry, int(now * _NANO), whole=True)
        devices = gpu.mig_devices
        if not isinstance(devices, Missing) and devices:
            raw = entry.get("mig_devices")
            devices = tuple(self._with(d, r, now) for d, r in zip(devices, raw if isinstance(raw, list) else [], strict=False))
            return replace(gpu, activity=activity, mig_devices=devices)
        found = replace(gpu, activity=activity)
        self._last[gpu.pci] = gpu, entry[PART], found
        return found

    def _with(self, device: MigDevice, entry: Any, now: float) -> MigDevice:
        if not isinstance(entry, dict) or PART not in entry:
            return device
        sums = self._instances.setdefault(device.uuid, _Sums())
        return replace(device, activity=sums.add(entry, int(now * _NANO), whole=False))


def _is_read_once(part: Any) -> bool:
    """Return whether the same part in a later sweep means that nothing was read. An error goes on, and its time is a gap."""
    return not (isinstance(part, dict) and "error" in part)


class _Sums:
    """Holds the sums of one GPU or one MIG device, and what was read last."""

    def __init__(self) -> None:
        self._part: Any = None
        self._activity = GpuActivity()
        self._until: int | None = None  # CLOCK_MONOTONIC in nanoseconds, to which measured and gap seconds are complete
        self._last: dict[str, int] = {}
        self._sums: dict[str, int] = {}
        self._began: dict[str, int] = {}
        self._energy_at = 0
        self._gap = self._energy_gap = 0

    def add(self, entry: Mapping[str, Any], now: int, *, whole: bool) -> GpuActivity:
        """Return the sums after this reading. ``entry``: the device's part of nvml.json. ``whole``: True for a GPU."""
        part = entry[PART]
        if part is self._part and _is_read_once(part):
            return self._activity  # nothing was read in this sweep
        self._part = part
        read = GpuReader(entry)
        measured = self._worker(read, "began", ("measured", "busy", "spot"))
        self._worker(read, "gpm_began", ("gpm", *_GPM))
        self._account(read, now, measured)
        self._count_energy(read, now)
        for name, path in _BYTES:
            self._count(name, read.number(path, PART))
        self._activity = self._made(read, whole=whole)
        return self._activity

    def _worker(self, read: GpuReader, began: str, names: tuple[str, ...]) -> int:
        """Add the growth of these sums of the worker. Return the growth of the first. New sums began at 0."""
        since = read.number(f"{PART}.{began}_nanoseconds", PART)
        if isinstance(since, Missing):
            return 0
        new, self._began[began] = self._began.get(began) != since, since
        growth = []
        for name in names:
            value = read.number(f"{PART}.{name}_nanoseconds", PART)
            before = 0 if new else self._last.get(name, 0)
            if isinstance(value, Missing):
                self._last[name] = before
                growth.append(0)
                continue
            self._last[name] = value
            growth.append(max(0, value - before))
            self._sums[name] = self._sums.get(name, 0) + growth[-1]
        return growth[0]

    def _account(self, read: GpuReader, now: int, measured: int) -> None:
        """Add the time that passed and was not measured to the gap. Without an answer, all time up to now is a gap."""
        until = read.number(f"{PART}.until_nanoseconds", PART)
        if self._until is None:
            began = read.number(f"{PART}.began_nanoseconds", PART)
            self._until = now if isinstance(began, Missing) else began
        end = now if isinstance(until, Missing) else until
        self._gap += max(0, end - self._until - measured)
        self._until = max(self._until, end)

    def _count(self, name: str, value: int | Missing) -> bool:
        """Add the growth of a counter of the driver. Return False if the counter went back, so that the growth is not known."""
        if isinstance(value, Missing):
            return True
        before = self._last.get(name, value)
        self._last[name] = value
        self._sums[name] = self._sums.get(name, 0) + max(0, value - before)
        return value >= before

    def _count_energy(self, read: GpuReader, now: int) -> None:
        value = read.number("power.energy_millijoules", PART)
        if isinstance(value, Missing):
            return
        if not self._count("energy", value):
            self._energy_gap += now - self._energy_at
        self._energy_at = now

    def _made(self, read: GpuReader, *, whole: bool) -> GpuActivity:
        sums = self._sums
        answers = _is_read_once(self._part)

        def seconds(name: str) -> float | Missing:
            why = read.value(f"{PART}.{name}_nanoseconds", f"{PART}.{name}_seconds")
            return sums[name] / _NANO if name in sums else why if isinstance(why, Missing) else unreadable("not read")

        def count(name: str, path: str, *, gap: bool = False) -> int | Missing:
            """``gap``: time without this counter is counted elsewhere, so that the last sum may stay."""
            why = read.value(path, f"{PART}.{name}")
            if name in sums and (gap or not isinstance(why, Missing)):
                return sums[name]
            return why if whole and isinstance(why, Missing) else _NOT_OF_INSTANCE

        millijoules = count("energy", "power.energy_millijoules", gap=True)
        more: dict[str, Any] = {f"{name}_seconds": seconds(name) for name in _GPM}
        more |= {name: count(name, path, gap=not answers) for name, path in _BYTES}
        return GpuActivity(
            measured_seconds=sums.get("measured", 0) / _NANO,
            gap_seconds=self._gap / _NANO,
            busy_seconds=seconds("busy") if whole else _NOT_OF_INSTANCE,
            spot_seconds=sums.get("spot", 0) / _NANO,
            gpm_seconds=sums.get("gpm", 0) / _NANO,
            energy_joules=millijoules if isinstance(millijoules, Missing) else millijoules / 1000,
            energy_gap_seconds=self._energy_gap / _NANO,
            energy_counter_joules=millijoules if isinstance(millijoules, Missing) else self._last["energy"] / 1000,
            **more,
        )
