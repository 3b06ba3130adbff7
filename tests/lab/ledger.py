"""What a lab has started, written down before it exists, so that anybody can end it later.

One folder per lab under /run/fairlead-lab, one line per thing in its file ``ledger``. The lines are written
first and the thing made afterwards: a creator that is killed in between leaves a line about nothing, never a
thing that no line names. Processes are named by pid and start time (pids are reused), or by the cgroup that
only they are in; nothing is ever ended by its name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lab import linux
from tests.lab.roots import LabError

RUN = Path("/run/fairlead-lab")
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
#: "PID START" of the test process that labs below it belong to, wherever they are made (tests/conftest.py sets it).
OWNER = "FAIRLEAD_LAB_OWNER"


def own_name(name: str) -> str:
    """``name`` for a lab of this process alone: tests run in several processes, and in several checkouts, at once."""
    return f"{name}-{os.getpid()}"


@contextmanager
def alone() -> Iterator[None]:
    """No other lab changes a limit of the whole machine meanwhile."""
    RUN.mkdir(mode=0o755, exist_ok=True)
    with open(RUN / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Ledger:
    """The record of one lab. ``folder`` is also where it keeps its sockets, logs and generated files."""

    def __init__(self, name: str) -> None:
        if not name or "/" in name or name.startswith("."):
            raise LabError(f"not a name for a lab: {name!r}")
        self.name = name
        self.folder = RUN / name
        self.file = self.folder / "ledger"

    def open(self) -> None:
        """Begin; raises LabError when a lab of this name is there already."""
        RUN.mkdir(mode=0o755, exist_ok=True)
        try:
            self.folder.mkdir(mode=0o755)
        except FileExistsError:
            raise LabError(f"a lab named {self.name} is there already; end it: python -m tests.lab.clean {self.name}") from None
        self.process("creator", os.getpid())
        if owner := os.environ.get(OWNER):
            self.add("owner", owner)

    def add(self, kind: str, value: str | Path) -> None:
        """Write down a thing of ``kind`` (cgroup, netns, disk, frozen, inotify, hosts) before it is made."""
        with open(self.file, "a") as out:
            out.write(f"{kind} {value}\n")

    def process(self, kind: str, pid: int) -> None:
        """Write down a process that already runs (``kind`` is creator or process)."""
        self.add(kind, f"{pid} {linux.start_time(pid) or 0}")

    def entries(self, kind: str) -> list[str]:
        """The values of one kind, oldest first."""
        try:
            lines = self.file.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [value for head, _, value in (line.partition(" ") for line in lines) if head == kind]

    def creator_alive(self) -> bool:
        """Whether the process that made this lab, or the test process that it was made for, still runs."""
        return any(_alive(entry) for entry in [*self.entries("creator"), *self.entries("owner")])

    def end(self) -> list[str]:
        """End everything written down here and forget it; returns one line per thing that would not go."""
        stuck: list[str] = []
        for entry in self.entries("frozen"):  # first: nothing that waits for a frozen disk can be killed
            subprocess.run(["fsfreeze", "--unfreeze", entry], capture_output=True, check=False)
        for entry in self.entries("process"):
            if _alive(entry):
                os.kill(int(entry.split()[0]), signal.SIGKILL)
        for entry in self.entries("cgroup"):
            stuck += remove_cgroup(Path(entry))
        for entry in self.entries("netns"):
            if Path("/run/netns", entry).exists():
                gone = subprocess.run(["ip", "netns", "del", entry], capture_output=True, text=True, check=False)
                if gone.returncode:
                    stuck.append(f"network namespace {entry}: {gone.stderr.strip()}")
        deadline = time.monotonic() + 30
        for entry in self.entries("process"):
            while _alive(entry) and time.monotonic() < deadline:
                time.sleep(0.01)
            if _alive(entry):
                stuck.append(f"process {entry.split()[0]} does not end")
        for entry in self.entries("frozen"):
            gone = subprocess.run(["umount", entry], capture_output=True, text=True, check=False)
            if Path(entry).is_mount():
                stuck.append(f"mount {entry}: {gone.stderr.strip()}")
        if stuck:
            return stuck
        for entry in self.entries("disk"):
            shutil.rmtree(entry, ignore_errors=True)
            if Path(entry).exists():
                stuck.append(f"folder {entry} could not be removed")
        if not stuck:
            with alone():
                self._restore_sysctl()
                shutil.rmtree(self.folder, ignore_errors=True)
        return stuck

    def raise_inotify(self, wanted: int) -> None:
        """Under ``alone()``: raise fs.inotify.max_user_instances to ``wanted`` when it is lower; end() puts it back."""
        now = int(INOTIFY.read_text())
        if now < wanted:
            self.add("inotify", str(now))
            INOTIFY.write_text(f"{wanted}\n")

    def _restore_sysctl(self) -> None:
        """Under ``alone()``: put a raised limit back, or leave that to another lab that still lives on it."""
        for old in sorted(self.entries("inotify"), key=int)[:1]:
            others = [lab for lab in labs() if lab.name != self.name and lab.entries("rack")]
            if others:
                others[0].add("inotify", old)
            else:
                INOTIFY.write_text(f"{old}\n")


def labs() -> list[Ledger]:
    """Every lab that is written down on this machine."""
    return [Ledger(path.name) for path in sorted(RUN.glob("*")) if path.is_dir()] if RUN.is_dir() else []


def _alive(entry: str) -> bool:
    pid, _, started = entry.partition(" ")
    return linux.start_time(int(pid)) == int(started)


def cgroup_pids(top: Path) -> list[int]:
    """Every process in ``top`` and below it."""
    pids: list[int] = []
    for folder, _, files in os.walk(top):
        if "cgroup.procs" in files:
            try:
                pids += [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
            except OSError:
                continue
    return pids


def remove_cgroup(top: Path) -> list[str]:
    """SIGKILL everything in ``top`` and remove it; returns one line when something stays."""
    if not top.is_dir():
        return []
    deadline = time.monotonic() + 30
    kill = top / "cgroup.kill"
    while True:
        if kill.exists():
            kill.write_text("1")
        else:
            for pid in cgroup_pids(top):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        if not cgroup_pids(top):
            for folder, _, _ in os.walk(top, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    continue
            if not top.is_dir():
                return []
        if time.monotonic() > deadline:
            return [f"cgroup {top} stays: processes {cgroup_pids(top)}"]
        time.sleep(0.02)
