"""Reads the AER counters of PCI functions: /sys/bus/pci/devices/X/aer_dev_correctable, aer_dev_nonfatal, aer_dev_fatal.

Each file has one line per kind of error, and the sum in the last line
(Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, kernel 4.19). The files exist for functions with the AER
capability, on kernels that have AER built in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from fairlead.host.root import Root
from fairlead.model.facts import Gpu, Missing, PciDevice, unreadable
from fairlead.model.gpu_health import AerCounts

DEVICES = "/sys/bus/pci/devices"
FILES = {
    "aer_dev_correctable": "TOTAL_ERR_COR",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL",
    "aer_dev_fatal": "TOTAL_ERR_FATAL",
}

Counts = AerCounts | Missing | None


def counts(root: Root, address: str) -> Counts:
    """Return the AER counters of one PCI function, or None if the kernel has none of these files for the function."""
    values = [_total(root, f"{DEVICES}/{address}/{file}", word) for file, word in FILES.items()]
    if all(v is None for v in values):
        return None
    counts = [
        unreadable(f"{DEVICES}/{address}/{f}: no such file") if v is None else v for f, v in zip(FILES, values, strict=True)
    ]
    return AerCounts(correctable=counts[0], nonfatal=counts[1], fatal=counts[2])


def _total(root: Root, path: str, word: str) -> int | Missing | None:
    text = root.read_text(path, 65536)
    if not isinstance(text, str):
        return text
    for line in text.splitlines():
        name, _, number = line.rpartition(" ")
        if name == word and number.isascii() and number.isdigit():
            return int(number)
    return unreadable(f"{path}: no {word} in it")


def of_gpus(root: Root, gpus: Iterable[PciDevice]) -> dict[str, tuple[Counts, Counts]]:
    """Return the AER counters of each GPU and of the PCIe port above the GPU, by the GPU's PCI address."""
    found = {}
    for gpu in gpus:
        port = gpu.path[-2] if len(gpu.path) > 1 and "." in gpu.path[-2] else ""
        found[gpu.address] = counts(root, gpu.address), counts(root, port) if port else None
    return found


def on_gpus(gpus: tuple[Gpu, ...], known: Mapping[str, tuple[Counts, Counts]]) -> tuple[Gpu, ...]:
    """Return ``gpus`` with the AER counters that ``of_gpus`` has read."""
    return tuple(replace(g, aer=known[g.pci][0], port_aer=known[g.pci][1]) if g.pci in known else g for g in gpus)
