"""Makes the labels that name the GPU of a time series: PCI address, NVML index and UUID. dcgm-exporter has the same labels
under the names pci_bus_id, gpu and UUID."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.model.facts import Gpu

LABELS = ("pci", "index", "uuid")

Labels = tuple[str, str, str]  # the values of LABELS


def labels_of(gpus: Sequence[Gpu], known: Mapping[str, tuple[str, str]]) -> tuple[Labels, ...]:
    """Return the label values of each GPU. ``known``: the index and UUID that were last read, by PCI address. The known UUID is
    used for a GPU whose UUID cannot be read any more."""
    return tuple((gpu.pci, str(gpu.index), _uuid(gpu, known)) for gpu in gpus)


def _uuid(gpu: Gpu, known: Mapping[str, tuple[str, str]]) -> str:
    return gpu.uuid if isinstance(gpu.uuid, str) else known.get(gpu.pci, ("", ""))[1]


def labels_at(address: str, gpus: Sequence[Labels], known: Mapping[str, tuple[str, str]]) -> Labels:
    """Return the label values of the GPU at a PCI address. If ``gpus`` does not list it, return the values that were last read.
    If there are none, return only the address."""
    for labels in gpus:
        if labels[0] == address:
            return labels
    return (address, *known.get(address, ("", "")))
