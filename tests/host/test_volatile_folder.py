"""Whether a reboot loses a folder, by the mount table: disks, images in memory, overlays of both kinds, and odd lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.host import volatile_folder
from fairlead.host.root import Root
from fairlead.host.volatile_folder import kind_in_memory, lost_at_reboot

DISK = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw"
MEMORY = b"1 0 0:1 / / rw - tmpfs rootfs rw,size=1g"
VAR = b"2 1 8:2 / /var rw shared:1 - xfs /dev/sda2 rw"
STATE = b"3 2 0:9 / /var/lib/fairlead rw - tmpfs tmpfs rw"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([DISK], ""),
        ([MEMORY], "tmpfs"),
        ([b"1 0 0:1 / / rw - rootfs rootfs rw"], "rootfs"),
        ([MEMORY, VAR], ""),
        ([DISK, VAR, STATE], "tmpfs"),
        ([STATE, VAR, DISK], "tmpfs"),  # the order of the table does not matter for other mount points
        ([DISK, b"3 2 0:9 / /var/lib/fairlead-collect rw - tmpfs tmpfs rw"], ""),
        ([DISK, STATE, b"4 3 8:3 / /var/lib/fairlead rw - ext4 /dev/sdb1 rw"], ""),  # mounted over the tmpfs
        ([b"1 0 0:1 / / rw - nfs4 server:/root rw"], ""),
        ([b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/image,upperdir=/up,workdir=/wk", b"2 1 0:2 / /up rw - tmpfs tmpfs rw"],
         "overlay on tmpfs"),
        ([b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/image,upperdir=/hidden/up,workdir=/wk"], ""),
        ([b"1 0 0:1 / / rw - overlay overlay rw,lowerdir=/image,upperdir=/up,workdir=/wk"], ""),  # its upper folder is on itself
        ([], ""),
        ([b"", b"x", b"1 2 3", b" - tmpfs x rw"], ""),
    ],
)  # fmt: skip
def test_kinds(monkeypatch: pytest.MonkeyPatch, lines: list[bytes], kind: str) -> None:
    monkeypatch.setattr(volatile_folder.os.path, "isdir", lambda path: path == "/up")
    assert kind_in_memory(lines, "/var/lib/fairlead") == kind


def test_a_mount_point_with_a_blank() -> None:
    assert kind_in_memory([DISK, rb"3 2 0:9 / /a\040b rw - tmpfs tmpfs rw"], "/a b/c") == "tmpfs"


def test_this_machine() -> None:
    assert lost_at_reboot(Root("/"), "/proc") == "" and lost_at_reboot(Root("/"), "/dev/shm") == "tmpfs"


@given(st.lists(st.binary(max_size=80), max_size=5), st.text(max_size=20))
def test_no_table_breaks_it(lines: list[bytes], folder: str) -> None:
    assert isinstance(kind_in_memory(lines, "/" + folder), str)
