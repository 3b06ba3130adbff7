"""A kernel record of a device counts where this node has that device or had it: for each check that reads such records."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import MountPoint
from tests.checks.hosts import WELL, host_node, judged
from tests.checks.nodes import log

NA = unreadable("Input/output error")
HAS = frozenset({"sda", "sda1", "nvme0n1", "md0", "mc0"})
FORGED = {
    "fs_errors": ("XFS ({}): Filesystem has been shut down due to log error (0x2).", "sdz9", "sda1"),
    "disks": ("I/O error, dev {}, sector 5 op 0x0:(READ) flags 0x0", "sdz9", "sda"),
    "memory_errors": ("EDAC {}: 1 UE memory read error on CPU_SrcID#1_Channel#1_DIMM#1", "MC77", "MC0"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_device_that_never_was_drains_nothing_and_is_not_named(name: str) -> None:
    text, strange, ours = FORGED[name]
    many = [text.format(strange)] * 12
    (found,) = judged(name, host_node(devices=HAS), log(*many))
    assert (found.level, found.device) == (Level.WARN, "") and "does not have" in found.summary
    assert strange.lower() not in repr(found).lower()
    found = next(f for f in judged(name, host_node(devices=HAS), log(*[text.format(ours)] * 12)) if f.level is Level.DRAIN)
    assert found.device == ours.lower()


@pytest.mark.parametrize("name", FORGED)
def test_a_device_that_died_and_is_gone_is_found(name: str) -> None:
    """Seen earlier in this boot; or mounted still; or nobody can say what there is."""
    text, strange, _ = FORGED[name]
    lines = log(*[text.format(strange)] * 12)
    before = replace(lines, devices=frozenset({strange.lower()}))
    assert [f.level for f in judged(name, host_node(devices=HAS), before)] == [Level.DRAIN]
    assert [f.level for f in judged(name, host_node(devices=NA), lines)] == [Level.DRAIN]
    if name == "fs_errors":
        source = f"/dev/{strange}"
        mounted = (*WELL.mounts, MountPoint(device="259:9", path="/data", kind="xfs", source=source, read_only=False))  # type: ignore[misc]
        assert [f.level for f in judged(name, host_node(devices=HAS, mounts=mounted), lines)] == [Level.DRAIN]
        theirs = (*WELL.mounts, replace(mounted[-1], kind="fuse.x"))  # type: ignore[misc]
        assert [f.level for f in judged(name, host_node(devices=HAS, mounts=theirs), lines)] == [Level.WARN]
