"""All checks over every machine tree: the healthy are silent, the broken are named, and nothing raises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead import checks, config
from fairlead.daemon.judge import reads, wanted
from fairlead.host.gather import gather
from fairlead.host.root import Root
from fairlead.model.check import Past
from fairlead.model.facts import Missing, Why
from fairlead.model.finding import Finding, Level
from tests.lab.trees import MACHINES

TREES = MACHINES
BROKEN = {
    "hgx-h100.ecc-unreadable": ("ecc", Level.UNKNOWN),
    "hgx-h100.row-remap-failed": ("row_remap", Level.DRAIN),
    "hgx-h100.width-x8": ("pcie_link", Level.DRAIN),
    "hgx-h100.xid79": ("gpu_count", Level.DRAIN),
}

#: Checks that read nothing from NVML, or judge only what a profile or site declares.
NOT_OF_NVML = ("xid", "driver_library", "driver_version", "fabric_manager", "gpu_direct_rdma", "imex", "pcie_nic")

OF_THE_HOST = (
    "clock", "cpu_memory", "disks", "fs_errors", "fs_space", "hung_mounts", "kernel_log", "memory_errors",
    "rdma_errors", "rdma_flaps", "rdma_ports", "stuck_tasks", "units",
)  # fmt: skip


def judged(tree: Path, raw: object = None) -> list[Finding]:
    document = config.profile_document("n1", tree.name.partition(".")[0])
    answer = json.loads((tree / "nvml.json").read_text()) if raw is None else raw
    node = gather(Root(str(tree)), answer, reads=reads(document), unsupported=document.unsupported, wanted=wanted(document))
    return [f for name, c in checks.load().items() for f in c.judge(node, Past(available=True), document.checks[name])]


@pytest.mark.parametrize("tree", sorted(p for p in TREES.iterdir() if p.is_dir()), ids=lambda p: p.name)
def test_every_tree_says_what_is_wrong_with_it(tree: Path) -> None:
    found = judged(tree)
    assert found == judged(tree)
    check, level = BROKEN.get(tree.name, ("", Level.OK))
    if check:
        assert any(f.check == check and f.level is level for f in found)
    assert {f.check for f in found} <= {check}


def test_no_answer_from_the_driver_is_never_ok() -> None:
    missing = Missing(Why.UNREADABLE, "no answer within 5 s")
    by_check = {name: [f.level for f in judged(TREES / "hgx-h100", missing) if f.check == name] for name in checks.load()}
    assert all(by_check.pop(name) == [] for name in (*NOT_OF_NVML, *OF_THE_HOST))
    assert all(levels and set(levels) <= {Level.UNKNOWN, Level.DRAIN} for levels in by_check.values())
    assert Level.DRAIN in by_check["nvml_responsive"]


@pytest.mark.parametrize("name", config.profile_names())
def test_every_profile_value_says_why_and_who(name: str) -> None:
    profile = config.load_profile(name)
    assert profile.name == name and profile.summary
    assert not profile.unsupported or profile.unsupported_why
    for value in profile.values:
        assert len(value.why) > 20 and len(value.source) > 10
    document = config.profile_document("n1", name)
    assert document.checks["gpu_count"].expected == 8
    every = {"persistence", "numa_balancing", "pcie_acs", "nccl", "cpu_governor", "memlock", "sysctl", "kernel_modules"}
    assert set(document.settings) == every  # of a GPU's state persistence alone: docs/decisions/0027
    assert document.checks["ecc"].required and document.checks["ecc"].judge_mode  # type: ignore[attr-defined]
