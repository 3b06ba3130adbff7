"""What a lab host does to its device nodes and its memory stays its own: the machine and other labs see nothing of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

import pytest

from tests.lab import bounds
from tests.lab.cluster import Cluster
from tests.lab.ledger import own_name
from tests.lab.rack import Rack

pytestmark = [pytest.mark.root, pytest.mark.slurm]
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")
#: Folders in memory, each with the most that may be written to it, in MiB.
ROOMS = {"/run": 128, "/tmp": 512, "/dev/shm": 256, "/dev": 16, "/dev/pts": 0}


class Runs(Protocol):
    def __call__(self, script: str) -> str: ...


def machine() -> dict[str, tuple[int, int, int]]:
    """The machine's device nodes: which file each is, which device, and its mode."""
    found = {}
    for name in DEVICES:
        seen = Path("/dev", name).stat()
        found[name] = (seen.st_ino, seen.st_rdev, stat.S_IMODE(seen.st_mode))
    return found


def used(folder: str) -> int:
    """MiB that are used in a file system of the machine."""
    room = os.statvfs(folder)
    return (room.f_blocks - room.f_bfree) * room.f_frsize >> 20


def keeps_to_itself(runs: Runs) -> None:
    """Device nodes first: nobody touches them before it is sure that they are not the machine's."""
    before = machine()
    for name in DEVICES:
        device, inode = runs(f"stat -Lc '%d %i' /dev/{name}").split()
        mine = Path("/dev", name).stat()
        assert (int(device), int(inode)) != (mine.st_dev, mine.st_ino), f"/dev/{name} is the machine's own file"
    works = "echo gone > /dev/null; head -c 2 /dev/zero | od -An -tx1; head -c 4 /dev/urandom | wc -c"
    assert runs(works).split() == ["00", "00", "4"]
    assert "No space" in runs("dd if=/dev/zero of=/dev/full count=1")
    for name in DEVICES[:-1]:
        runs(f"chmod 000 /dev/{name}; chown 1:1 /dev/{name}; rm /dev/{name}; mknod -m 600 /dev/{name} c 1 5")
    assert machine() == before
    runs("rm /dev/null; mknod -m 666 /dev/null c 1 3")
    for folder, most in ROOMS.items():
        if most:
            fills(runs, folder, most)


def fills(runs: Runs, folder: str, most: int) -> None:
    """Its own processes are told that it is full; the machine's folder of that name holds nothing more."""
    before = used("/dev/shm"), used("/run")
    told = runs(
        f"dd if=/dev/zero of={folder}/fill bs=1M count={2 * most} 2>&1 || true; stat -c %s {folder}/fill; rm {folder}/fill"
    )
    assert "No space left on device" in told, told
    assert int(told.split()[-1]) <= most << 20
    assert not Path(folder, "fill").exists()
    assert max(used("/dev/shm") - before[0], used("/run") - before[1]) < most // 2 + 16


def takes_no_more(group: Path | None, mib: int, runs: Runs) -> None:
    """A process that wants more memory than its host may have is ended, and that host's daemons stay."""
    if group is None:
        pytest.skip("this machine has no cgroup v1 memory controller: the limit of cgroup v2 was not tried here")
    assert int((group / "memory.limit_in_bytes").read_text()) == mib << 20
    (group / "memory.limit_in_bytes").write_text(f"{256 << 20}\n")  # as much is soon taken
    try:
        told = runs('python3 -c "x = bytearray(400 << 20)"; echo ended with $?')
    finally:
        (group / "memory.limit_in_bytes").write_text(f"{mib << 20}\n")
    assert "ended with 137" in told, told


def test_a_rack_node(rack: Rack) -> None:
    node = rack.nodes[3]
    keeps_to_itself(lambda script: node.ssh(f"{{ {script}; }} 2>&1", check=False).stdout)
    takes_no_more(_below(rack.name, node.name), bounds.HOST_MIB, lambda script: node.ssh(script, check=False).stdout)
    node.reboot()
    assert node.ssh("stat -c %a:%t:%T /dev/null").stdout.strip() == "666:1:3"
    rack.wait_idle()


def test_a_bare_cluster() -> None:
    with Cluster("bookworm", nodes=1, name=own_name("test-bounds")) as slurm:

        def in_a_job(script: str) -> str:
            """As a job's user could not: root submits it, and slurmd runs it."""
            job = slurm.submit(f"#!/bin/sh\n{script}\n", user="")
            slurm.wait_job(job)
            return slurm.output(job)

        takes_no_more(_below(slurm.name, ""), bounds.CLUSTER_MIB, in_a_job)
        keeps_to_itself(lambda script: slurm.run(["/bin/sh", "-c", f"{{ {script}; }} 2>&1"], check=False).stdout)


def _below(lab: str, host: str) -> Path | None:
    group = bounds.v1_group(lab)
    return group / host if group else None
