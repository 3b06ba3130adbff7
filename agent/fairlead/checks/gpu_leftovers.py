"""Checks that every process on a GPU belongs to a job or an allowed service, and that no GPU memory is in use without a process.

nvmlDeviceGetComputeRunningProcesses_v3 lists the processes of a GPU. The check finds the job of a process by the process's
control group (/proc/PID/cgroup). The processes of a job are in Slurm's `job_N`, and no user can choose this name. The site allows
services by the name of their systemd unit. Memory in use (nvmlDeviceGetMemoryInfo_v2, without the memory that the driver
reserves) without any process means that the driver did not remove a context. The next job then finds the GPU full. NVML may list
a process that does not exist. Then either the process has ended and the driver has not released it, or the process is in another
PID namespace.

The check never kills a process. A finding counts only after several sweeps, since the driver lists a process for a while after it
has ended. In MIG mode the memory of each GPU instance is judged by its own processes, because the memory belongs to the instance.
Memory is not judged if the kernel manages it as a NUMA node without CPUs. This is the default on GH200, GB200 and GB300. Any
process, and also the page cache, may get pages of such memory (NVIDIA, "Understanding Memory Management on Hardware-Coherent
Platforms").
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import readable_gpus
from fairlead.model.facts import Gpu, GpuProcess, Missing, Node, Why
from fairlead.model.finding import Action, Finding, Level, Mode, with_action
from fairlead.model.mig_instances import name_of
from fairlead.model.unread import unlisted, unread

ALLOWED = (
    "slurmd.service",  # without Slurm's cgroup plugin, jobs are in this unit
    "nvidia-persistenced.service", "nvidia-mps*.service", "nvidia-dcgm*.service", "dcgm*.service", "nv-hostengine*.service",
    "nvidia-fabricmanager.service", "nvidia-imex.service", "display-manager.service", "gdm*.service", "lightdm.service",
    "sddm.service", "fairlead*.service",
)  # fmt: skip
_PIDS_SHOWN = 4


class Params(CheckParams, frozen=True, kw_only=True):
    allowed_units: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...],
        Meta(description="Names of systemd units (shell patterns) whose processes may use the GPUs."),
    ] = ALLOWED
    memory_max_bytes: Annotated[
        int, Meta(ge=0, description="This much memory in use without a process is accepted (a desktop, CUDA services).")
    ] = 1 << 30


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        if isinstance(gpu.processes, Missing):
            if gpu.processes.why is Why.UNREADABLE:
                yield unread(f"the processes of GPU {gpu.pci}", gpu.processes, gpu.pci)
            continue
        yield from _processes(gpu, gpu.processes, params)
        if gpu.mig_current is True:
            yield from _instances(gpu, params)
        elif not gpu.processes and not _pooled(gpu, node):
            yield from _memory(gpu, params)


def _pooled(gpu: Gpu, node: Node) -> bool:
    """Return whether the kernel manages this GPU's memory. A NUMA node without CPUs then has about the size of that memory."""
    total = gpu.memory_total_bytes
    sizes = [n.memory_bytes for n in node.numa if not n.cpus and isinstance(n.memory_bytes, int)]
    return isinstance(total, int) and any(0.75 * total < size < 1.25 * total for size in sizes)


def _processes(gpu: Gpu, processes: tuple[GpuProcess, ...], params: Params) -> Iterator[Finding]:
    foreign: list[str] = []
    ended: list[str] = []
    for process in processes:
        owner = process.owner
        if isinstance(owner, Missing):
            yield unread(f"whose process {process.pid} on GPU {gpu.pci} is", owner, gpu.pci)
        elif owner.gone:
            ended.append(str(process.pid))
        elif owner.job is None and not any(fnmatchcase(owner.unit, pattern) for pattern in params.allowed_units):
            whose = f"user {owner.uid}" if owner.uid is not None else owner.unit or "no unit"
            foreign.append(f"{process.pid} ({whose})")
    if foreign:
        words = f"processes of no job on GPU {gpu.pci}"
        yield with_action(Level.DRAIN, words, Action.NONE, _some(foreign), device=gpu.pci, evidence_id=",".join(foreign))
    if ended:
        words = f"GPU {gpu.pci} is held by processes that have ended"
        yield with_action(Level.DRAIN, words, Action.RESET_GPU, _some(ended), device=gpu.pci, evidence_id=",".join(ended))


def _some(pids: list[str]) -> str:
    more = len(pids) - _PIDS_SHOWN
    return "processes " + ", ".join(pids[:_PIDS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _memory(gpu: Gpu, params: Params) -> Iterator[Finding]:
    used = gpu.memory_used_bytes
    if isinstance(used, Missing):
        if used.why is Why.UNREADABLE:
            yield unread(f"the memory in use on GPU {gpu.pci}", used, gpu.pci)
    elif used > params.memory_max_bytes:
        words = f"memory of GPU {gpu.pci} is in use and no process has it"
        yield with_action(Level.DRAIN, words, Action.RESET_GPU, f"{used / (1 << 20):.0f} MiB", device=gpu.pci)


def _instances(gpu: Gpu, params: Params) -> Iterator[Finding]:
    """Judge the memory of each GPU instance. Its compute instances share it, so a process on one of them may have it."""
    if isinstance(gpu.mig_devices, Missing):
        if gpu.mig_devices.why is Why.UNREADABLE:
            yield unread(f"the MIG devices of GPU {gpu.pci}", gpu.mig_devices, gpu.pci)
        return
    for gi in sorted({device.gi for device in gpu.mig_devices}):
        parts = [device for device in gpu.mig_devices if device.gi == gi]
        where = f"{name_of(parts)} of GPU {gpu.pci}"
        used = parts[0].memory_used_bytes
        values = (used, *(device.processes for device in parts))
        missing = next((value for value in values if isinstance(value, Missing) and value.why is Why.UNREADABLE), None)
        if missing is not None:
            yield unread(f"the memory in use or the processes on {where}", missing, gpu.pci)
        elif isinstance(used, int) and used > params.memory_max_bytes and not any(device.processes for device in parts):
            words = f"memory of {where} is in use and no process has it"
            amount = f"{used / (1 << 20):.0f} MiB"
            yield with_action(Level.DRAIN, words, Action.RESET_GPU, amount, device=gpu.pci, evidence_id=f"gi={gi}")


check = Check(
    summary="No process without a job, and no memory without a process, on the GPUs",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=3,
    confirm_of=3,
    recover=2,
    slow=True,
)
