"""Memory errors, disks, file systems and mounts, and their harmless twins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import checks
from fairlead.model.check import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Level, Service
from fairlead.model.host_facts import FsErrors, MemoryController, MountPoint, NvmeController, Space
from tests.checks.hosts import NOW, WELL, host_node, judged, levels, past, samples
from tests.checks.nodes import BOOT, log

NA = unreadable("Input/output error")


def controllers(corrected: Any = 0, uncorrected: Any = 0) -> Node:
    return host_node(
        controllers=(MemoryController(name="mc0", corrected=corrected, uncorrected=uncorrected, worst_dimm="DIMM_A1"),)
    )


@pytest.mark.parametrize(
    ("node", "history", "level"),
    [
        (controllers(uncorrected=1), past(), Level.DRAIN),
        (controllers(corrected=500), past(samples("mc0", "corrected", 0)), Level.WARN),
        (controllers(corrected=500), past(samples("mc0", "corrected", 499, 499)), None),  # an old count
        (controllers(corrected=10), past(samples("mc0", "corrected", 500)), None),  # the driver was loaded anew
        (controllers(corrected=500), Past(), Level.OK),  # needs history
        (controllers(corrected=NA), past(), Level.UNKNOWN),
        (controllers(uncorrected=NA), past(), Level.UNKNOWN),
        (host_node(controllers=NA), past(), Level.UNKNOWN),
        (host_node(), past(log=NA), Level.UNKNOWN),
    ],
)
def test_memory_counters(node: Node, history: Past, level: Level | None) -> None:
    assert [f.level for f in judged("memory_errors", node, history)] == ([level] if level is not None else [])


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#1_Channel#1_DIMM#1", True),
        ("EDAC MC1: 128 CE memory read error on CPU_SrcID#1_Ha#0_Chan#1_DIMM#1", False),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400", True),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 7: fe00000000800400", True),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090", False),  # corrected: bit 61 is clear
        ("mce: [Hardware Error]: Machine check events logged", False),
        ("{1}[Hardware Error]: event severity: recoverable", True),
        ("{1}[Hardware Error]: event severity: corrected", False),
        ("[Hardware Error]: Uncorrected, software restartable error.", True),
        ("[Hardware Error]: Corrected error, no action required.", False),
        ("Memory failure: 0x12345: recovery action for dirty LRU page: Recovered", True),
        ("my EDAC MC0: 1 UE memory read error", False),  # not at the start
    ],
)
def test_memory_records(text: str, bad: bool) -> None:
    found = judged("memory_errors", host_node(), log(text))
    assert [(f.level, f.service) for f in found] == [(Level.DRAIN, Service.DRAIN_AFTER_JOB)] * bad
    assert checks.load()["memory_errors"].heeds(text) is bad  # type: ignore[misc]
    assert all(f.evidence_id == f"{BOOT}:100" for f in found)


def test_controllers_that_nobody_watches() -> None:
    (found,) = judged("memory_errors", host_node(), controllers_expected=4)
    assert (found.level, found.summary) == (Level.UNKNOWN, "1 of 4 memory controllers are watched by EDAC")
    assert judged("memory_errors", host_node(controllers=())) == []


IO = "I/O error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2"


@pytest.mark.parametrize(
    ("texts", "level", "device"),
    [
        ([IO], Level.WARN, "nvme0n1"),
        ([IO] * 10, Level.DRAIN, "nvme0n1"),
        (["blk_update_request: I/O error, dev sda, sector 5 op 0x0:(READ) flags 0x0"], Level.WARN, "sda"),
        (["critical medium error, dev sdb, sector 5 op 0x0:(READ) flags 0x0"], Level.WARN, "sdb"),
        (["Buffer I/O error on dev dm-0, logical block 0, async page read"], Level.WARN, "dm-0"),
        (["nvme nvme0: controller is down; will reset: CSTS=0x3, PCI_STATUS=0x10"], Level.WARN, "nvme0"),
        (["nvme nvme0: I/O 528 QID 10 timeout, reset controller"], Level.WARN, "nvme0"),
        (["nvme nvme0: I/O tag 12 (1234) opcode 0x2 (I/O Cmd) QID 10 timeout, aborting"], Level.WARN, "nvme0"),
        (["nvme nvme0: Removing after probe failure status: -19"], Level.DRAIN, "nvme0"),
        (["nvme nvme0: Disabling device after reset failure: -19"], Level.DRAIN, "nvme0"),
        (["md/raid1:md1: Disk failure on sda1, disabling device."], Level.WARN, "md1 (sda1)"),
        (["nvme nvme0: 64/0/0 default/read/poll queues"], None, ""),  # at every boot
        (["nvme nvme0: pci function 0000:2a:00.0"], None, ""),
        (["I/O error, dev loop3, sector 5 op 0x0:(READ) flags 0x0"] * 20, None, ""),  # a user's image
        (["critical target error, dev nvme0n1, sector 2048 op 0x9:(WRITE_ZEROES) flags 0x0"] * 20, None, ""),  # by mkfs
        (["I/O error, dev sda, sector 2048 op 0x3:(DISCARD) flags 0x800 phys_seg 1"] * 20, None, ""),  # by fstrim
        (["I/O error, dev sr0, sector 5 op 0x0:(READ) flags 0x0"], None, ""),  # an empty drive
        (["Buffer I/O error on dev nbd0, logical block 0, async page read"], None, ""),
    ],
)
def test_disk_records(texts: list[str], level: Level | None, device: str) -> None:
    assert levels(judged("disks", host_node(), log(*texts))) == ([(level, device)] if level is not None else [])
    assert all(checks.load()["disks"].heeds(text) is bool(device) for text in texts)  # type: ignore[misc]
    lasting = ("Removing", "Disabling", "md/raid")  # what is gone stays gone
    old = judged("disks", host_node(), log(*texts, seconds=NOW - 90000))
    assert bool(old) is any(word in texts[0] for word in lasting)


@pytest.mark.parametrize(
    ("state", "level"),
    [("live", None), ("resetting", Level.WARN), ("dead", Level.DRAIN), ("deleting (no IO)", Level.DRAIN), (NA, Level.UNKNOWN)],
)
def test_nvme_states(state: Any, level: Level | None) -> None:
    node = host_node(nvme=(NvmeController(name="nvme0", pci="0000:2a:00.0", state=state),))
    assert levels(judged("disks", node, nvme_expected=1)) == ([(level, "nvme0")] if level is not None else [])
    (gone,) = [f for f in judged("disks", node, nvme_expected=2) if not f.device]
    assert gone.summary == "1 of 2 NVMe controllers are there: check_hardware"


def mounts(**root: Any) -> tuple[MountPoint, ...]:
    made = {"path": "/", "device": "9:0", "kind": "ext4", "source": "/dev/md0", "read_only": False, **root}
    return (MountPoint(**made), *WELL.mounts[1:])  # type: ignore[index]


@pytest.mark.parametrize(
    ("changes", "history", "level"),
    [
        ({"mounts": mounts(read_only=True)}, past(), Level.DRAIN),  # errors=remount-ro
        ({"mounts": mounts(read_only=True, kind="xfs")}, past(), Level.DRAIN),
        ({"mounts": mounts(read_only=True, flagged_read_only=True)}, past(), None),  # mounted so
        ({"mounts": mounts(flagged_read_only=True)}, past(), None),  # a read-only bind mount, as in a container
        ({"mounts": mounts(read_only=True, kind="squashfs")}, past(), None),  # never writable
        ({"mounts": mounts(read_only=True, source="/dev/loop3")}, past(), None),  # a user's image
        ({"fs_errors": (FsErrors(device="md0", errors=3),)}, past(), Level.WARN),
        ({"fs_errors": (FsErrors(device="loop1", errors=3),)}, past(), None),
        ({"fs_errors": (FsErrors(device="md0", errors=NA),)}, past(), Level.UNKNOWN),
        ({"fs_errors": NA}, past(), Level.UNKNOWN),
        ({"mounts": NA}, past(), Level.UNKNOWN),
        ({}, log("EXT4-fs (md0): Remounting filesystem read-only"), Level.DRAIN),
        ({"mounts": mounts(read_only=True)}, log("EXT4-fs (md0): Remounting filesystem read-only"), Level.DRAIN),  # once
        ({}, log("EXT4-fs error (device md0): ext4_find_entry:1616: inode #2: comm x: reading"), Level.WARN),
        ({}, log("XFS (dm-0): Filesystem has been shut down due to log error (0x2)."), Level.DRAIN),
        ({}, log("XFS (dm-0): log I/O error -5", "XFS (dm-0): Log I/O Error Detected. Shutting down filesystem"), Level.DRAIN),
        ({}, log("XFS (dm-0): Metadata CRC error detected at xfs_agf_read_verify"), Level.WARN),
        ({}, log("BTRFS: error (device sda1)"), None),
        ({}, log("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 1, rd 0"), Level.WARN),
        ({}, log("BTRFS info (device sda1 state E): forced readonly"), Level.DRAIN),
        ({}, log("BTRFS info (device sda3: state EA): forced readonly"), Level.DRAIN),
        ({}, log("BTRFS: error (device sda3: state A) in btrfs_finish_ordered_io:3316: errno=-5 IO failure"), Level.WARN),
        ({}, log("EXT4-fs error (device loop0): ext4_lookup", "EXT4-fs (loop0): Remounting filesystem read-only"), None),
        ({}, log("EXT4-fs (md0): mounted filesystem with ordered data mode", "XFS (dm-0): Mounting V5 Filesystem"), None),
    ],
)  # fmt: skip
def test_file_system_errors(changes: dict[str, Any], history: Past, level: Level | None) -> None:
    assert [f.level for f in judged("fs_errors", host_node(**changes), history)] == ([level] if level is not None else [])


def test_paths_that_must_be_writable() -> None:
    on_purpose = host_node(mounts=mounts(read_only=True, flagged_read_only=True))
    assert levels(judged("fs_errors", on_purpose, writable=("/",))) == [(Level.DRAIN, "/")]
    assert levels(judged("fs_errors", host_node(), writable=("/", "/scratch"))) == [(Level.WARN, "/scratch")]


def space(path: str = "/", **changes: Any) -> Node:
    made = {"total_bytes": 1000, "available_bytes": 700, "total_inodes": 1000, "free_inodes": 900, **changes}
    return host_node(spaces=(Space(path=path, **made),))


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (space(), None),
        (space(available_bytes=90), Level.WARN),
        (space(available_bytes=5), Level.DRAIN),
        (space(free_inodes=90), Level.WARN),
        (space(free_inodes=0), Level.DRAIN),
        (space(total_inodes=0, free_inodes=0), None),  # btrfs, NFS
        (space(available_bytes=NA, total_bytes=NA), Level.UNKNOWN),
        (space(waiting_seconds=14.0), None),
        (space(waiting_seconds=75.0), Level.UNKNOWN),  # what it said before it hung
        (space("/tmp"), Level.UNKNOWN),
        (host_node(spaces=NA), Level.UNKNOWN),
    ],
)
def test_room(node: Node, level: Level | None) -> None:
    assert [f.level for f in judged("fs_space", node, paths=("/",))] == ([level] if level is not None else [])
    assert judged("fs_space", node) == [], "only what is declared: a full tmpfs is nobody's fault"


HOME = {"paths": ("/home",)}


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, None),
        ({"total_bytes": NA, "waiting_seconds": 42.0}, Level.DRAIN),
        ({"waiting_seconds": 42.0}, Level.DRAIN),  # it answered before
        ({"waiting_seconds": 3.0}, None),  # asked just now
        ({"total_bytes": NA, "waiting_seconds": 5.0}, Level.UNKNOWN),  # and never answered: a single look at a dead server
        ({"total_bytes": NA, "failed": "stat ended with 1: Stale file handle"}, Level.DRAIN),
        ({"total_bytes": NA}, Level.UNKNOWN),
    ],
)
def test_mounts_that_hang(changes: dict[str, Any], level: Level | None) -> None:
    assert [f.level for f in judged("hung_mounts", space("/home", **changes), **HOME)] == ([level] if level is not None else [])
    assert judged("hung_mounts", space("/home", **changes)) == []


def test_mounts_that_are_not_there() -> None:
    (found,) = judged("hung_mounts", space("/scratch"), paths=("/scratch",))
    assert (found.level, found.summary) == (Level.DRAIN, "/scratch is not mounted")
    automount = MountPoint(path="/net", device="0:52", kind="autofs", source="auto.net", read_only=False)
    below = host_node(
        mounts=(automount,), spaces=(Space(path="/net/a", total_bytes=1, available_bytes=1, total_inodes=0, free_inodes=0),)
    )
    assert judged("hung_mounts", below, paths=("/net/a",)) == []
    assert [f.level for f in judged("hung_mounts", host_node(mounts=NA, spaces=NA), **HOME)] == [Level.UNKNOWN] * 2


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


def test_an_nvme_that_never_came_up_is_found() -> None:
    """The driver names the device with its record (host.kmsg asks for it): no list is needed that it may never have been on."""
    (found,) = judged("disks", host_node(devices=HAS), log("nvme nvme7: Removing after probe failure status: -19"))
    assert (found.level, found.device) == (Level.DRAIN, "nvme7")
