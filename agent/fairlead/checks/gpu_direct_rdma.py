"""Checks that RDMA adapters can read and write GPU memory, by DMA-BUF or by a peer memory module.

NVIDIA's GPUDirect RDMA documentation (docs.nvidia.com/datacenter/cloud-native/gpu-operator, "GPUDirect RDMA") says that DMA-BUF
needs the open kernel modules and Linux 5.12 or later. Otherwise nvidia_peermem must be loaded. Nothing loads this module
automatically. If it is absent, jobs are slow and no error is reported. NCCL looks for /sys/module/nvidia_peermem/version or
/sys/kernel/mm/memory_peers/nv_mem (NCCL src/transport/net_ib). /proc/driver/nvidia/version says whether the modules are open or
proprietary, and /proc/version names the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action

DMA_BUF_KERNEL = (5, 12)


class Params(CheckParams, frozen=True, kw_only=True):
    required: Annotated[bool, Meta(description="The node has RDMA adapters, and jobs send GPU memory through them.")] = False
    peermem: Annotated[
        bool, Meta(description="nvidia_peermem is wanted although the node can do DMA-BUF (older MPI and NCCL need it).")
    ] = False


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    have = node.driver.software
    if not params.required or have.peermem is True:
        return
    able = isinstance(have.open_module, bool) and isinstance(have.kernel, tuple)
    dma_buf = have.open_module is True and isinstance(have.kernel, tuple) and have.kernel >= DMA_BUF_KERNEL
    if dma_buf and not params.peermem:
        return
    if isinstance(have.peermem, Missing) or not (able or params.peermem):
        missing = next((v for v in (have.peermem, have.open_module, have.kernel) if isinstance(v, Missing)), None)
        yield Finding(
            level=Level.UNKNOWN,
            summary="whether adapters reach GPU memory cannot be read",
            evidence=(missing.detail,) if missing else (),
        )
        return
    why = "" if params.peermem else "no DMA-BUF with " + ("this kernel" if have.open_module is True else "proprietary modules")
    yield with_action(
        Level.DRAIN,
        f"nvidia_peermem is not loaded{' and ' + why if why else ''}",
        Action.PROVISION,
        "modprobe nvidia_peermem",
        service=Service.DRAIN_AFTER_JOB,
    )


check = Check(
    summary="RDMA adapters reach GPU memory: DMA-BUF or nvidia_peermem",
    params=Params,
    another_gpu={"required": False},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=2,
    confirm_of=2,
    recover=1,
    boot_grace_seconds=300,
    slow=True,
)
