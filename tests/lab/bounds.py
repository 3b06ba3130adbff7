"""How much of the machine's memory the hosts of a lab may take: a limit on their cgroup, where this machine can set one.

What is in their file systems in memory counts too (box.SIZES); past the limit the kernel ends processes of that group only.
A group of the v1 hierarchy lies below the caller's own, so that what limits the caller limits its labs as well.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.lab import cpus

#: One host of a rack; a bare cluster, which is many nodes in one root.
HOST_MIB, CLUSTER_MIB = 2048, 8192


def v1_group(name: str) -> Path | None:
    """The v1 memory group for a lab of this name; None where the machine has no such hierarchy."""
    mounted = cpus.v1_controllers().get("memory")
    if mounted is None:
        return None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return mounted / path.lstrip("/") / f"fairlead-lab-{name}"
    return None


def limit(group: Path, mib: int) -> None:
    """Make the group where it is not there and set its limit; nothing where it takes none (no memory controller in v2)."""
    group.mkdir(exist_ok=True)
    for name in ("memory.limit_in_bytes", "memory.max"):
        if (group / name).exists():
            (group / name).write_text(f"{mib << 20}\n")


def join(group: Path) -> None:
    """Move the calling process there."""
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
