"""The few system calls that Python 3.11's standard library does not wrap.

unshare(2), setns(2), mount(2), umount2(2), pivot_root(2), prctl(2): each raises OSError with the kernel's
errno and names what was asked for. Everything here needs root and is Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from pathlib import Path

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_MOVE = 0x2000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1

# pivot_root has no libc wrapper; numbers from the kernel's asm/unistd.h.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the named namespaces for fresh ones (unshare(2))."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(path: Path, kind: int = 0) -> None:
    """Enter the namespace that ``path`` (a file of nsfs) names (setns(2))."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(fd, kind), f"setns({path})")
    finally:
        os.close(fd)


def mount(source: str | Path, target: str | Path, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); an empty ``fstype`` or ``data`` is passed as NULL."""
    result = _libc.mount(
        os.fsencode(str(source)),
        os.fsencode(str(target)),
        fstype.encode() if fstype else None,
        ctypes.c_ulong(flags),
        data.encode() if data else None,
    )
    _check(result, f"mount({fstype or 'bind'} {source} on {target}, flags {flags:#x}, {data or 'no options'})")


def bind(source: str | Path, target: str | Path, *, recursive: bool = False, readonly: bool = False) -> None:
    """Bind ``source`` over ``target``; a read-only bind takes a second, remounting call."""
    mount(source, target, flags=MS_BIND | (MS_REC if recursive else 0))
    if readonly:
        mount("none", target, flags=MS_REMOUNT | MS_BIND | MS_RDONLY)


def private_mounts() -> None:
    """Stop every mount of this mount namespace from propagating to or from anybody else."""
    mount("none", "/", flags=MS_REC | MS_PRIVATE)


def umount(target: str | Path, flags: int = 0) -> None:
    """umount2(2)."""
    _check(_libc.umount2(os.fsencode(str(target)), flags), f"umount({target})")


def pivot_root(new_root: Path) -> None:
    """Make ``new_root`` (a mount point) the root of this mount namespace and drop the old one."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root: unknown system call number on {platform.machine()}")
    os.chdir(new_root)
    # "." twice stacks the old root on top of the new one, where it can be detached: pivot_root(2), NOTES.
    _check(_libc.syscall(number, b".", b"."), f"pivot_root({new_root})")
    umount(".", MNT_DETACH)
    os.chdir("/")


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to this process when its parent thread ends (prctl(2))."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start_time(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat, proc(5)).

    None when it does not exist or is a zombie, which has ended. A pid with its start time names one process for
    good: pids are reused.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
