"""The state directory on a disk that does not answer, that is full, read-only, damaged or held: the agent judges,
publishes and answers all the while, says what is wrong, and writes what it remembers when it can again."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.verdict import State
from tests.alive.conftest import Living, Make
from tests.daemon.conftest import XID79
from tests.lab.silent import SilentDisk, silent_disk, why_not

pytestmark = pytest.mark.root
XID = XID79.format(n=1, us=5_000_000)
DISK = 'fairlead_source_timestamp_seconds{source="state_dir"}'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SilentDisk]:
    if why_not():
        pytest.skip(why_not())
    with silent_disk(tmp_path / "silent") as made:
        yield made
        made.thaw()


def on(disk: SilentDisk, living: Make, **agent: Any) -> Living:
    """An agent with its state directory, and its metrics, on that disk."""
    options = {"state_dir": f"{disk.mount}/state", "metrics_textfile": f"{disk.mount}/metrics.prom", **agent}
    made = living(agent=options)
    made.before = disk.enter
    return made


def threads_in_d(agent: Living) -> list[str]:
    """The ids of the agent's threads in state D. (Their names are all the same: Python 3.11 tells the kernel none.)"""
    assert agent.process is not None
    tasks = Path(f"/proc/{agent.process.pid}/task").iterdir()
    return [task.name for task in tasks if (task / "stat").read_text().rpartition(")")[2].split()[0] == "D"]


def test_a_disk_that_does_not_answer(living: Make, disk: SilentDisk) -> None:
    agent = on(disk, living, metrics_textfile="").start(wait=False)
    agent.until(lambda: agent.sequence() > 3, "verdicts")
    disk.freeze()
    agent.kernel(XID)
    agent.says("Xid 79")
    agent.until(lambda: bool(threads_in_d(agent)), "thread in state D")
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 3, "verdicts")
    assert agent.verdict().expires > time.clock_gettime(time.CLOCK_BOOTTIME)
    assert agent.prolog().rc == 0
    agent.until(lambda: "the disk does not answer" in str(agent.status()["trouble"]), "word of the disk in the status")
    disk.thaw()
    agent.until(lambda: not any("answer" in told for told in agent.status()["trouble"]), "status without that trouble")
    agent.until(lambda: not threads_in_d(agent), "threads that run")
    agent.until(lambda: records(disk) == 1, "the record of the time between in the file")
    agent.again()
    agent.says("Xid 79")
    assert agent.end() == 0


def records(disk: SilentDisk) -> int:
    """Of a copy: SQLite resolves links, and the one into the namespace leads nowhere for it."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("history.sqlite", "history.sqlite-wal"):
            shutil.copyfile(disk.inside / "state" / name, Path(folder, name))
        with closing(sqlite3.connect(Path(folder, "history.sqlite"))) as db:
            found: int = db.execute("SELECT count(*) FROM record").fetchone()[0]
            return found


def test_metrics_on_a_disk_that_does_not_answer(living: Make, disk: SilentDisk) -> None:
    """The text file of node_exporter lies on /var at most sites. It stays old, and says so: the moments in it are absolute."""
    agent = on(disk, living).start(wait=False)
    file = disk.inside / "metrics.prom"
    agent.until(file.exists, "metrics")
    disk.freeze()
    agent.kernel(XID)
    agent.says("Xid 79")
    old = file.read_text()
    sequence = agent.sequence()
    agent.until(lambda: agent.sequence() > sequence + 3, "verdicts")
    assert file.read_text() == old and "fairlead_source_timestamp_seconds" in old
    disk.thaw()
    agent.until(lambda: 'fairlead_verdict_state{state="warn"} 1.0' in file.read_text(), "new metrics")


def test_started_while_the_disk_does_not_answer(living: Make, disk: SilentDisk) -> None:
    disk.freeze()
    agent = on(disk, living, metrics_textfile="").start(wait=False)
    agent.until(lambda: agent.sequence() > 1 and agent.verdict().state is State.OK, "verdict ok")
    agent.kernel(XID)
    agent.says("Xid 79")
    assert agent.prolog().rc == 0
    disk.thaw()
    agent.until((disk.inside / "state/history.sqlite-wal").exists, "the file")
    agent.until(lambda: agent.status()["trouble"] == [], "status without trouble")
    assert records(disk) == 1


def test_killed_and_started_again_while_the_disk_does_not_answer(living: Make, disk: SilentDisk) -> None:
    """SIGKILL does not end the thread that waits for the disk. The next agent does not wait for it."""
    agent = on(disk, living, metrics_textfile="").start(wait=False)
    agent.until(lambda: agent.sequence() > 1, "verdicts")
    disk.freeze()
    agent.kernel(XID)
    agent.says("Xid 79")
    agent.until(lambda: bool(threads_in_d(agent)), "thread in state D")
    first = agent.process
    assert first is not None
    agent.send(signal.SIGKILL)
    sequence = agent.sequence()
    agent.start(wait=False)
    agent.until(lambda: agent.sequence() > sequence + 1, "verdicts of the second")
    disk.thaw()
    first.wait(60)
    agent.until(lambda: agent.verdict().state is not State.UNKNOWN, "verdict")
    assert agent.end() == 0


def test_a_full_disk(living: Make, tmp_path: Path) -> None:
    """A tmpfs of 512 KiB without a free byte, under the running agent."""
    keeper = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"mount -t tmpfs -o size=512k none {tmp_path}; echo; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with keeper:
        assert keeper.stdout is not None and keeper.stdout.readline() == b"\n"
        agent = living(agent={"state_dir": str(tmp_path / "state")})
        agent.before = ("nsenter", "--mount", f"--target={keeper.pid}")
        folder = Path(f"/proc/{keeper.pid}/root{tmp_path}")
        agent.start(wait=False)
        agent.until(lambda: agent.sequence() > 1, "verdicts")
        with open(folder / "fill", "wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        agent.kernel(XID)
        agent.says("Xid 79")
        assert agent.prolog().rc == 0
        agent.until(lambda: "history is kept in memory only" in str(agent.status()["trouble"]), "word of the disk")
        (folder / "fill").unlink()
        agent.until(lambda: agent.status()["trouble"] == [], "status without trouble")
        agent.again()
        agent.says("Xid 79")
        assert agent.end() == 0


DAMAGE = {
    "cut short": lambda data: data[: len(data) // 2 + 100],
    "empty": lambda data: b"",
    "garbage in its header": lambda data: b"\xa5" * 100 + data[100:],
    "a page of zeros": lambda data: data[:4096] + bytes(4096) + data[8192:],
    "all zeros": lambda data: bytes(len(data)),
    "another file": lambda data: b"#!/bin/sh\n" * 1000,
}


def test_a_damaged_history_under_the_running_agent(living: Make) -> None:
    """Each kind of damage in turn, as a bad disk does it: in the file itself, behind SQLite's back."""
    agent = living().start()
    file = agent.state_dir / "history.sqlite"
    for number, (name, spoil) in enumerate(DAMAGE.items(), start=1):
        agent.end(signal.SIGKILL)  # so that the write-ahead log is there
        with open(file, "r+b") as opened:
            data = spoil(opened.read())
            opened.seek(0)
            opened.write(data)
            opened.truncate(len(data))
        agent.start(wait=False)
        sequence = agent.sequence()
        agent.until(lambda s=sequence: agent.sequence() > s, f"verdicts with a history that is {name}")  # type: ignore[misc]
        agent.kernel(XID79.format(n=number, us=number * 1_000_000))
        agent.says("Xid 79")
        assert agent.prolog().rc == 0
        agent.until(lambda: sound(file), f"history anew after one that is {name}")


def sound(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file)) as db:
            rows = db.execute("SELECT count(*) FROM record").fetchone()[0]
            return bool(rows) and db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    except sqlite3.DatabaseError:
        return False


def test_a_history_that_is_overwritten_while_it_is_open(living: Make) -> None:
    agent = living().start()
    file = agent.state_dir / "history.sqlite"
    for name in ("history.sqlite", "history.sqlite-wal"):
        with open(agent.state_dir / name, "r+b") as opened:
            opened.write(b"\xa5" * opened.seek(0, 2))
            opened.seek(0)
            opened.write(b"\xa5" * 8192)
    agent.kernel(XID)
    agent.says("Xid 79")
    assert agent.prolog().rc == 0
    agent.until(lambda: sound(file), "history anew", seconds=90)
    agent.until(lambda: agent.status()["trouble"] == [], "status without trouble")


def test_a_history_that_another_process_holds(living: Make) -> None:
    agent = living().start()
    file = agent.state_dir / "history.sqlite"
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        agent.kernel(XID)
        agent.says("Xid 79")
        assert agent.prolog().rc == 0
        agent.until(lambda: "locked" in str(agent.status()["trouble"]), "word of the lock")
        db.execute("ROLLBACK")
    agent.until(lambda: agent.status()["trouble"] == [], "status without trouble")
    assert sound(file)


def test_a_state_directory_that_becomes_read_only(living: Make, disk: SilentDisk) -> None:
    agent = on(disk, living, metrics_textfile="").start(wait=False)
    agent.until(lambda: agent.sequence() > 1, "verdicts")
    subprocess.run([*disk.enter, "mount", "-o", "remount,ro", str(disk.mount)], check=False)
    agent.kernel(XID)
    agent.says("Xid 79")
    assert agent.prolog().rc == 0
