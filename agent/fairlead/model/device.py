"""Gives a GPU the names under which its history is saved, and lists which facts of a GPU could be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import astuple

from fairlead.model.check_definition import Past
from fairlead.model.facts import Gpu, Missing, Node, Why, unreadable

LISTS = frozenset({"nvlinks"})  # facts that are lists in which the position means something (not processes, which come and go)
SUMS = "activity"  # not a fact that was read: what the agent has added up since it began
#: nvml.h: "On MIG-enabled GPUs, querying device utilization rates is not currently supported" (nvmlDeviceGetUtilizationRates),
#: "with active instances, querying the number of remapped rows is not supported" (nvmlDeviceGetRemappedRows).
NOT_UNDER_MIG = frozenset({"utilization_percent", "remap", "remap.histogram"})
_NVIDIA = 0x10DE
_NOT_THERE = unreadable("not there any more")


def listed_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return all GPUs that the driver lists, lost GPUs too. If the driver does not answer, return none.
    ``model.unread.unlisted`` reports that case."""
    return () if isinstance(node.gpus, Missing) else node.gpus


def readable_gpus(node: Node) -> tuple[Gpu, ...]:
    """Return the GPUs that can be judged: the GPUs that the driver lists and has not lost. `gpu_count` reports all others."""
    return tuple(gpu for gpu in listed_gpus(node) if not gpu.lost)


def device_of(gpu: Gpu) -> str:
    """Return the name under which samples and strikes are saved: the serial number if it is known, else the PCI address."""
    return gpu.pci if isinstance(gpu.serial, Missing) else gpu.serial


def names_of(gpu: Gpu) -> tuple[str, ...]:
    """Return both names of a GPU, which are its serial and its PCI address. A GPU whose serial cannot be read any more is still
    found under its address."""
    return (gpu.pci,) if isinstance(gpu.serial, Missing) else (gpu.serial, gpu.pci)


def gpu_cards_of(node: Node) -> dict[str, str]:
    """Return the name of the GPU card at each PCI address: its serial, else its UUID. GPUs with neither are left out."""
    known = {} if isinstance(node.gpus, Missing) else {g.pci: (g.serial, g.uuid) for g in node.gpus if g.pci and not g.lost}
    named = {pci: next((n for n in names if isinstance(n, str)), "") for pci, names in known.items()}
    return {pci: name for pci, name in named.items() if name}


def gpu_labels_of(node: Node) -> dict[str, tuple[str, str]]:
    """Return NVML's index and the UUID by PCI address, for the GPUs whose UUID can be read."""
    return {g.pci: (str(g.index), g.uuid) for g in readable_gpus(node) if g.pci and isinstance(g.uuid, str)}


def gpu_addresses(node: Node, past: Past) -> frozenset[str] | None:
    """Return the PCI addresses at which this machine has a GPU or had one, or None if that cannot be known. They are those of the
    driver's list, of NVIDIA functions on the PCI bus, and of cards that were seen earlier, in this boot or another."""
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
        if isinstance(inner, Missing) or inner is None or name == SUMS:
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
    """Return a fact by its dotted name. If an outer fact is Missing, return that Missing. If there is no such fact, return a
    Missing that says so."""
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
    """Return whether this fact of the same GPU card could be read earlier. For a card that is new in its slot, return False."""
    return any(f"{device}/{name}" in past.readable for device in _with_a_past(gpu, past))


def _with_a_past(gpu: Gpu, past: Past) -> tuple[str, ...]:
    """Return the names under which facts of the same card may have been read earlier."""
    new_here = isinstance(gpu.serial, str) and f"{gpu.serial}/pci" not in past.readable and f"{gpu.pci}/serial" in past.readable
    return () if new_here else names_of(gpu)


def newly_unreadable(gpu: Gpu, past: Past) -> dict[str, Missing]:
    """Return every fact of a GPU that could be read earlier and cannot be read now, by its dotted name. Facts that the profile
    declares as unsupported are left out. If a whole group of facts cannot be read, only the group is listed."""
    if not past.readable:
        return {}
    silent = tuple(_unreadable(gpu, ""))
    lost = _read_once(tuple(name for name, _ in silent), _with_a_past(gpu, past), past.readable)
    return {name: why for name, why in silent if name in lost} if lost else {}


@lru_cache(maxsize=32)  # the facts that a GPU does not have are the same at every sweep
def _read_once(names: tuple[str, ...], devices: tuple[str, ...], readable: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in names for device in devices if f"{device}/{name}" in readable)


def _unreadable(value: Struct, prefix: str) -> Iterator[tuple[str, Missing]]:
    for name, inner in zip(value.__struct_fields__, astuple(value), strict=True):
        if name == SUMS:
            continue
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
    return *found, (f"{prefix}{len(items)}", _NOT_THERE)  # the position after the last item: earlier there may have been an item


def not_under_mig(gpu: Gpu, name: str, why: Missing) -> bool:
    """Return whether NVML rightly has no value for this fact, because MIG is on (``NOT_UNDER_MIG``)."""
    return gpu.mig_current is True and name in NOT_UNDER_MIG and "NOT_SUPPORTED (3)" in why.detail
