"""Processes of no job, and memory of no process, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.checks import gpu_leftovers
from fairlead.model.facts import Gpu, GpuProcess, Missing, NumaNode, unreadable
from fairlead.model.finding import Level
from fairlead.model.gpu_load import ProcessOwner
from tests.checks.hosts import judged as judged_node
from tests.checks.loaded import judged
from tests.checks.nodes import NA, gpu, node


def used(*owners: ProcessOwner | Missing, memory: int = 0, **changes: Any) -> Gpu:
    processes = tuple(GpuProcess(4000 + n, 1 << 30, owner) for n, owner in enumerate(owners))
    return gpu(3, processes=processes, memory_used_bytes=memory, **changes)


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        (used(), []),
        (used(ProcessOwner(job=812), memory=70 << 30), []),  # a job's
        (used(ProcessOwner(unit="nvidia-mps.service")), []),
        (used(ProcessOwner(unit="dcgm-exporter.service"), ProcessOwner(unit="gdm3.service")), []),
        (used(ProcessOwner(unit="slurmd.service")), []),  # jobs of a site without Slurm's cgroups
        (used(ProcessOwner(uid=1000)), [Level.DRAIN]),
        (used(ProcessOwner(unit="ollama.service"), ProcessOwner(job=812)), [Level.DRAIN]),
        (used(ProcessOwner(unit="")), [Level.DRAIN]),
        (used(ProcessOwner(gone=True)), [Level.DRAIN]),
        (used(unreadable("EACCES")), [Level.UNKNOWN]),
        (used(memory=20 << 30), [Level.DRAIN]),
        (used(memory=200 << 20), []),  # what a desktop holds
        (used(memory=20 << 30, mig_current=True, mig_devices=()), []),
        (used(memory=20 << 30, mig_current=True, mig_devices=NA), [Level.UNKNOWN]),
        (gpu(3, processes=NA), [Level.UNKNOWN]),
        (gpu(3, memory_used_bytes=NA), [Level.UNKNOWN]),
    ],
)
def test_leftovers(changed: Gpu, levels: list[Level]) -> None:
    found = judged(gpu_leftovers, changed)
    assert [(f.device, f.level) for f in found] == [(changed.pci, level) for level in levels]


def test_a_site_allows_its_own_services() -> None:
    changed = used(ProcessOwner(unit="inference@7.service"))
    assert [f.level for f in judged(gpu_leftovers, changed)] == [Level.DRAIN]
    assert judged(gpu_leftovers, changed, allowed_units=("inference@*.service",)) == []


def test_many_leftovers_fit_on_a_line() -> None:
    (finding,) = judged(gpu_leftovers, used(*[ProcessOwner(uid=1000)] * 40))
    assert finding.evidence[0] == ("processes 4000 (user 1000), 4001 (user 1000), 4002 (user 1000), 4003 (user 1000) and 36 more")
    assert len(finding.summary) < 100


@pytest.mark.parametrize(
    ("numa", "level"),
    [
        ((), Level.DRAIN),
        ((NumaNode(id=0, cpus=(0, 1), memory_bytes=85 << 30),), Level.DRAIN),  # the processor's own
        ((NumaNode(id=4, cpus=(), memory_bytes=85 << 30),), None),  # GH200: the kernel hands the GPU's memory out
        ((NumaNode(id=4, cpus=(), memory_bytes=512 << 30),), Level.DRAIN),  # a memory expander
    ],
)
def test_memory_of_a_gpu_that_the_kernel_hands_out(numa: tuple[NumaNode, ...], level: Level | None) -> None:
    machine = node(gpu(3, memory_used_bytes=9 << 30), numa=numa)
    assert [f.level for f in judged_node("gpu_leftovers", machine)] == ([level] if level is not None else [])
