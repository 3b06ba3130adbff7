"""Gives this process mounts of its own (unshare(2), mount(2)), so that what it writes stays invisible to the machine.

The calls are made through libc, because Python has os.unshare only from 3.12 on, and no mount. Each function raises OSError.
"""

from __future__ import annotations

import ctypes
import os

_CLONE_NEWNS = 0x20000  # sched.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18  # mount.h
#: The folders that fairlead's programs write to.
OURS = ("/etc/fairlead", "/run/fairlead", "/var/lib/fairlead")
_OWN_RUN, _OWN_ETC = "/run", "/etc"
_NODE_ETC = "/run/node-etc"


def enter() -> None:
    """Leave the machine's mounts. Later mounts of this process are seen only by it and by its children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS):
        _raise("unshare")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)


def make_ours_read_only() -> None:
    """Enter a namespace in which nothing below the folders of fairlead can be written."""
    enter()
    for folder in filter(os.path.isdir, OURS):
        _mount(folder, folder, "", _MS_BIND | _MS_REC)
        _mount("none", folder, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def make_ours_empty() -> None:
    """Enter a namespace with an empty /run and with empty folders of fairlead. The other files of /etc are the machine's.

    /etc becomes a file system in memory with links to the real files, because a machine without fairlead has no folder
    /etc/fairlead to mount on.
    """
    enter()
    _mount("tmpfs", _OWN_RUN, "tmpfs", _MS_NOSUID | _MS_NODEV)
    os.mkdir(_NODE_ETC)
    _mount(_OWN_ETC, _NODE_ETC, "", _MS_BIND | _MS_REC)
    _mount("tmpfs", _OWN_ETC, "tmpfs", _MS_NOSUID | _MS_NODEV)
    for name in os.listdir(_NODE_ETC):
        path = f"{_NODE_ETC}/{name}"
        if name != "fairlead":  # a relative link would lead elsewhere from another folder, so it is made again
            os.symlink(os.readlink(path) if os.path.islink(path) else path, f"{_OWN_ETC}/{name}")
    for folder in ("/etc/fairlead", "/run/fairlead", "/run/fairlead/jobs", "/run/fairlead/plans"):
        os.mkdir(folder)
        os.chmod(folder, 0o711 if folder.endswith("jobs") else 0o755)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None]
    if libc.mount(*words):
        _raise(f"mount {target}")


def _raise(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, f"{what}: {os.strerror(number)}")
