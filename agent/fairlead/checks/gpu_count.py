"""Checks that every expected GPU is on the PCI bus and in the driver's list, and that none is lost.

The hardware profile declares the expected number. fairlead never learns it from the GPUs that it finds. For a GPU that no longer
answers, NVML returns NVML_ERROR_GPU_IS_LOST (15, nvml.h) and may leave the GPU out of its count. The indices of the other GPUs
then shift, so the check compares GPUs by PCI address (/sys/bus/pci/devices, vendor 0x10de, class 0x0300 or 0x0302). A GPU can
vanish without any Xid (NVSentinel issue 155). `nvml_responsive` judges whether the driver answers at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, with_action

NVIDIA = 0x10DE
GPU_CLASSES = (0x0300, 0x0302)  # VGA and 3D controller, include/linux/pci_ids.h


class Params(CheckParams, frozen=True, kw_only=True):
    expected: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="Number of GPUs of this kind of node. If unset, only PCI and NVML are compared."),
    ] = None


def _drain(summary: str, device: str = "", *evidence: str) -> Finding:
    return with_action(Level.DRAIN, summary, Action.REBOOT_NODE, *evidence, device=device)


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    on_bus = {d.address for d in node.pci if d.vendor == NVIDIA and d.class_code >> 8 in GPU_CLASSES and not d.virtual_function}
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


check = Check(
    summary="All expected GPUs are on the PCI bus and in the driver's list",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    boot_grace_seconds=30,
)
