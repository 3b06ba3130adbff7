"""Block devices that stand only on what may be a user's (an image file in a loop device) are no disks of the node's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.checks import disks, fs_errors
from fairlead.host import storage
from fairlead.host.root import Root
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import FsErrors, Host, MountPoint
from tests.checks.hosts import WELL, host_node, judged
from tests.checks.nodes import log
from tests.host.conftest import write

BLOCK = "/sys/class/block"
NO_LIST = None
#: name -> what it stands on; NO_LIST: /sys does not say.
TREES: dict[str, tuple[dict[str, tuple[str, ...] | None], set[str]]] = {
    "LUKS on an image": ({"sda": (), "loop0": (), "dm-0": ("loop0",)}, {"loop0", "dm-0"}),
    "LVM on LUKS on an image": ({"loop0": (), "dm-0": ("loop0",), "dm-1": ("dm-0",)}, {"loop0", "dm-0", "dm-1"}),
    "RAID of two images": ({"loop0": (), "loop1": (), "md127": ("loop0", "loop1")}, {"loop0", "loop1", "md127"}),
    "a partition of an image": ({"loop0p1": NO_LIST, "dm-0": ("loop0p1",)}, {"loop0p1", "dm-0"}),
    "a partition of a RAID of images": ({"loop0": (), "md127": ("loop0",), "md127p1": NO_LIST}, {"loop0", "md127", "md127p1"}),
    "on a disk over the network": ({"nbd0": (), "dm-0": ("nbd0",)}, {"nbd0", "dm-0"}),
    "LVM on a disk": ({"sda3": NO_LIST, "dm-0": ("sda3",)}, set()),
    "RAID of disks": ({"nvme0n1p1": NO_LIST, "nvme1n1p1": NO_LIST, "md0": ("nvme0n1p1", "nvme1n1p1")}, set()),
    "a partition of a RAID of disks": ({"sda": (), "md0": ("sda",), "md0p1": NO_LIST}, set()),
    "an image and a disk in one": ({"loop0": (), "sda": (), "dm-0": ("loop0", "sda")}, {"loop0"}),
    "a disk and an image's volume": ({"loop0": (), "sda": (), "dm-0": ("loop0",), "dm-1": ("dm-0", "sda")}, {"loop0", "dm-0"}),
    "nothing is said of what it stands on": ({"dm-0": NO_LIST, "dm-1": ()}, set()),
    "in a circle": ({"dm-0": ("dm-1",), "dm-1": ("dm-0",)}, set()),
    "forty levels": ({"loop0": (), "dm-0": ("loop0",), **{f"dm-{n}": (f"dm-{n - 1}",) for n in range(1, 40)}},
                             {"loop0", *(f"dm-{n}" for n in range(40))}),
    "no block devices": ({}, set()),
}  # fmt: skip


def lay_out(tree: Path, backing: dict[str, tuple[str, ...] | None]) -> Root:
    for number, (name, below) in enumerate(backing.items()):
        write(tree, f"{BLOCK}/{name}/dev", f"253:{number}\n")
        for each in below or ():
            write(tree, f"{BLOCK}/{name}/slaves/{each}", "")
        if below == ():
            (tree / f"{BLOCK[1:]}/{name}/slaves").mkdir()
    return Root(os.fspath(tree))


@pytest.mark.parametrize(("backing", "images"), TREES.values(), ids=TREES)
def test_down_to_the_real_device(tree: Path, backing: dict[str, tuple[str, ...] | None], images: set[str]) -> None:
    root = lay_out(tree, backing)
    found = storage.images(root)
    assert {name for name in found if ":" not in name} == images
    assert {f"253:{number}" for number, name in enumerate(backing) if name in found} == {n for n in found if ":" in n}
    own = storage.devices(root)
    assert isinstance(own, Missing) if not backing else own == frozenset(backing) - found


FAILED = ["Buffer I/O error on dev {0}, logical block 0, async page read", "I/O error, dev {0}, sector 5 op 0x0:(READ) flags 0x0"]
SHUT = ["EXT4-fs (dm-0): Remounting filesystem read-only", "EXT4-fs error (device dm-0): ext4_lookup:1616: inode #2: comm x: bad"]


def host(images: set[str], own: set[str]) -> dict[str, object]:
    return {"images": frozenset(images), "devices": frozenset(own)}


def test_a_users_encrypted_image_that_fails_says_nothing_of_the_node() -> None:
    """Twin of the next one, which differs in what dm-0 stands on."""
    assert isinstance(WELL.mounts, tuple)
    mount = MountPoint(path="/media/x", device="253:0", kind="ext4", source="/dev/mapper/luks-x", read_only=True)
    node = host_node(
        **host({"dm-0", "253:0", "loop0"}, {"sda"}), mounts=(*WELL.mounts, mount), fs_errors=(FsErrors(device="dm-0", errors=9),)
    )
    assert judged("disks", node, log(*(text.format("dm-0") for text in FAILED * 20))) == []
    assert judged("disks", node, log("md/raid1:dm-0: Disk failure on loop0, disabling device.")) == []
    assert judged("fs_errors", node, log(*SHUT)) == []
    gone = host_node(**host(set(), {"sda"}))  # the user has taken it down again
    for check, told in (("disks", [text.format("dm-0") for text in FAILED * 20]), ("fs_errors", SHUT)):
        assert [f.level for f in judged(check, gone, log(*told))] == [Level.WARN], "told, and drains nothing"


def test_an_image_of_the_sites_that_must_be_writable_is_judged() -> None:
    """What is declared is the site's, whatever it stands on."""
    assert isinstance(WELL.mounts, tuple)
    for read_only, levels in ((False, []), (True, [Level.DRAIN])):
        mount = MountPoint(path="/local", device="7:0", kind="ext4", source="/dev/mapper/x", read_only=read_only)
        node = host_node(**host({"loop0", "7:0"}, {"sda"}), mounts=(*WELL.mounts, mount))
        assert [f.level for f in judged("fs_errors", node, writable=("/local",))] == levels
        assert judged("fs_errors", node) == []


def test_the_same_of_a_volume_on_the_nodes_own_disk_drains() -> None:
    assert isinstance(WELL.mounts, tuple)
    mount = MountPoint(path="/local", device="253:0", kind="ext4", source="/dev/mapper/vg-local", read_only=True)
    node = host_node(**host({"loop0"}, {"sda", "dm-0"}), mounts=(*WELL.mounts, mount))
    assert [f.level for f in judged("disks", node, log(*(text.format("dm-0") for text in FAILED * 20)))] == [Level.DRAIN]
    assert {f.level for f in judged("fs_errors", node, log(*SHUT))} == {Level.DRAIN}
    assert {f.level for f in judged("fs_errors", node)} == {Level.DRAIN}


def test_a_volume_that_died_stays_known_while_a_user_has_an_image_under_another_name() -> None:
    node = host_node(**host({"dm-7", "loop0"}, {"sda"}))
    dead = Past(available=True, records=log(*(text.format("dm-0") for text in FAILED * 20)).records, devices=frozenset({"dm-0"}))
    assert [f.level for f in disks.check.findings(node, dead, disks.Params())] == [Level.DRAIN]


def test_a_mount_table_that_cannot_be_read_takes_no_record_from_the_node() -> None:
    """Whether that device was mounted cannot be told: then it is believed."""
    assert isinstance(WELL, Host)
    node = host_node(**host(set(), {"sda"}), mounts=unreadable("/proc/1/mountinfo: Input/output error"))
    assert [f.level for f in judged("disks", node, log(*(text.format("dm-0") for text in FAILED * 20)))] == [Level.DRAIN]
    assert Level.DRAIN in {f.level for f in fs_errors.check.findings(node, log(*SHUT), fs_errors.Params())}
