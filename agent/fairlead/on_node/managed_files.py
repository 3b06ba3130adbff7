"""Reads, compares and replaces the files and links that fairlead manages on a node."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any

from .selinux_labels import restore


def read(path: str) -> bytes | None:
    """Return the content of a file, or None if there is no such file. Raises OSError."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, content: bytes, mode: int) -> None:
    """Replace a file as a whole by rename(2). The new file is on the disk when this function returns.

    This is a copy of fairlead.host.change.write_file, because that module may not be on the node. Raises OSError, always with a
    file name (the kernel's error for a full disk has none).
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, "." + name + ".fairlead-new")
    try:
        os.makedirs(folder, mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as f:
            f.write(content)
            f.flush()
            os.fchmod(f.fileno(), mode)
            os.fsync(f.fileno())
        os.rename(temporary, path)
        restore(path)
    except OSError as e:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise OSError(e.errno, e.strerror, path if e.filename in (None, temporary) else e.filename) from None


def link(path: str, target: str) -> None:
    """Make or replace a symbolic link by rename. Raises OSError."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = path + ".fairlead-new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    os.symlink(target, temporary)
    os.rename(temporary, path)


def link_target(path: str) -> str | None:
    """Return the target of a symbolic link, or None if ``path`` is no link."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def differs(entry: dict[str, Any]) -> str:
    """Return how a file differs from its entry in the request: "missing", "content" or "mode or owner", or "" if it does not
    differ."""
    try:
        status = os.lstat(entry["path"])
    except OSError:
        return "missing"
    content = read(entry["path"])
    if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
        return "content"
    if status.st_mode & 0o7777 != entry["mode"] or status.st_uid != 0:
        return "mode or owner"
    return ""
