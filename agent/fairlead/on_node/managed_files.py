"""Reads, compares and replaces the files and links that fairlead keeps on a node."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any


def read(path: str) -> bytes | None:
    """Return the content of a file; None where there is none. Raises OSError."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def write(path: str, content: bytes, mode: int) -> None:
    """Replace a file by rename: the whole file or nothing is written, and it is on the disk. This does what
    fairlead.host.change.write_file does, which may not be on the node. Raises OSError with the name of the file, which the
    error of a full disk lacks."""
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
    """Return the target of a symbolic link; None for what is no link."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def differs(entry: dict[str, Any]) -> str:
    """Say in which way a file is not as its entry of the request: "missing", "content", "mode or owner"; "" where it does not
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
