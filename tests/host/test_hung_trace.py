"""What the kernel logs of a task that hangs: it counts unless its own trace, whole and in order, ends in a wait for FUSE.

The form is the kernel's: kernel/hung_task.c (check_hung_task), kernel/sched/core.c (sched_show_task), arch/x86/kernel/dumpstack.c
and arch/arm64/kernel/stacktrace.c; Linux 4.18 to 6.18 are tried. The functions of the FUSE waits are those of true waits on this
kernel's /proc/PID/stack (``test_the_stacks_of_true_waits``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fairlead import checks
from fairlead.checks.kernel_log import Pattern
from fairlead.history.memory import History
from fairlead.host.hung_trace import HungTrace
from fairlead.host.kmsg import Follower
from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import MountPoint
from fairlead.model.hung_tasks import HUNG, WAITS
from tests.checks.hosts import NOW, WELL, host_node, judged
from tests.host.test_fuse_waits import everybodys, waiting
from tests.host.test_host_facts import until
from tests.host.users_fuse import fuse, needs_fuse

__all__ = ["everybodys"]
DATA = Path(__file__).resolve().parents[3] / "shared/data/dmesg"
ANSWER = (
    "__schedule",
    "schedule",
    "request_wait_answer",
    "fuse_simple_request",
    "fuse_lookup_name",
    "fuse_lookup",
    "__lookup_slow",
)
PAGE = (
    "__schedule",
    "schedule",
    "io_schedule",
    "folio_wait_bit_common",
    "filemap_get_pages",
    "filemap_read",
    "fuse_file_read_iter",
)
OLD_PAGE = ("__schedule", "schedule", "io_schedule", "__lock_page", "generic_file_buffered_read", "fuse_file_read_iter")
LOCK = ("__schedule", "schedule", "rwsem_down_write_slowpath", "down_write", "fuse_file_write_iter", "vfs_write")
ARM = ("__switch_to", "__schedule", "schedule", "request_wait_answer", "__fuse_simple_request.isra.0", "fuse_do_getattr")
NFS = ("__schedule", "schedule", "rpc_wait_bit_killable", "__rpc_execute", "nfs4_proc_getattr", "nfs_getattr", "vfs_getattr")
DISK = ("__schedule", "schedule", "io_schedule", "folio_wait_bit_common", "filemap_read", "xfs_file_buffered_read", "vfs_read")
DRIVER = ("__schedule", "schedule", "schedule_timeout", "os_acquire_semaphore", "rm_ioctl", "nvidia_ioctl")
BACKED = (
    "__schedule",
    "schedule",
    "io_schedule",
    "folio_wait_bit_common",
    "filemap_read",
    "fuse_passthrough_read_iter",
    "vfs_read",
)
SERVER = ("__schedule", "schedule", "folio_wait_bit_common", "fuse_copy_fill", "fuse_dev_do_write", "vfs_write")
FAULT = ("__schedule", "schedule", "io_schedule", "nfs_wait_on_request", "nfs_file_read", "fuse_file_read_iter")


def report(pid: int, frames: Sequence[str], *, name: str = "cat", era: str = "new", head: bool = True) -> list[str]:
    """One of khungtaskd's, as the kernel prints it."""
    first = [f"INFO: task {name}:{pid} blocked for more than 122 seconds."] if head else []
    task = {
        "new": f"task:{name:<15.15} state:D stack:0     pid:{pid:<5} tgid:{pid} ppid:4700   task_flags:0x400000 flags:0x00004002",
        "6.1": f"task:{name:<15.15} state:D stack:0     pid:{pid:<5} ppid:4700   flags:0x00004002",
        "arm": f"task:{name:<15.15} state:D stack:    0 pid:{pid:<5} ppid:  4700 flags:0x00000204",
        "4.18": f"{name:<15.15} D    0 {pid:>5}   4700 0x00004080",
    }[era]
    trace = [f" {f}+0x1a4/0x220{' [fuse]' if 'fuse' in f or f.startswith('request_') else ''}" for f in frames]
    mark = ["Call trace:"] if era == "arm" else ["Call Trace:"] if era == "4.18" else ["Call Trace:", " <TASK>"]
    end = (
        []
        if era in ("arm", "4.18")
        else [" RIP: 0033:0x7f1d2c3b4a5e", " RSP: 002b:00007ffc1b2a3948 EFLAGS: 00000246", " </TASK>"]
    )
    taint = ["      Tainted: P           OE      6.1.0-44-amd64 #1 Debian 6.1.164-1"]
    note = ['"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.']
    return [*first, *taint, *note, task, *mark, *trace, *end]


def followed(path: Path, texts: Sequence[str], *, start: int = 100, skip: Sequence[int] = ()) -> tuple[KernelRecord, ...]:
    """What a Follower reads of records with these texts; ``skip``: those that were overwritten before they could be read."""
    lines = [f"3,{start + n},{int((NOW - 500) * 1e6) + n},-;{text}\n" for n, text in enumerate(texts) if n not in skip]
    path.write_text("".join(lines))
    follower = Follower(os.fspath(path))
    records = tuple(follower.read())
    follower.close()
    return records


def hung(records: Sequence[KernelRecord], mounts: object = WELL.mounts) -> str:
    """Which processes the check warns of."""
    past = Past(available=True, records=tuple(r for r in records if checks.load()["stuck_tasks"].heeds(r.text)))
    found = [f for f in judged("stuck_tasks", host_node(mounts=mounts), past) if f.fault == "log"]
    assert len(found) <= 1 and all(f.level is Level.WARN for f in found)
    return found[0].evidence[0].partition(";")[0].removeprefix("process ") if found else ""


@pytest.mark.parametrize("era", ["new", "6.1", "arm", "4.18"])
@pytest.mark.parametrize(
    ("frames", "counts"),
    [(ANSWER, False), (PAGE, False), (OLD_PAGE, False), (LOCK, False), (ARM, False), (("schedule", *ANSWER[2:]), False),
     (NFS, True), (DISK, True), (DRIVER, True), (BACKED, True), (SERVER, True), (FAULT, True), (ANSWER[:2], True), ((), True)],
)  # fmt: skip
def test_where_the_trace_ends_decides(tmp_path: Path, era: str, frames: tuple[str, ...], counts: bool) -> None:
    assert hung(followed(tmp_path / "kmsg", report(4711, frames, era=era))) == ("4711" if counts else "")


WHOLE = report(4711, ANSWER)
OTHER = report(4712, ANSWER)
TRUE = report(4711, NFS)
HOSTILE = {
    "no trace": (WHOLE[:1], (), "4711"),
    "the trace is cut off before FUSE": (WHOLE[:8], (), "4711"),
    "its first lines were lost": (WHOLE, (3,), "4711"),
    "a function was lost": (WHOLE, (7,), "4711"),
    "of another process": ([WHOLE[0], *OTHER[1:]], (), "4711"),
    "another one's first lines were lost": ([*TRUE, *OTHER], (len(TRUE), len(TRUE) + 1), "4711"),
    "a trace of another CPU between": ([*WHOLE[:3], "Call Trace:", " dump_stack+0x1/0x2", *WHOLE[3:]], (), "4711"),
    "the unwinder doubts it": ([t.replace(" request_", " ? request_").replace(" fuse_", " ? fuse_") for t in WHOLE], (), "4711"),
    "a function that is only called so": ([t.replace("request_wait", "my_request_wait") for t in WHOLE], (), "4711"),
    "lines of other CPUs between": ([x for t in WHOLE for x in (t, "usb 1-1: new device")], (), ""),
    "many lines between": ([WHOLE[0], *["usb 1-1: new device"] * 80, *WHOLE[1:]], (), "4711"),
    "a name like the end of a line": (report(4711, NFS, name="x pid:1 D"), (), "4711"),
    "a name like a wait": (report(4711, NFS, name="waits for FUSE:"), (), "4711"),
    "a name like a function": (report(4711, NFS, name=" fuse_x+0x1/0x2"), (), "4711"),
    "a name like a name": (report(4711, ANSWER, name="a:1 state:D pid"), (), ""),
    "a line that reads like ours": ([WHOLE[0], "INFO: task waits for FUSE: record 100, process 4711"], (), "4711"),
}  # fmt: skip


@pytest.mark.parametrize(("texts", "lost", "counts"), HOSTILE.values(), ids=HOSTILE)
def test_no_true_hang_is_lost_for_a_trace_that_is_not_its_own(
    tmp_path: Path, texts: list[str], lost: tuple[int, ...], counts: str
) -> None:
    assert hung(followed(tmp_path / "kmsg", texts, skip=lost)) == counts


def test_a_hang_among_waits_is_told_alone(tmp_path: Path) -> None:
    texts = [line for pid in range(5000, 5009) for line in report(pid, NFS if pid == 5004 else ANSWER)]
    records = followed(tmp_path / "kmsg", texts)
    assert hung(records) == "5004"
    assert hung([r for r in records if not WAITS.match(r.text)]).startswith("5000, 5001"), "without a trace they all count"


@pytest.mark.parametrize(
    "mounts",
    [unreadable("/proc/1/mountinfo"), (MountPoint(path="/d", device="0:9", kind="virtiofs", source="d", read_only=False),)],
)  # fmt: skip
def test_what_may_be_the_virtual_machines_host_counts(tmp_path: Path, mounts: object) -> None:
    assert hung(followed(tmp_path / "kmsg", WHOLE), mounts) == "4711"


def test_a_pattern_of_the_sites_counts_neither_the_wait_nor_our_record(tmp_path: Path) -> None:
    pattern = Pattern(name="hung", regex="INFO: task .*")
    for frames, counts in ((ANSWER, 0), (NFS, 1)):
        past = Past(available=True, records=followed(tmp_path / "kmsg", report(4711, frames)))
        assert len(judged("kernel_log", host_node(), past, patterns=(pattern,))) == counts


def test_what_a_trace_said_is_remembered_as_long_as_its_record(tmp_path: Path) -> None:
    """Of each kind the first and the last are kept: the same of both."""
    texts = [line for pid in range(5000, 5200) for line in report(pid, ANSWER)]
    history = History("", "boot")
    history.add_records(r for r in followed(tmp_path / "kmsg", texts, start=1000) if checks.load()["stuck_tasks"].heeds(r.text))
    kept = history.past().records
    assert len([r for r in kept if HUNG.match(r.text)]) == len([r for r in kept if WAITS.match(r.text)]) > 20
    assert hung(kept) == ""


def test_a_trace_that_comes_in_pieces(tmp_path: Path) -> None:
    """A console is slow: the first line is read before the last is printed."""
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    follower = Follower(os.fspath(fifo))
    found: list[KernelRecord] = []
    with fifo.open("w") as writer:
        for number, text in enumerate(WHOLE):
            writer.write(f"3,{number},9500000000,-;{text}\n")
            writer.flush()
            found += follower.read()
    follower.close()
    assert hung(found) == ""


@pytest.mark.skipif(not DATA.is_dir(), reason="needs the recorded logs of ../shared/data")
@pytest.mark.parametrize("file", ["components-accelerator_dmesg-with-xid-119.log", "pkg-pstore_dmesg-erst.txt"])
def test_recorded_traces_of_something_else_excuse_no_hang(tmp_path: Path, file: str) -> None:
    """Whatever else is printed after a hung task's first line, it counts."""
    lines = (DATA / file).read_text(errors="replace").splitlines()
    texts = [line.partition("] ")[2] for line in lines]
    calls = [n for n, text in enumerate(texts) if text == "Call Trace:"]
    assert calls
    for at in calls:
        assert hung(followed(tmp_path / "kmsg", [*WHOLE[:4], *texts[at : at + 40], *WHOLE[4:]])) == "4711"


@needs_fuse
@pytest.mark.root
def test_the_stacks_of_true_waits(everybodys: Path) -> None:
    """This kernel's own functions, of a task that waits for a server which never answers, and of one that waits for a child."""
    with fuse(everybodys, ("fuse.sshfs", "a@b:", "m")) as server, waiting(server, everybodys / "m") as user:
        stack = Path(f"/proc/{user.pid}/stack").read_text().split("\n")
    assert reads(stack) is not None, stack
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as other:
        children = Path(f"/proc/{other.pid}/task/{other.pid}/children")
        assert until(lambda: children.read_text() != "")
        try:
            assert reads(Path(f"/proc/{other.pid}/stack").read_text().split("\n")) is None
        finally:
            subprocess.run(["kill", "--", f"-{other.pid}"], check=True)


def reads(stack: list[str]) -> KernelRecord | None:
    trace = HungTrace()
    frames = [line.partition("] ")[2] for line in stack if "+0x" in line]
    texts = [*WHOLE[:5], " __schedule+0x1/0x2", *(f" {frame}" for frame in frames)]
    said = [trace.take(n, KernelRecord(sequence=n, seconds=1.0, priority=3, text=text)) for n, text in enumerate(texts)]
    return next((s for s in said if s is not None), None)
