"""File systems that became read-only, were shut down, or counted errors."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.check_definition import Past
from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import FsErrors, MountPoint
from tests.checks.hosts import WELL, host_node, judged, levels, past
from tests.checks.nodes import log

NA = unreadable("Input/output error")


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
