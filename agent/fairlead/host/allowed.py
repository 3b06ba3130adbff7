"""Reads which CPUs this process may use: /proc/self/status, Cpus_allowed_list (proc(5)). In a machine tree these are the CPUs
of the process that recorded the tree."""

from __future__ import annotations

from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist


def allowed_cpus(root: Root) -> tuple[int, ...] | None:
    """Return the allowed CPUs, or None where they are not recorded or cannot be read."""
    text = root.read_text("/proc/self/status", 65536)
    if not isinstance(text, str):
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            try:
                return parse_cpulist(value) or None
            except ValueError:
                return None
    return None
