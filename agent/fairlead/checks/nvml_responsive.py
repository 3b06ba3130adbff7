"""The NVIDIA driver answers: it is loaded, fits its library, and every NVML call comes back.

A call is made in a process of its own; one that does not come back in time is named here with its GPU. A worker in
uninterruptible sleep (state D in /proc/PID/stat, proc(5)) hangs in the driver and drains soon; one that is merely slow
(R, S) gets longer, and so does one that dies in a call again and again. One that dies outside all calls, or cannot be
started, is trouble of the agent's own (a broken installation must not drain a cluster): unknown. So is a node without the driver
and without an NVIDIA GPU on its bus: how many there should be is `gpu_count`'s to say. A driver module and
library of different versions are the business of `driver_library`. While a driver is being installed (`apply`, maintenance)
these findings are held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check import Check, CheckParams, Past
from fairlead.model.facts import Gpu, Missing, Node, StuckCall, Why
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.pci_kind import NVIDIA, kind_of

MISMATCH = 18  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
VITAL = ("memory_used_bytes", "temperature_celsius", "performance_state")  # read anew each time; who it is, is remembered


class Params(CheckParams, frozen=True, kw_only=True):
    stuck_seconds: Annotated[float, Meta(gt=0, description="A call in uninterruptible sleep drains after this long.")] = 10.0
    slow_seconds: Annotated[float, Meta(gt=0, description="Any other call that does not come back drains after this long.")] = (
        30.0
    )


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
        if not node.pci:  # a machine that declares GPUs is judged by gpu_count
            yield with_action(Level.UNKNOWN, f"{words}, and no PCI device could be read", Action.NONE, module.detail)
        elif not any(d.vendor == NVIDIA and kind_of(d) == "gpu" for d in node.pci):
            words = f"{words}, and no NVIDIA GPU is on the PCI bus"
            yield with_action(Level.UNKNOWN, words, Action.NONE, module.detail)
        else:
            yield with_action(Level.DRAIN, words, Action.PROVISION, module.detail, node.gpus.detail)
        return
    if isinstance(node.gpus, Missing):
        if node.stuck is None and node.driver.init_code != MISMATCH:  # driver_library says so
            yield with_action(Level.DRAIN, "NVML does not answer", Action.REBOOT_NODE, node.gpus.detail)
        return
    for gpu in node.gpus:
        if not gpu.lost and _mute(gpu):  # a lost one is named by gpu_count
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
    """Nothing that every GPU can say is said, and not because the profile says that it cannot."""
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
