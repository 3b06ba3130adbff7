"""How a GPU is named over time, and which of its facts could be read: what history is kept by."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from fairlead.model.facts import Gpu, Missing, Node
from fairlead.model.finding import Finding, Level, Service


def device_of(gpu: Gpu) -> str:
    """The name that samples and strikes are kept under: the serial number where known, else the PCI address."""
    return gpu.pci if isinstance(gpu.serial, Missing) else gpu.serial


def names_of(gpu: Gpu) -> tuple[str, ...]:
    """Both names: a GPU that cannot say its serial any more is still found under its address."""
    return (gpu.pci,) if isinstance(gpu.serial, Missing) else (gpu.serial, gpu.pci)


def readable_fields(node: Node) -> frozenset[str]:
    """``device/field`` for every fact of every GPU that was read, under both names of the GPU (``Past.readable``).

    Nested facts are dotted: ``1651223/ecc.volatile_corrected``.
    """
    if isinstance(node.gpus, Missing):
        return frozenset()
    return frozenset(f"{name}/{field}" for gpu in node.gpus for field in _fields(gpu, "") for name in names_of(gpu))


def _fields(value: Struct, prefix: str) -> Iterator[str]:
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if isinstance(inner, Missing):
            continue
        yield f"{prefix}{name}"
        if isinstance(inner, Struct):
            yield from _fields(inner, f"{prefix}{name}.")


def field(gpu: Gpu, name: str) -> object:
    """A fact by its dotted name; the Missing that hides it when an outer one is missing."""
    value: object = gpu
    for part in name.split("."):
        if isinstance(value, Missing):
            return value
        value = getattr(value, part)
    return value


def unlisted(check: str, node: Node) -> Iterator[Finding]:
    """UNKNOWN for a check that judges GPUs when the driver did not say which there are: silence would read as health."""
    if isinstance(node.gpus, Missing):
        yield Finding(check=check, level=Level.UNKNOWN, summary="cannot judge: NVML lists no GPUs", service=Service.KEEP)
