"""Whether a folder on this machine can hold users' scratch folders, one a job."""

from __future__ import annotations

import os
import stat

from fairlead.host import mount_table
from fairlead.host.root import Root
from fairlead.nccl.route import NETWORK_FILE_SYSTEMS

_MODE = stat.S_ISVTX | stat.S_IRWXO | stat.S_IRWXU


def fault(path: str, mounts: str = "/proc/self/mounts") -> str:
    """Why it cannot, or "". It must be a real folder of root's with mode 1777 (anybody may make names there, only their owner
    may take them away: sticky bit, chmod(1)), on a file system of this machine."""
    try:
        info = os.lstat(path)
        if os.path.realpath(path) != path or not stat.S_ISDIR(info.st_mode):
            return f"{path} is no folder, or there is a link on the way to it"
    except OSError as e:
        return f"{path}: {e.strerror}"
    if info.st_uid != 0 or info.st_mode & _MODE != _MODE:
        return f"{path} has owner {info.st_uid} and mode {stat.S_IMODE(info.st_mode):04o}; it needs root and 1777"
    kind = _file_system(path, mounts)
    if kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        return f"{path} is on {kind}, which is not local"
    return ""


def _file_system(path: str, mounts: str) -> str:
    """The type of the file system that ``path`` is on: of the longest mount point above it, the last one mounted there."""
    best, kind = -1, ""
    lines = mount_table.lines(Root("/"), mounts)
    for line in lines if isinstance(lines, list) else []:
        words = line.decode("utf-8", "replace").split(" ")
        if len(words) > 2 and (path + "/").startswith(words[1].rstrip("/") + "/") and len(words[1].rstrip("/")) >= best:
            best, kind = len(words[1].rstrip("/")), words[2]
    return kind
