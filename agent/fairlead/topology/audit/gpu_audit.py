"""Finds GPUs about which too little is known: lost GPUs, GPUs that the driver does not list, and all GPUs if NVML did not
answer."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.facts import Missing
from fairlead.model.finding import Action, Finding, Level
from fairlead.topology.audit.machine_view import MachineView, finding


def unseen(view: MachineView) -> Iterable[Finding]:
    """Find GPUs that NVML has lost or does not list. If NVML gave no answer at all, return one finding that says so."""
    gpus = view.node.gpus
    on_bus = {g.pci for g in view.gpus if g.vendor == "NVIDIA" and not g.passed_through}
    if isinstance(gpus, Missing):
        if on_bus:
            yield finding(
                "no_nvml", "", "NVML's answer is missing: NVLink, GPU memory and lost GPUs are not shown", gpus.detail,
                action=Action.NONE, level=Level.OK,
            )  # fmt: skip
        return
    for gpu in gpus:
        if gpu.lost:
            words = f"GPU {gpu.pci} is lost: its NVLinks and memory are not known; `fairlead check` says what to do"
            yield finding("gpu_lost", gpu.pci, words, action=Action.REBOOT_NODE)
    for pci in sorted(on_bus - {g.pci for g in gpus}):
        if gpus:
            yield finding(
                "gpu_unlisted", pci, f"GPU {pci} is on the PCI bus, and the driver does not list it", action=Action.REBOOT_NODE
            )
