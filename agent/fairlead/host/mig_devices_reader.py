"""Reads the MIG devices of one GPU from its part of nvml.json. This conversion is pure."""

from __future__ import annotations

from fairlead.host.gpu_reader import GpuReader
from fairlead.model.facts import Missing, unreadable
from fairlead.model.gpu_state import MigDevice

#: The devices are made of these parts of nvml.json.
PARTS = ("mig_devices", "mig_mode")
FIELD = "mig_devices"


def mig_devices(read: GpuReader) -> tuple[MigDevice, ...] | Missing:
    """Return the MIG devices of a GPU, or () if MIG is off. Return Missing if they cannot be listed, or one has no identity."""
    mode = read.flag("mig_mode.current", "mig_current")
    if isinstance(mode, Missing):
        return mode
    if not mode:
        return ()
    entries = read.items("mig_devices", FIELD)
    if isinstance(entries, Missing):
        return entries
    found = []
    for entry in entries:
        device = (
            _device(GpuReader(entry, read.unsupported)) if isinstance(entry, dict) else unreadable(f"nvml: {FIELD}: no table")
        )
        if isinstance(device, Missing):
            return device
        found.append(device)
    return tuple(found)


def _device(read: GpuReader) -> MigDevice | Missing:
    uuid, gi, ci = read.text("uuid", FIELD), read.number("gi", FIELD), read.number("ci", FIELD)
    for value in (uuid, gi, ci):
        if isinstance(value, Missing):
            return value
    name = read.text("name", FIELD)
    return MigDevice(
        uuid=str(uuid),
        gi=int(gi),  # type: ignore[arg-type]
        ci=int(ci),  # type: ignore[arg-type]
        profile=name if isinstance(name, Missing) else _profile(name),
        start=read.number("placement.start", FIELD),
        size=read.number("placement.size", FIELD),
        memory_total_bytes=read.number("memory.total_bytes", FIELD),
        memory_used_bytes=read.number("memory.used_bytes", FIELD),
        sram_uncorrected=read.number("sram_uncorrected", "mig_devices.sram_uncorrected"),
        processes=_processes(read),
    )


def _profile(name: str) -> str | Missing:
    """Return the profile in the name of a MIG device, such as 3g.40gb of "NVIDIA H100 80GB HBM3 MIG 3g.40gb"."""
    _, mark, profile = name.rpartition(" MIG ")
    return profile if mark else unreadable(f"nvml: the name {name[:80]!r} has no profile")


def _processes(read: GpuReader) -> tuple[int, ...] | Missing:
    found = read.items("processes", FIELD)
    if isinstance(found, Missing):
        return found
    if not all(type(pid) is int for pid in found):
        return unreadable("nvml: mig_devices: processes does not hold numbers")
    return tuple(found)
