"""Checks whether the disk for users' scratch folders can be used, and reads what fairlead-scratch@.service has published.

The agent never accesses that disk, because it may hang. Only the service does. When jobs can have their folders
FOLDER/UID/JOB.START on the disk, it writes ``1 FOLDER .`` to /run/fairlead/scratch.
"""

from __future__ import annotations

import os
import re
import stat

from fairlead.host import mount_lines
from fairlead.nccl import NETWORK_FILE_SYSTEMS

NAME = "fairlead"  # fairlead's folder on the disk
_ESCAPE = re.compile(r"\\([0-7]{3})")  # an escaped blank or backslash in a mount table (fs/proc_namespace.c, mangle)


def fault(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Return why fairlead's folder cannot be made in the folder ``path``, or "" if it can.

    ``path`` must be a folder of root on a local file system, without a link on the way. Users must not be able to rename or
    remove root's files in it: either they may not write to it, or its sticky bit is set (chmod(1)).
    """
    try:
        info = os.lstat(path)
        if os.path.realpath(path) != path or not stat.S_ISDIR(info.st_mode):
            return f"{path} is no folder, or there is a link on the way to it"
    except OSError as e:
        return f"{path}: {e.strerror}"
    if info.st_uid != 0 or (info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX):
        return f"{path} has owner {info.st_uid} and mode {stat.S_IMODE(info.st_mode):04o}; it needs root and 0755 or 1777"
    kind = _file_system(path, mounts)
    if not kind:
        return f"{mounts} does not say on which file system {path} is"
    if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        return f"{path} is on {kind}, which is not local"
    return ""


def published(run_dir: str, base: str) -> str:
    """Return the folder below ``base`` that the service has prepared in this boot, or "" if there is none."""
    try:
        with open(f"{run_dir}/scratch", encoding="ascii", errors="replace") as f:
            fields = f.read(4096).removesuffix("\n").split("\t")
    except OSError:
        return ""
    ready = len(fields) == 3 and (fields[0], fields[2]) == ("1", ".") and fields[1].startswith(f"{base}/{NAME}/")
    return fields[1] if ready else ""


def _file_system(path: str, mounts: str) -> str:
    """Return the type of the file system that ``path`` is on, or "" if it cannot be read. This is the file system with the
    longest mount point above ``path``. If several are mounted there, it is the last of them."""
    best, kind = -1, ""
    try:
        with open(mounts, "rb") as f:
            lines = mount_lines.read(f.fileno()) or []
    except OSError:
        return ""
    for line in lines:
        words = line.decode("utf-8", "surrogateescape").split(" ")
        point = _ESCAPE.sub(lambda m: chr(int(m[1], 8)), words[1]).rstrip("/") if len(words) > 2 else "-"
        if (path + "/").startswith(point + "/") and len(point) >= best:
            best, kind = len(point), words[2]
    return kind
