"""What a user mounts hides nothing of the machine's own mounts, and makes no mount table unreadable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.checks import hung_mounts
from fairlead.host import mount_lines, mount_table, process, scratch, storage
from fairlead.host.root import Root
from fairlead.model.facts import Missing
from fairlead.model.finding import Level
from fairlead.model.host_facts import Host, MountPoint
from tests.checks.hosts import WELL, host_node, judged
from tests.host.conftest import write
from tests.host.users_fuse import fuse, needs_fuse

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 ro,errors=remount-ro"
USERS = "99 22 0:77 / {path} ro,nosuid - {kind} {source} ro,user_id={user},group_id=1000"


def users(path: str = "/home/a/m", kind: str = "fuse.sshfs", source: str = "a@b:", user: int = 1000) -> str:
    return USERS.format(path=path, kind=kind, source=source, user=user)


def table(tree: Path, *lines: str) -> tuple[MountPoint, ...] | Missing:
    write(tree, "/proc/1/mountinfo", "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
    return storage.mounts(Root(os.fspath(tree)))


def levels(mounts: tuple[MountPoint, ...] | Missing, **params: object) -> list[Level]:
    return [f.level for f in judged("fs_errors", host_node(mounts=mounts), **params)]


HOSTILE = {
    "the source of the broken disk": users(source="/dev/sda1"),
    "a type that reads like a disk's": users(kind="fuse.ext4", source="/dev/sda1"),
    "over the broken mount": users(path="/", source="/dev/sda1"),
    "no source": users(source=""),
    "a path as long as a page": users(path="/home/a/" + "x" * 4000),
    "a path of escapes": users(path="/home/a/" + "\\040" * 4000, source="\\040" * 4000),
    "longer than any line can be": users(path="/home/a/" + "\\134" * 200_000),
    "no UTF-8": users(path="/home/a/\udcff\udcfe\udc80"),
    "terminal": users(path="/home/a/\x1b]0;x\x07\x1b[2J"),
    "separators in a field": users(path="/home/a/-", source="-\\040-\\040ext4"),
    "half a line": "99 22 0:77 / /home/a ro -",
    "nothing": "",
    "numbers": "9" * 60_000,
}


@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_a_file_system_that_became_read_only_is_found_beside_any_users_mount(tree: Path, line: str, first: bool) -> None:
    mounts = table(tree, *((line, ROOT) if first else (ROOT, line)))
    assert isinstance(mounts, tuple) and [(m.path, m.device) for m in mounts] == [("/", "8:1")]
    assert levels(mounts) == [Level.DRAIN]
    assert levels(mounts, writable=("/",)) == [Level.DRAIN]


def test_a_thousand_of_the_longest_paths_hide_nothing(tree: Path) -> None:
    many = [users(path=f"/home/a/{n}" + "\\040" * 4080, source="\\040" * 4090) for n in range(1000)]
    mounts = table(tree, *many[:500], ROOT, *many[500:])
    assert isinstance(mounts, tuple) and levels(mounts) == [Level.DRAIN]
    write(tree, "/proc/mounts", "\n".join([*many, "filer:/home /home nfs4 rw,addr=10.0.0.9 0 0"]))
    text = process.read_text(Root(os.fspath(tree)), "/proc/mounts")
    assert isinstance(text, str) and text.endswith("filer:/home /home nfs4 rw,addr=10.0.0.9 0 0\n")


def test_a_table_that_cannot_be_read_is_never_health(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(table(tree, "", "half a line"), Missing)
    assert isinstance(table(tree, users()), Missing)
    monkeypatch.setattr(mount_lines, "TABLE_MAX_BYTES", 1000)
    mounts = table(tree, ROOT, "x" * 2000)
    assert isinstance(mounts, Missing) and levels(mounts) == [Level.UNKNOWN]


def test_read_only_on_purpose_is_known_by_the_device(tree: Path) -> None:
    """The same source, mounted twice, is two file systems where the device differs: by path of a link, by label, over NBD."""
    remounted = "23 22 8:1 / /mnt ro - ext4 /dev/root ro"
    assert levels(table(tree, ROOT, remounted)) == []
    assert levels(table(tree, ROOT, remounted.replace("8:1", "8:2"))) == [Level.DRAIN]
    assert levels(table(tree, ROOT, ROOT.replace("/ / rw", "/ /b rw"))) == [Level.DRAIN]  # one file system, one finding


def test_a_declared_mount_is_not_there_because_a_user_mounted_something_on_its_folder(tree: Path) -> None:
    params = hung_mounts.Params(paths=("/data",))

    def found(*lines: str) -> list[Level]:
        made = table(tree, ROOT, *lines)
        assert isinstance(WELL, Host)
        spaces = tuple(replace(s, path="/data") for s in WELL.spaces[:1]) if isinstance(WELL.spaces, tuple) else ()
        node = host_node(mounts=made, spaces=spaces)
        return [f.level for f in judged("hung_mounts", node, paths=params.paths)]

    assert found(users(path="/data")) == [Level.DRAIN]
    assert found("30 22 0:50 / /data rw - fuse.ceph-fuse ceph-fuse rw,user_id=0,group_id=0,allow_other") == []
    assert found("30 22 0:50 / /data rw - virtiofs data rw", users(path="/data")) == []


def test_scratch_on_a_network_is_known_behind_megabytes_of_users_mounts(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    many = "".join(f"x /home/a/{n}{'y' * 4000} fuse.x ro,user_id=1000,group_id=1000 0 0\n" for n in range(1200))
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\n{many}server:/x /scratch nfs4 rw 0 0\n")
    assert scratch._file_system("/scratch/job", str(mounts)) == "nfs4"


@needs_fuse
@pytest.mark.root
def test_the_kernels_own_lines_of_users_fuse_mounts(tmp_path: Path) -> None:
    long = "/".join(["d" * 250] * 12)
    mounts = (("fuse.ext4", "/dev/sda1", "a"), ("fuse", "x y\n - ext4 /dev/sda1 ro", "b c"), ("fuse.x", "\\" * 2000, long))
    with fuse(tmp_path, *mounts) as keeper:
        raw = Path(f"/proc/{keeper}/mountinfo").read_bytes().splitlines()
        assert len([line for line in raw if b" - fuse" in line and os.fsencode(tmp_path) in line]) == 3
        kept = mount_table.lines(Root("/"), f"/proc/{keeper}/mountinfo")
        assert isinstance(kept, list) and not [line for line in kept if os.fsencode(tmp_path) in line]
        assert len(kept) == len([line for line in raw if b"user_id=65431" not in line])
        text = process.read_text(Root("/"), "/proc/mounts")
        assert isinstance(text, str) and " / " in text
    with fuse(tmp_path, ("fuse.ceph-fuse", "ceph-fuse", "z"), user=0) as keeper:  # the site's own
        kept = mount_table.lines(Root("/"), f"/proc/{keeper}/mountinfo")
        assert isinstance(kept, list) and [line for line in kept if os.fsencode(tmp_path) in line]
