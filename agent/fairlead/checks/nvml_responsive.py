"""Checks that the NVIDIA driver is loaded and that every NVML call returns.

A separate process, the NVML worker, makes the calls. The finding names the call that does not return in time, and the GPU. If the
worker is in uninterruptible sleep (state D in /proc/PID/stat, proc(5)), it hangs in the driver, and the check drains after
`stuck_seconds`. If the worker is only slow (state R or S), or dies in the same call again and again, the check drains after
`slow_seconds`. If the worker dies outside all calls or cannot be started, this is a fault of the agent. The finding is then
UNKNOWN, because a broken installation must not drain a cluster.

For a node without the driver and without an NVIDIA GPU on its PCI bus, the finding is UNKNOWN, too. `gpu_count` judges the number
of GPUs. `driver_library` reports a driver module and a library of different versions. While a driver is being installed (`apply`,
maintenance) the findings of this check are suppressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, StuckCall, Why
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.pci_kind import NVIDIA, kind_of

MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
# These facts are read in every sweep. The facts that identify a GPU are read once and then remembered.
VITAL = ("memory_used_bytes", "temperature_celsius", "performance_state")


class Params(CheckParams, frozen=True, kw_only=True):
    stuck_seconds: Annotated[
        float, Meta(gt=0, description="The check drains after a call is in uninterruptible sleep for this long.")
    ] = 10.0
    slow_seconds: Annotated[
        float, Meta(gt=0, description="The check drains after any other call has not returned for this long.")
    ] = 30.0


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    if node.nvml_released:
        words = "NVML is let go of on request (/run/fairlead/nvml-release): nothing is known of the GPUs"
        yield with_action(Level.UNKNOWN, words, Action.NONE)
        return
    if node.stuck is not None:
        yield _stuck(node.stuck, params, node.gpus.detail if isinstance(node.gpus, Missing) else "")
    module = node.driver.module_version
    if isinstance(module, Missing) and isinstance(node.gpus, Missing) and node.stuck is None:
        words = "the NVIDIA driver is not loaded"
        if not node.pci:  # gpu_count judges a machine whose profile declares GPUs
            yield with_action(Level.UNKNOWN, f"{words}, and no PCI device could be read", Action.NONE, module.detail)
        elif not any(d.vendor == NVIDIA and kind_of(d) == "gpu" for d in node.pci):
            words = f"{words}, and no NVIDIA GPU is on the PCI bus"
            yield with_action(Level.UNKNOWN, words, Action.NONE, module.detail)
        else:
            yield with_action(Level.DRAIN, words, Action.PROVISION, module.detail, node.gpus.detail)
        return
    if isinstance(node.gpus, Missing):
        if node.stuck is None and node.driver.init_code != MISMATCH:  # driver_library reports a mismatch
            yield with_action(Level.DRAIN, "NVML does not answer", Action.REBOOT_NODE, node.gpus.detail)
        return
    for gpu in readable_gpus(node):
        if _mute(gpu):
            yield with_action(
                Level.DRAIN, f"GPU {gpu.pci} answers no NVML call", Action.REBOOT_NODE, _detail(gpu), device=gpu.pci
            )


def _stuck(stuck: StuckCall, params: Params, detail: str) -> Finding:
    where = f" on GPU {stuck.gpu}" if stuck.gpu else ""
    call = stuck.call or "an NVML call"
    name = f"{stuck.call}/{stuck.gpu}"
    evidence = f"waited {stuck.seconds:.0f} s, worker in state {stuck.process_state}"
    if stuck.process_state == "X":
        drains = bool(stuck.call) and stuck.seconds >= params.slow_seconds
        return with_action(
            Level.DRAIN if drains else Level.UNKNOWN,
            "the NVML worker died" + (f" in {call}{where}" if stuck.call else "") + (", again and again" if drains else ""),
            Action.REBOOT_NODE if drains else Action.NONE,
            evidence,
            detail,
            device=stuck.gpu,
            evidence_id=name,
        )
    sleeps = stuck.process_state == "D"
    if stuck.seconds < (params.stuck_seconds if sleeps else params.slow_seconds):
        return with_action(
            Level.UNKNOWN, f"{call}{where} has not come back yet", Action.NONE, evidence, device=stuck.gpu, evidence_id=name
        )
    how = " (driver hangs)" if sleeps else ""
    return with_action(
        Level.DRAIN,
        f"{call}{where} does not come back{how}",
        Action.REBOOT_NODE,
        evidence,
        device=stuck.gpu,
        evidence_id=name,
    )


def _mute(gpu: Gpu) -> bool:
    """Return whether all values of ``VITAL``, which every GPU can give, are unreadable. A value that the profile lists as
    unsupported does not count as unreadable."""
    values = [getattr(gpu, name) for name in VITAL]
    return all(isinstance(v, Missing) and v.why is Why.UNREADABLE for v in values)


def _detail(gpu: Gpu) -> str:
    return gpu.temperature_celsius.detail if isinstance(gpu.temperature_celsius, Missing) else ""


check = Check(
    summary="The NVIDIA driver is loaded, and every call comes back",
    params=Params,
    judge=judge,
    mode=Mode.ENFORCE,
    boot_grace_seconds=30,
)
