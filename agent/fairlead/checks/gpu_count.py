"""Checks that every expected GPU is on the PCI bus and in the driver's list, and that none is lost.

The hardware profile declares the expected number. fairlead never learns it from the GPUs that it finds. For a GPU that no longer
answers, NVML returns NVML_ERROR_GPU_IS_LOST (15, nvml.h) and may leave the GPU out of its count. The indices of the other GPUs
then shift, so the check compares GPUs by PCI address (/sys/bus/pci/devices, vendor 0x10de, class 0x0300 or 0x0302). A GPU can
vanish without any Xid (NVSentinel issue 155). The check also compares the PCI IDs of the GPUs with those of the hardware profile,
and warns if the profile is for another kind of GPU. If every GPU is of another kind, the values of the profile are not judged
(``Check.another_gpu``), and the result is `unknown`. `nvml_responsive` judges whether the driver answers at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from fairlead.model.another_gpu import is_another_gpu
from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node, PciDevice
from fairlead.model.finding import Action, Finding, Level, Mode, with_action

NVIDIA = 0x10DE
DISPLAY_CLASS, COMPUTE_CLASS = GPU_CLASSES = (0x0300, 0x0302)  # VGA and 3D controller, include/linux/pci_ids.h


class Params(CheckParams, frozen=True, kw_only=True):
    expected: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of GPUs of this kind of node. If unset, only PCI and NVML are compared."),
    ] = None
    pci_ids: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")], ...],
        Meta(description="PCI IDs of the GPU of this kind of node. The hardware profile fills them in. Empty: not judged."),
    ] = ()


def _drain(summary: str, device: str = "", *evidence: str) -> Finding:
    return with_action(Level.DRAIN, summary, Action.REBOOT_NODE, *evidence, device=device)


def gpus_on_bus(node: Node) -> list[PciDevice]:
    """Return NVIDIA's GPUs on the PCI bus, without virtual functions."""
    return [d for d in node.pci if d.vendor == NVIDIA and d.class_code >> 8 in GPU_CLASSES and not d.virtual_function]


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    gpus = gpus_on_bus(node)
    on_bus = {d.address for d in gpus}
    yield from _of_another_kind(node, gpus, params)
    if not node.pci:
        yield Finding(level=Level.UNKNOWN, summary="no PCI device could be read")
    elif params.expected is not None and len(on_bus) < params.expected:
        here = ", ".join(sorted(on_bus)) or "none"
        yield _drain(f"{len(on_bus)} of {params.expected} GPUs on the PCI bus", "", f"on the bus: {here}")
    if isinstance(node.gpus, Missing):
        yield Finding(level=Level.UNKNOWN, summary=f"NVML did not say which GPUs there are ({node.gpus.detail or 'no answer'})")
        return
    lost = tuple(g.pci for g in node.gpus if g.lost)
    for pci in lost:
        yield _drain(f"GPU {pci} is lost", pci, "NVML: GPU is lost (15)")
    listed = {g.pci for g in node.gpus}
    if node.pci:
        for pci in sorted(on_bus - listed):
            yield _drain(f"GPU {pci} is on the PCI bus, but the driver does not list it", pci)
        for pci in sorted(listed - on_bus - set(lost)):
            yield _drain(f"GPU {pci} is in the driver's list, but not on the PCI bus", pci)
    if params.expected is None:
        return
    working = len(listed) - len(lost)
    if working < params.expected and not (lost or on_bus - listed or (node.pci and len(on_bus) < params.expected)):
        yield _drain(
            f"the driver lists {working} of {params.expected} GPUs", "", f"listed: {', '.join(sorted(listed)) or 'none'}"
        )
    elif working > params.expected:
        yield Finding(
            level=Level.WARN,
            summary=f"{working} GPUs, {params.expected} declared: wrong hardware profile?",
            action=Action.PROVISION,
        )


def _ids(gpus: Sequence[PciDevice]) -> list[tuple[str, str]]:
    """Return the address and the PCI ID of each GPU whose PCI ID can be read."""
    return [(d.address, f"{d.vendor:04x}:{d.device:04x}") for d in gpus if d.device]


def compute_gpus(node: Node) -> list[str]:
    """Return the PCI ID of each GPU of the node whose PCI ID can be read. Cards for a display do not count, because such a card
    can be the only one left after all GPUs are lost."""
    return [pci_id for _, pci_id in _ids([d for d in gpus_on_bus(node) if d.class_code >> 8 == COMPUTE_CLASS])]


def is_another_kind(node: Node, params: Params) -> bool:
    """Return whether every GPU of the node has another PCI ID than the hardware profile says."""
    return bool(params.pci_ids) and is_another_gpu(compute_gpus(node), params.pci_ids)


def _of_another_kind(node: Node, gpus: Sequence[PciDevice], params: Params) -> Iterator[Finding]:
    """Yield one finding if GPUs have other PCI IDs than the hardware profile says."""
    known = _ids(gpus)
    others = [(address, pci_id) for address, pci_id in known if params.pci_ids and pci_id not in params.pci_ids]
    if not others:
        return
    address, pci_id = others[0]
    declared = f"and the profile is for {', '.join(params.pci_ids)}"
    if is_another_kind(node, params):
        here = " or ".join(dict.fromkeys(pci_id for _, pci_id in known))
        words = f"every GPU is {here}, {declared}: choose another hardware profile"
        evidence = ("the values of this profile are not judged; if they are right, declare checks.gpu_count.pci_ids",)
        yield Finding(level=Level.UNKNOWN, summary=words, evidence=evidence, action=Action.PROVISION)
        return
    which = f"{address} is" if len(others) == 1 else f"{address} and {len(others) - 1} more are"
    words = f"GPU {which} {pci_id}, {declared}"
    yield Finding(level=Level.WARN, device=address, summary=words, action=Action.CHECK_HARDWARE)


check = Check(
    summary="All expected GPUs are on the PCI bus and in the driver's list",
    params=Params,
    another_gpu={"expected": None},
    judge=judge,
    mode=Mode.ENFORCE,
    boot_grace_seconds=30,
)
