"""Processes of this node that a setting must know about: a daemon's limits, job steps."""

from __future__ import annotations

from fairlead.host import modinfo, packages, unit_state
from fairlead.host.root import Root
from fairlead.model.facts import Missing


def find(root: Root, name: str) -> int | None:
    """The lowest process id whose command name (/proc/PID/comm, proc_pid_comm(5)) is ``name``; None when there is none."""
    for pid in sorted(int(n) for n in root.names("/proc") if n.isascii() and n.isdecimal()):
        if root.read_text(f"/proc/{pid}/comm") == f"{name}\n":
            return pid
    return None


class Found:
    """Processes by name, remembered: a walk through /proc costs what the node has in processes, a look at one does not."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._pids: dict[str, int | None] = {}

    def pid(self, name: str, *, search: bool) -> int | None:
        """The process called ``name``: the one known, while it is there; else one that is searched, where ``search``
        allows it or a known one has just gone."""
        known = self._pids.get(name)
        if known is not None and self._root.read_text(f"/proc/{known}/comm") == f"{name}\n":
            return known
        if search or known is not None or name not in self._pids:
            self._pids[name] = find(self._root, name)
        return self._pids[name]


def read_text(root: Root, path: str, found: Found | None = None, *, search: bool = True) -> str | Missing | None:
    """The text of a file. ``/proc/@NAME/FILE`` is that file of the process called NAME, None when none runs.

    A machine tree has it under that very name; a live machine is searched (see ``Found`` for looking again and again).
    ``/@modinfo/NAME``: the parameters of a kernel module (``modinfo``). ``/@packages``, ``/@kernels``: see ``packages``.
    ``/@unit/NAME``: a systemd unit (``unit_state``).
    """
    if path.startswith(modinfo.PREFIX):
        return modinfo.text(root, path)
    if path.startswith(unit_state.PREFIX):
        return unit_state.text(root, path)
    if path in (packages.PACKAGES, packages.KERNELS):
        return packages.text(root, path)
    if not root.is_live or not path.startswith("/proc/@"):
        return root.read_text(path)
    name, _, file = path.removeprefix("/proc/@").partition("/")
    pid = find(root, name) if found is None else found.pid(name, search=search)
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
