"""Names a GPU over time, and lists which of its facts could be read. History is kept under these names."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import astuple

from fairlead.model.check import Past
from fairlead.model.facts import Gpu, Missing, Node, Why, unreadable

LISTS = frozenset({"nvlinks"})  # facts that are lists in which the position means something (not processes, which come and go)
#: nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not currently supported" (nvmlDeviceGetUtilizationRates),
#: "with active instances, querying the number of remapped rows is not supported" (nvmlDeviceGetRemappedRows).
NOT_UNDER_MIG = frozenset({"utilization_percent", "remap", "remap.histogram"})
_NVIDIA = 0x10DE
_NOT_THERE = unreadable("not there any more")


def listed_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return all GPUs that the driver lists, lost ones too. Return none where the driver does not answer;
    ``model.unread.unlisted`` reports that."""
    return () if isinstance(node.gpus, Missing) else node.gpus


def readable_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs that can be judged: those that the driver lists and has not lost. `gpu_count` reports the others."""
    return tuple(gpu for gpu in listed_gpus(node) if not gpu.lost)


def device_of(gpu: Gpu) -> str:
    """Return the name under which samples and strikes are kept: the serial number where it is known, else the PCI address."""
    return gpu.pci if isinstance(gpu.serial, Missing) else gpu.serial


def names_of(gpu: Gpu) -> tuple[str, ...]:
    """Return both names, so that a GPU that cannot say its serial any more is still found under its address."""
    return (gpu.pci,) if isinstance(gpu.serial, Missing) else (gpu.serial, gpu.pci)


def gpu_cards_of(node: Node) -> dict[str, str]:
    """Return the GPU card by PCI address: its serial, else its UUID, of the GPUs that say either."""
    known = {} if isinstance(node.gpus, Missing) else {g.pci: (g.serial, g.uuid) for g in node.gpus if g.pci and not g.lost}
    named = {pci: next((n for n in names if isinstance(n, str)), "") for pci, names in known.items()}
    return {pci: name for pci, name in named.items() if name}


def gpu_labels_of(node: Node) -> dict[str, tuple[str, str]]:
    """Return NVML's index and the UUID by PCI address, of the GPUs that say both."""
    return {g.pci: (str(g.index), g.uuid) for g in readable_gpus(node) if g.pci and isinstance(g.uuid, str)}


def gpu_addresses(node: Node, past: Past) -> frozenset[str] | None:
    """Return the addresses where this machine has a GPU or had one: in the driver's list, as an NVIDIA function on the PCI
    bus, or as a card that was seen before, in this boot or another. None where that cannot be known."""
    if isinstance(node.gpus, Missing) or not node.pci or any(not gpu.pci for gpu in node.gpus):
        return None
    return frozenset((*(g.pci for g in node.gpus), *(d.address for d in node.pci if d.vendor == _NVIDIA), *past.gpu_cards))


def readable_fields(node: Node) -> frozenset[str]:
    """Return ``device/field`` for every fact of every GPU that was read, under both names of the GPU (``Past.readable``).

    Nested facts have dotted names: ``1651223/ecc.volatile_corrected``.
    """
    if isinstance(node.gpus, Missing):
        return frozenset()
    facts = [(names_of(gpu), tuple(_fields(gpu, ""))) for gpu in node.gpus]
    return frozenset().union(*(_named(name, said) for names, said in facts for name in names))


@lru_cache(maxsize=32)  # a GPU has the same fields at every sweep
def _named(device: str, facts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"{device}/{fact}" for fact in facts)


def _fields(value: Struct, prefix: str) -> Iterator[str]:
    for name, inner in zip(value.__struct_fields__, astuple(value), strict=True):
        if isinstance(inner, Missing) or inner is None:
            continue
        yield f"{prefix}{name}"
        if isinstance(inner, Struct):
            yield from _fields(inner, f"{prefix}{name}.")
        elif name in LISTS:
            yield from _fields_of(inner, f"{prefix}{name}.")


@lru_cache(maxsize=64)  # the links of a GPU are most of its facts, and change least often
def _fields_of(items: tuple[Struct, ...], prefix: str) -> tuple[str, ...]:
    return tuple(f for index, item in enumerate(items) for f in (f"{prefix}{index}", *_fields(item, f"{prefix}{index}.")))


def field(gpu: Gpu, name: str) -> object:
    """Return a fact by its dotted name. Return the Missing of an outer fact that hides it, or a Missing when there is no such
    fact."""
    value: object = gpu
    for part in name.split("."):
        if isinstance(value, Missing):
            return value
        if isinstance(value, tuple):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = getattr(value, part)
        if value is None:
            return _NOT_THERE
    return value


def was_readable(gpu: Gpu, name: str, past: Past) -> bool:
    """Say whether a fact of this very GPU could be read earlier. A card that is new in its slot has no past of its own."""
    return any(f"{device}/{name}" in past.readable for device in _with_a_past(gpu, past))


def _with_a_past(gpu: Gpu, past: Past) -> tuple[str, ...]:
    """Return the names under which this very card may have been read earlier."""
    new_here = isinstance(gpu.serial, str) and f"{gpu.serial}/pci" not in past.readable and f"{gpu.pci}/serial" in past.readable
    return () if new_here else names_of(gpu)


def newly_unreadable(gpu: Gpu, past: Past) -> dict[str, Missing]:
    """Return by its dotted name every fact of a GPU that could be read earlier and cannot be read now. What the profile
    excuses is left out, and so is what lies above or below a fact that is listed."""
    if not past.readable:
        return {}
    silent = tuple(_unreadable(gpu, ""))
    lost = _read_once(tuple(name for name, _ in silent), _with_a_past(gpu, past), past.readable)
    return {name: why for name, why in silent if name in lost} if lost else {}


@lru_cache(maxsize=32)  # what a GPU has never said it does not say at the next sweep either
def _read_once(names: tuple[str, ...], devices: tuple[str, ...], readable: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names for device in devices if f"{device}/{name}" in readable)


def _unreadable(value: Struct, prefix: str) -> Iterator[tuple[str, Missing]]:
    for name, inner in zip(value.__struct_fields__, astuple(value), strict=True):
        if inner is None:
            yield f"{prefix}{name}", _NOT_THERE
        elif isinstance(inner, Missing):
            if inner.why is Why.UNREADABLE:
                yield f"{prefix}{name}", inner
        elif isinstance(inner, Struct):
            yield from _unreadable(inner, f"{prefix}{name}.")
        elif name in LISTS:
            yield from _unreadable_of(inner, f"{prefix}{name}.")


@lru_cache(maxsize=64)
def _unreadable_of(items: tuple[Struct, ...], prefix: str) -> tuple[tuple[str, Missing], ...]:
    found = [silent for index, item in enumerate(items) for silent in _unreadable(item, f"{prefix}{index}.")]
    return *found, (f"{prefix}{len(items)}", _NOT_THERE)  # the first position past the end: an item may have been there


def not_under_mig(gpu: Gpu, name: str, why: Missing) -> bool:
    """Say whether NVML has no answer because MIG is on, where that is right (``NOT_UNDER_MIG``)."""
    return gpu.mig_current is True and name in NOT_UNDER_MIG and "NOT_SUPPORTED (3)" in why.detail
