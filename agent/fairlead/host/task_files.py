"""Reads the files of one task in /proc: of a process (/proc/PID) or a thread (/proc/PID/task/TID). The name is not read."""

from __future__ import annotations

from typing import NamedTuple

from fairlead.host.root import Root

_SIGKILL = 1 << 8


class Status(NamedTuple):
    """Holds fields of proc_pid_status(5). uid: the real user id. switches: the number of context switches. killed:
    SIGKILL is pending."""

    uid: int
    switches: int
    killed: bool


def stat_fields(root: Root, folder: str) -> list[str] | None:
    """Return the fields of proc_pid_stat(5) that follow the name (state, ppid, ...), or None if they cannot be read. The name
    itself may contain any character."""
    data = root.read_bytes(f"{folder}/stat", 4096, head=True)
    if not isinstance(data, bytes):
        return None
    fields = data.rpartition(b")")[2].decode("ascii", "replace").split()
    return fields if len(fields) > 19 else None


def status(root: Root, folder: str) -> Status | None:
    data = root.read_bytes(f"{folder}/status", 8192, head=True)
    if not isinstance(data, bytes):
        return None
    uid, switches, pending = 0, 0, 0
    for line in data.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        value = value.strip()
        if name.endswith("ctxt_switches") and value.isdigit():
            switches += int(value)
        elif name == "Uid" and (words := value.split()) and words[0].isdigit():
            uid = int(words[0])
        elif name in ("SigPnd", "ShdPnd"):
            try:
                pending |= int(value, 16)
            except ValueError:
                continue
    return Status(uid, switches, bool(pending & _SIGKILL))


def waits_in(root: Root, folder: str) -> str:
    """Return the kernel function that the task sleeps in, or "". Functions of the scheduler and of locks are left out
    (proc_pid_wchan(5))."""
    data = root.read_bytes(f"{folder}/wchan", 256, head=True)
    return data.decode("ascii", "replace").strip() if isinstance(data, bytes) else ""


def process_of(folder: str) -> str:
    """Return the folder of the process that a task belongs to."""
    return folder.partition("/task/")[0]
