"""Who waits for another task of the same user, which waits for the user's FUSE server, is no hang of the node either; nor is
the parent of a vfork child that lives on. A task that waits for a disk beside them is found, also when it is a thread.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fairlead.host.root import Root
from fairlead.host.tasks import Watch
from fairlead.model.finding import Level
from fairlead.model.host_facts import StuckTask, Tasks
from tests.checks.hosts import host_node, judged
from tests.host.conftest import write
from tests.host.test_fuse_waits import SERVED, VIRTIOFS, everybodys, sweeps
from tests.host.test_host_facts import until
from tests.host.users_fuse import USER, fuse, needs_fuse

__all__ = ["everybodys"]
ANSWER = "request_wait_answer"
DISK = "xfs_file_read_iter"
DUMP = ("do_exit", "exit_mm", "coredump_task_exit", "coredump_wait", "do_coredump", "vfs_coredump")
MEMORY = ("do_user_addr_fault", "__do_page_fault", "lock_mm_and_find_vma", "vm_mmap_pgoff", "__vm_munmap", "do_mprotect_pkey")
FOLDER = ("filename_create", "walk_component", "do_unlinkat", "path_openat", "lock_rename", "__fdget_pos", "lookup_slow")
TIMES = (0.0, 14.0, 28.0, 400.0)


def a_task(
    tree: Path, folder: str, function: str, *, state: str = "D", uid: int = 1000, killed: bool = True, switches: int = 5
) -> None:
    """``folder``: of a process (11) or of a thread (11/task/12). function: that it sleeps in."""
    pid = folder.rpartition("/")[2]
    rest = f"{state} 1 1 1 0 -1 4194560 " + "0 " * 10 + "2 0 777 0 0"
    write(tree, f"/proc/{folder}/stat", f"{pid} (evil) name) R (x) {rest}\n")
    pending = "0000000000000100" if killed else "0000000000000000"
    status = f"Name:\tevil\nUid:\t{uid}\t0\t0\t0\nShdPnd:\t{pending}\nvoluntary_ctxt_switches:\t{switches}\n"
    write(tree, f"/proc/{folder}/status", status)
    write(tree, f"/proc/{folder}/wchan", function)
    write(tree, f"/proc/{folder}/stack", f"[<0>] {function}+0x1/0x2\n[<0>] do_syscall_64+0x1/0x2\n")
    write(tree, f"/proc/{folder}/mountinfo", SERVED)


def stuck(tree: Path, *times: float) -> list[int]:
    """The tasks that the check would drain or warn for, after these looks."""
    watch = Watch(Root(os.fspath(tree)))
    found = sweeps(watch, *(times or TIMES))
    watch.end()
    return reported(found.values())


def reported(found: object) -> list[int]:
    node = host_node(tasks=Tasks(total=9, seen=9, stuck=tuple(found)))  # type: ignore[call-overload]
    findings = [f for f in judged("stuck_tasks", node) if f.level is not Level.OK]
    return sorted(int(word) for f in findings for word in f.evidence[0].removeprefix("process ").split(", "))


@pytest.mark.parametrize("function", [*DUMP, *MEMORY, *FOLDER, "do_exit.constprop.0", "__x64_sys_munmap", "__arm64_sys_brk"])
def test_a_process_waits_for_its_own_thread_that_waits_for_a_server(tree: Path, function: str) -> None:
    a_task(tree, "11", function)
    a_task(tree, "11/task/11", function)
    a_task(tree, "11/task/12", ANSWER)
    assert stuck(tree) == []
    a_task(tree, "11/task/12", DISK, switches=6)
    assert stuck(tree) == [11, 12], "who waits for a disk is told, and who waits for that"
    a_task(tree, "11/task/12", ANSWER, state="S")
    assert stuck(tree) == [], "so a wait for a server begins"
    write(tree, "/proc/11/task/12/mountinfo", VIRTIOFS)
    assert stuck(tree) == [11], "the host of a virtual machine is no user"
    a_task(tree, "11/task/12", "futex_wait", state="S")
    assert stuck(tree) == [11], "for what it waits is not known"


@pytest.mark.parametrize("function", [DISK, "rpc_wait_bit_killable", "nvidia_close", "0", "confuse_do_exit", "percpu_rwsem_wait"])
def test_a_task_that_waits_itself_for_something_else_counts_beside_its_thread(tree: Path, function: str) -> None:
    a_task(tree, "11", function)
    a_task(tree, "11/task/12", ANSWER)
    assert stuck(tree) == [11]


def test_a_thread_at_a_disk_is_told_beside_one_that_waits_for_a_server(tree: Path) -> None:
    a_task(tree, "11", "do_exit")
    a_task(tree, "11/task/12", ANSWER)
    a_task(tree, "11/task/13", DISK)
    assert stuck(tree) == [13]


@pytest.mark.parametrize(("uid", "counts"), [(1000, False), (1001, True)])
@pytest.mark.parametrize("main", ["D", "S"])
def test_another_process_is_excused_by_its_own_user_alone(tree: Path, main: str, uid: int, counts: bool) -> None:
    a_task(tree, "11", "filename_create")
    a_task(tree, "20", ANSWER if main == "D" else "futex_wait", state=main, uid=uid)
    a_task(tree, "20/task/20", ANSWER if main == "D" else "futex_wait", state=main, uid=uid)
    a_task(tree, "20/task/21", ANSWER, uid=uid)
    assert stuck(tree) == ([11] if counts else [])


def test_what_roots_processes_wait_for_excuses_no_other_of_roots(tree: Path) -> None:
    """Any user may have made one of root's wait for a FUSE server."""
    a_task(tree, "11", "filename_create", uid=0)
    a_task(tree, "20", ANSWER, uid=0)
    assert stuck(tree) == [11]


def test_once_the_server_has_answered_the_wait_counts_anew(tree: Path) -> None:
    a_task(tree, "11", "do_exit")
    a_task(tree, "11/task/12", ANSWER)
    watch = Watch(Root(os.fspath(tree)))
    assert reported(sweeps(watch, *TIMES).values()) == []
    a_task(tree, "11/task/12", DISK, switches=7)
    assert reported(sweeps(watch, 414.0, 428.0, 600.0).values()) == [11, 12]
    watch.end()


def test_a_thread_of_a_dead_process_is_told_once(tree: Path) -> None:
    a_task(tree, "11", "0", state="Z")
    a_task(tree, "11/task/12", DISK)
    watch = Watch(Root(os.fspath(tree)))
    for at in TIMES:
        found = watch.sweep(at)
        assert isinstance(found, Tasks) and [t.pid for t in found.stuck] == [12]
    watch.end()


@pytest.mark.parametrize("function", ["wait_for_vfork_done", "kernel_clone", "_do_fork", "do_fork"])
def test_who_waits_for_a_vfork_child_is_left_out_until_it_is_killed_and_stays(tree: Path, function: str) -> None:
    a_task(tree, "11", function, killed=False)
    assert stuck(tree, 0.0, 400.0) == []
    a_task(tree, "11", function)
    assert stuck(tree, 0.0, 400.0) == [11], "that wait ends with SIGKILL: it must be another one"


SPAWN = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""
BECOME = f"""
import ctypes, os, resource, sys, threading
os.setresgid({USER}, {USER}, {USER})
os.setresuid({USER}, {USER}, {USER})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE
"""
CRASH = """
resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
os.chdir(sys.argv[1])
threading.Thread(target=os.path.exists, args=("x",)).start()
print("started", flush=True)
sys.stdin.read(1)
os.abort()
"""
STAT = """
threading.Thread(target=os.path.exists, args=(sys.argv[1] + "/x",)).start()
print("started", flush=True)
threading.Event().wait()
"""


def function(folder: str | int) -> str:
    return Path(f"/proc/{folder}/wchan").read_text()


def state(folder: str | int) -> str:
    return Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()[0]


def at_the_server(pid: int) -> bool:
    return any(function(f"{pid}/task/{t}") == ANSWER for t in os.listdir(f"/proc/{pid}/task"))


@contextmanager
def running(keeper: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user's, in the keeper's mounts: a program, or lines of Python."""
    enter = ["nsenter", "--mount", f"--target={keeper}"]
    if words[0].startswith("\n"):
        command = [*enter, sys.executable, "-c", BECOME + words[0], *words[1:]]  # it may lie where only root may read
    else:
        command = [*enter, f"--setuid={USER}", f"--setgid={USER}", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            yield child
        finally:
            child.kill()


def now_and_later(*pids: int) -> dict[int, StuckTask]:
    """What the looks say of these, who sleep from the first on."""
    watch = Watch(Root("/"))
    try:
        found = sweeps(watch, *TIMES)
    finally:
        watch.end()
    return {pid: found[pid] for pid in pids}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_true_vfork_child_holds_its_parent_and_that_is_no_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen([sys.executable, "-c", SPAWN, os.fspath(tmp_path / "fifo")]) as parent:
        try:
            assert until(lambda: state(parent.pid) == "D" and "clone" in function(parent.pid) + "vfork_done"), "held by its child"
            found = now_and_later(parent.pid)[parent.pid]
            assert found.seconds == TIMES[-1] and reported([found]) == []
            parent.kill()
            assert parent.wait(30) == -9, "SIGKILL ends it"
        finally:
            os.close(os.open(tmp_path / "fifo", os.O_RDWR | os.O_NONBLOCK))


@needs_fuse
@pytest.mark.root
def test_a_true_crash_whose_other_thread_waits_for_a_server(everybodys: Path) -> None:
    """With SIGKILL pending, for as long as the user likes: as in a step that cannot be killed."""
    mount = everybodys / "m"
    with ExitStack() as ends, fuse(everybodys, ("fuse.sshfs", "a@b:", "m"), reads=True) as keeper:
        child = ends.enter_context(running(keeper, CRASH, os.fspath(mount)))
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == b"started\n"
        assert until(lambda: at_the_server(child.pid))
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert until(lambda: state(child.pid) == "D" and "coredump" in function(child.pid)), function(child.pid)
        child.kill()
        found = now_and_later(child.pid)[child.pid]
        assert found.killed and reported([found]) == []


@needs_fuse
@pytest.mark.root
def test_true_waits_for_a_folder_that_a_thread_of_another_process_holds(everybodys: Path) -> None:
    mount = os.fspath(everybodys / "m")
    with ExitStack() as ends, fuse(everybodys, ("fuse.sshfs", "a@b:", "m"), reads=True) as keeper:
        holder = ends.enter_context(running(keeper, STAT, mount))
        assert until(lambda: at_the_server(holder.pid) and state(holder.pid) == "S")
        makes = ends.enter_context(running(keeper, "mkdir", f"{mount}/y"))
        assert until(lambda: state(makes.pid) == "D" and function(makes.pid) == "filename_create"), function(makes.pid)
        asks = ends.enter_context(running(keeper, "stat", f"{mount}/z"))
        assert until(lambda: state(asks.pid) == "D" and function(asks.pid) == "walk_component"), function(asks.pid)
        for each in (makes, asks):
            each.kill()
        found = now_and_later(makes.pid, asks.pid)
        assert all(t.killed for t in found.values()) and reported(found.values()) == []
