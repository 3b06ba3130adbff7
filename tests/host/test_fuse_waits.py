"""A user's process that waits for the user's own FUSE server is no hang of the node; a real hang beside it still is one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.host.root import Root
from fairlead.host.tasks import Watch
from fairlead.model.finding import Level
from fairlead.model.host_facts import StuckTask, Tasks
from tests.checks.hosts import host_node, judged
from tests.checks.nodes import log
from tests.host.conftest import write
from tests.host.test_host_facts import task, until
from tests.host.users_fuse import USER, fuse, needs_fuse
from tests.simulation.test_dstate import frozen

SERVED = "30 1 0:50 / /home/a rw - fuse.sshfs a@b: rw,user_id=1000,group_id=1000\n"
VIRTIOFS = "30 1 0:50 / /data rw - virtiofs data rw\n"
PAGE = "[<0>] folio_wait_bit_common+0x13d/0x340\n[<0>] filemap_get_pages+0x5ee/0x620\n"


def sweeps(watch: Watch, *times: float) -> dict[int, StuckTask]:
    """What the last of some looks says by process; whoever was asked between them has answered."""
    for at in times:
        found = watch.sweep(at, turn=100_000)
        question = watch._fuse._question
        assert question is None or until(lambda q=question: not q.waiting_seconds())  # type: ignore[misc]
    assert isinstance(found, Tasks)
    return {t.pid: t for t in found.stuck}


@pytest.mark.parametrize(
    ("stack", "wchan", "mounts", "fuse"),
    [
        (f"{PAGE}[<0>] fuse_file_read_iter+0x5b/0x120 [fuse]\n", "folio_wait_bit_common", SERVED, True),
        ("[<0>] request_wait_answer+0x1a4/0x220 [fuse]\n", "request_wait_answer", SERVED, True),
        ("[<0>] __fuse_simple_request.isra.0+0x6f/0x2c0\n", "0", SERVED, True),
        (None, "request_wait_answer", SERVED, True),  # the stack is not to be had
        (None, "fuse_wait_event.part.0", SERVED, True),
        (None, "0", SERVED, False),  # nor the function: then it is a hang
        (None, None, SERVED, False),
        (f"{PAGE}[<0>] xfs_file_read_iter+0x5b/0x120 [xfs]\n", "folio_wait_bit_common", SERVED, False),
        ("[<0>] rpc_wait_bit_killable+0x11/0x70 [sunrpc]\n[<0>] nfs4_call+0x1/0x2\n", "rpc_wait_bit_killable", SERVED, False),
        ("[<0>] request_wait_answer+0x1a4/0x220\n", "request_wait_answer", VIRTIOFS, False),  # the host of the VM hangs
        (f"{PAGE}[<0>] fuse_passthrough_read_iter+0x9/0x10 [fuse]\n", "folio_wait_bit_common", SERVED, False),  # a disk's
        ("[<0>] fuse_copy_fill+0x1/0x2\n[<0>] fuse_dev_do_write+0x1/0x2 [fuse]\n", "fuse_copy_fill", SERVED, False),  # a server's
        ("[<0>] nvidia_close+0x1/0x2 [fuse_x]\n[<0>] confuse_fuse_x+0x1/0x2\n", "confuse_fuse_x", SERVED, False),
    ],
)  # fmt: skip
def test_what_counts_as_waiting_for_a_server(tree: Path, stack: str | None, wchan: str | None, mounts: str, fuse: bool) -> None:
    task(tree, 11, "D", pending=0x100)
    for name, text in (("stack", stack), ("wchan", wchan), ("mountinfo", mounts)):
        if text is not None:
            write(tree, f"/proc/11/{name}", text)
    watch = Watch(Root(os.fspath(tree)))
    assert sweeps(watch, 0.0, 14.0, 28.0)[11].fuse is fuse
    task(tree, 11, "D", switches=6)  # it ran since: another wait, of which nothing is known
    assert not sweeps(watch, 42.0)[11].fuse
    watch.end()


def test_hundreds_that_wait_for_a_server_hide_no_hang(tree: Path) -> None:
    for pid in range(100, 700):
        task(tree, pid, "D", pending=0x100)
        write(tree, f"/proc/{pid}/stack", "[<0>] request_wait_answer+0x1a4/0x220 [fuse]\n")
        write(tree, f"/proc/{pid}/mountinfo", SERVED)
    task(tree, 800, "D", pending=0x100)
    write(tree, "/proc/800/stack", PAGE)
    watch = Watch(Root(os.fspath(tree)))
    found = sweeps(watch, 0.0, 14.0, 28.0, 200.0)
    watch.end()
    assert [t.pid for t in found.values() if not t.fuse] == [800] and len(found) == 601
    node = host_node(tasks=Tasks(total=700, seen=700, stuck=tuple(found.values())))
    (finding,) = judged("stuck_tasks", node)
    assert (finding.level, finding.evidence) == (Level.DRAIN, ("process 800",))


def test_the_kernels_own_watch_tells_of_the_same_wait() -> None:
    said = log("INFO: task cat:4711 blocked for more than 122 seconds.")
    waits = StuckTask(pid=4711, seconds=500, fuse=True)
    assert judged("stuck_tasks", host_node(tasks=Tasks(total=9, seen=9, stuck=(waits,))), said) == []
    hangs = replace(waits, fuse=False)
    assert len(judged("stuck_tasks", host_node(tasks=Tasks(total=9, seen=9, stuck=(hangs,))), said)) == 2


@contextmanager
def waiting(keeper: int, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user's that asks the user's FUSE mount for something, and is asleep."""
    command = ["nsenter", "--mount", f"--target={keeper}", f"--setuid={USER}", f"--setgid={USER}", "stat", f"{path}/x"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            # a process that still loads its program may be in state D too
            assert until(lambda: "fuse_" in Path(f"/proc/{child.pid}/stack").read_text())
            assert until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "D")
            yield child
        finally:
            child.kill()


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@needs_fuse
@pytest.mark.root
@pytest.mark.skipif(not shutil.which("mkfs.ext4"), reason="needs fsfreeze and mkfs.ext4")
def test_true_waits_for_a_server_beside_a_true_hang(tmp_path: Path, everybodys: Path) -> None:
    mount = ("fuse.sshfs", "a@b:", "m")
    with (
        fuse(everybodys, mount) as server,
        waiting(server, everybodys / "m") as user,
        frozen(tmp_path) as (keeper, path, thaw),
        subprocess.Popen(["nsenter", "--mount", f"--target={keeper}", "sh", "-c", f"exec mkdir {path}.folder"]) as hang,
    ):
        watch = Watch(Root("/"))
        try:
            assert until(lambda: hang.pid in sweeps(watch, 0.0))
            found = sweeps(watch, 0.0, 20.0, 200.0, 400.0)
            assert (found[user.pid].fuse, found[hang.pid].fuse) == (True, False)
            node = host_node(tasks=Tasks(total=9, seen=9, stuck=(found[user.pid], found[hang.pid])))
            assert [f.evidence for f in judged("stuck_tasks", node)] == [(f"process {hang.pid}",)]
        finally:
            watch.end()
            thaw()
    assert user.poll() is not None
