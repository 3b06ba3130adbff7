"""Can this machine carry the lab? ``python -m tests.lab.preflight``: silence and 0, or a line per reason and 69 or 77.

Looks only; nothing is touched or installed. 77 means root is missing, 69 that something else is.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.lab import cpus, roots

#: Program -> Debian package that has it.
PROGRAMS = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gcc": "gcc libc6-dev",
}


def preflight() -> list[str]:
    """One line for everything that keeps the lab from running here; empty when nothing does."""
    reasons = [*distribution(), *space(), *kernel()]
    if os.geteuid() != 0:
        reasons.insert(0, "needs root: namespaces, mounts and network namespaces are made; run it with sudo")
    return reasons


def missing_programs() -> list[str]:
    """Debian packages that have to be installed first, in a fixed order."""
    names = [name for program, package in PROGRAMS.items() if not shutil.which(program) for name in package.split()]
    return list(dict.fromkeys(names))


def distribution(release: Path = Path("/etc/os-release")) -> list[str]:
    """Debian 12 or later; its testing has no VERSION_ID (os-release(5))."""
    facts = {}
    for line in release.read_text().splitlines() if release.is_file() else ():
        key, _, value = line.partition("=")
        facts[key] = value.strip('"')
    told = facts.get("PRETTY_NAME") or "an unknown system"
    if facts.get("ID") != "debian" or int(facts.get("VERSION_ID", "99").partition(".")[0]) < 12:
        return [f"needs Debian 12 or later, this is {told}"]
    return []


def space(folder: Path | None = None) -> list[str]:
    """Room for roots and disks: 3 GiB for the first root, 512 MiB when the roots are there."""
    where = folder or roots.lab_dir()
    wanted = 512 << 20 if roots.root_path("bookworm").is_dir() else roots.ROOM_BYTES
    there = where
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    reasons = []
    if free < wanted:
        reasons.append(
            f"{where}: {free / 2**30:.1f} GiB free, {wanted / 2**30:.1f} GiB needed; make room or set FAIRLEAD_LAB_DIR"
        )
    kind = _filesystem(there)
    if kind in ("overlay", "nfs", "nfs4", "vfat", "exfat", "9p", "fuseblk"):
        reasons.append(f"{where} is on {kind}, which cannot carry an overlay's disks; set FAIRLEAD_LAB_DIR to a local disk")
    return reasons


def _filesystem(path: Path) -> str:
    """Type of the file system that ``path`` is on."""
    best, kind = "", ""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, each = line.split()[:3]
        if (str(path) + "/").startswith(where.rstrip("/") + "/") and len(where) >= len(best):
            best, kind = where, each
    return kind


def kernel(proc: Path = Path("/proc")) -> list[str]:
    """overlayfs, the namespaces and a cgroup2 mount."""
    reasons = []
    known = {line.split()[-1] for line in (proc / "filesystems").read_text().splitlines()}
    if "overlay" not in known:
        reasons.append("the kernel has no overlayfs; try: modprobe overlay")
    for name in ("mnt", "net", "pid", "uts", "ipc", "cgroup"):
        if not (proc / "self/ns" / name).exists():
            reasons.append(f"the kernel has no {name} namespaces")
    try:
        cpus.cgroup2()
    except roots.LabError as error:
        reasons.append(str(error))
    return reasons


def main() -> int:
    """The command."""
    reasons = preflight()
    for reason in reasons:
        print(f"lab: {reason}", file=sys.stderr)
    if os.geteuid() != 0:
        return 77
    return 69 if reasons else 0


if __name__ == "__main__":
    sys.exit(main())
