"""Finds the system's daemons and job steps, and tells them from a user's processes of the same name.

A process chooses its own name (prctl(2), PR_SET_NAME) and its own command line. A set-user-ID program that a user starts
through a link of another name even runs as root under that name. So a process is recognised by what a user cannot choose. Its
real user id must be 0 (proc_pid_status(5)). Besides, it must be in the control group of its unit, or execute a program with
the daemon's name (/proc/PID/exe). A daemon that root started by hand or in a container also executes such a program.

Before a process is recognised, nothing is read from its memory. A user can put the command line of a process
(/proc/PID/cmdline) on a page that is never loaded, and a program that reads the command line then waits for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from fairlead.host import installed_kernels, installed_packages, modinfo, mount_table, unit_state
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable

PROC = "/proc"
_NAME_BYTES = 15  # /proc/PID/comm has the first 15 bytes of a name (proc_pid_comm(5))
#: The units of those daemons whose control group cannot contain a user's process. slurmd is left out: without
#: proctrack/cgroup, and on cgroup v1, the control group of slurmd.service contains the processes of jobs.
_UNITS = {
    "nv-fabricmanage": "nvidia-fabricmanager.service",
    "nvidia-imex": "nvidia-imex.service",
    "irqbalance": "irqbalance.service",
    "tuned": "tuned.service",
}


def daemons(*names: str, proc: str = PROC) -> Iterator[tuple[str, int | Missing]]:
    """Yield the system's processes with one of these names (at most 15 characters), by process id. The process id is
    Missing if this program may not see which program a process of root executes."""
    comms = {f"{name}\n".encode(): name for name in names}
    for pid in sorted(int(n) for n in os.listdir(proc) if n.isascii() and n.isdecimal()):
        name = comms.get(_head(f"{proc}/{pid}/comm"))
        found = _is_systems(proc, pid, name) if name is not None else False
        if name is not None and found:
            yield name, pid if found is True else found


def _is_systems(proc: str, pid: int, name: str) -> bool | Missing:
    if real_uid(pid, proc) != 0:
        return False
    if name in _UNITS and _UNITS[name] in _units_of(proc, pid):
        return True
    try:
        program = os.readlink(f"{proc}/{pid}/exe").removesuffix(" (deleted)").rpartition("/")[2]
    except PermissionError:
        return unreadable(f"/proc/{pid}/exe: only root may see whether this process called {name} is the system's")
    except OSError:
        return False  # the process has ended
    if program.startswith(".nfs"):  # an upgrade has removed the program from an NFS server while it ran
        return True
    return program[:_NAME_BYTES] == name or program.startswith(f"{name}-")  # on Debian the program is slurmd-wlm


def real_uid(pid: int, proc: str = PROC) -> int | None:
    """Return the real user id of a process, or None when the process has ended. The owner of /proc/PID is not always
    this user: if a process may not be dumped, the owner is root, no matter who started the process (proc(5))."""
    for line in _head(f"{proc}/{pid}/status").splitlines():
        if line.startswith(b"Uid:"):  # the name in the first line cannot contain a line feed: the kernel escapes it
            first = line.split()[1:2]
            return int(first[0]) if first and first[0].isdigit() else None
    return None


def _units_of(proc: str, pid: int) -> set[str]:
    """Return the units in system.slice that the process belongs to.

    They are read from the cgroup hierarchies that systemd manages and that no user can write: systemd's own (cgroup v1,
    hybrid) and the unified hierarchy (v2, hybrid). If systemd uses only one of these, the other may name no unit.
    """
    found = set()
    for line in _head(f"{proc}/{pid}/cgroup", 65536).splitlines():
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        words = path.split(b"/")
        if controllers in (b"name=systemd", b"") and words[:2] == [b"", b"system.slice"] and len(words) > 2:
            found.add(words[2].decode("ascii", "replace"))
    return found


def _head(path: str, limit: int = 4096) -> bytes:
    try:
        with open(path, "rb", buffering=0) as f:
            return f.read(limit)
    except OSError:
        return b""


def find(name: str, proc: str = PROC) -> int | Missing | None:
    """Return the lowest process id of the system's daemon ``name``, None when there is none, or Missing if this
    program may not see it."""
    doubt = None
    for _, pid in daemons(name, proc=proc):
        if isinstance(pid, int):
            return pid
        doubt = doubt or pid
    return doubt


class Found:
    """Caches process ids of daemons by name, because a search reads every process in /proc. To test one known process is
    quick."""

    def __init__(self, proc: str = PROC) -> None:
        self._proc = proc
        self._pids: dict[str, int | Missing | None] = {}

    def pid(self, name: str, *, search: bool) -> int | Missing | None:
        """Return the process id of the daemon ``name`` (see ``find``). While the known process runs, return its id. Otherwise
        search /proc, if ``search`` is True, if the known process has ended, or in the first call for this name."""
        known = self._pids.get(name)
        if isinstance(known, int):
            there = _head(f"{self._proc}/{known}/comm") == f"{name}\n".encode()
            if there and _is_systems(self._proc, known, name) is True:
                return known
        if search or known is not None or name not in self._pids:
            self._pids[name] = find(name, self._proc)
        return self._pids[name]


def read_text(root: Root, path: str, found: Found | None = None, *, search: bool = True) -> str | Missing | None:
    """Return the text of a file, or the text of one of these special paths.

    ``/proc/@NAME/FILE``: /proc/PID/FILE of the system's daemon NAME, or None if no such daemon runs. A machine tree has a file
    named ``/proc/@NAME/FILE``. On a live machine the daemon is searched for, and ``found`` caches its process id.
    ``/@modinfo/NAME``: the parameters of a kernel module (``modinfo``). ``/@packages``: see
    ``installed_packages``. ``/@kernels``: see ``installed_kernels``. ``/@unit/NAME``: a systemd unit (``unit_state``).
    /proc/mounts: the mount table without the FUSE mounts of users (``mount_table``).
    """
    if path.startswith(modinfo.PREFIX):
        return modinfo.text(root, path)
    if path.startswith(unit_state.PREFIX):
        return unit_state.text(root, path)
    if path == installed_packages.PACKAGES:
        return installed_packages.text(root)
    if path == installed_kernels.KERNELS:
        return installed_kernels.text(root)
    if path == "/proc/mounts":
        return mount_table.text(root, path)
    if not root.is_live or not path.startswith("/proc/@"):
        return root.read_text(path)
    name, _, file = path.removeprefix("/proc/@").partition("/")
    pid = find(name) if found is None else found.pid(name, search=search)
    return root.read_text(f"/proc/{pid}/{file}") if isinstance(pid, int) else pid


def jobs_running(proc: str = PROC) -> bool:
    """Say whether a Slurm job step runs here: a process titled ``slurmstepd: [JOB.STEP]`` (not the idle ``slurmstepd
    infinity`` that newer Slurm keeps for its cgroup scope). Also return True if this program may not see whether one runs."""
    return any(isinstance(pid, Missing) or b"infinity" not in command(pid, proc) for _, pid in daemons("slurmstepd", proc=proc))


def command(pid: int, proc: str = PROC) -> bytes:
    """Return the command line of a process that ``daemons`` has found, with a zero byte after each word. It is empty if the
    process has ended."""
    return _head(f"{proc}/{pid}/cmdline", 65536)


def slurmd_names(proc: str = PROC) -> list[str]:
    """Return the value of ``-N`` (the NodeName) of every slurmd that runs here, and "" for a slurmd without ``-N``."""
    lines = (command(pid, proc) for _, pid in daemons("slurmd", proc=proc) if isinstance(pid, int))
    return [_node_name(line.decode("utf-8", "replace").split("\0")) for line in lines if line]


def _node_name(words: list[str]) -> str:
    for at, word in enumerate(words[1:], 1):
        if word == "-N" and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("-N") and len(word) > 2:
            return word[2:]
    return ""
