"""Processes of this node that a setting must know about: a daemon's limits, job steps."""

from __future__ import annotations

from fairlead.host.root import Root
from fairlead.model.facts import Missing


def find(root: Root, name: str) -> int | None:
    """The lowest process id whose command name (/proc/PID/comm, proc_pid_comm(5)) is ``name``; None when there is none."""
    for pid in sorted(int(n) for n in root.names("/proc") if n.isascii() and n.isdecimal()):
        if root.read_text(f"/proc/{pid}/comm") == f"{name}\n":
            return pid
    return None


def read_text(root: Root, path: str) -> str | Missing | None:
    """The text of a file. ``/proc/@NAME/FILE`` is that file of the process called NAME, None when none runs.

    A machine tree has it under that very name; a live machine is searched.
    """
    if not root.is_live or not path.startswith("/proc/@"):
        return root.read_text(path)
    name, _, file = path.removeprefix("/proc/@").partition("/")
    pid = find(root, name)
    return None if pid is None else root.read_text(f"/proc/{pid}/{file}")


def jobs_running(root: Root) -> bool:
    """Whether a Slurm job step runs here: a process titled ``slurmstepd: [JOB.STEP]`` (not the idle ``slurmstepd infinity``
    that newer Slurm keeps for its cgroup scope)."""
    for name in root.names("/proc"):
        if not (name.isascii() and name.isdecimal()) or root.read_text(f"/proc/{name}/comm") != "slurmstepd\n":
            continue
        title = root.read_text(f"/proc/{name}/cmdline")
        if not isinstance(title, str) or "infinity" not in title:
            return True
    return False
