"""Files for others to read: whole or not at all."""

from __future__ import annotations

import os


def write_atomic(path: str, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replace ``path`` by a new file with ``data``. Readers see the old content or the new. Raises OSError.

    sync: on the disk when this returns, name and content (fsync(2) of the file, then of its folder).
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            os.fchmod(fd, mode)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    if sync:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_if_changed(path: str, data: bytes, *, mode: int = 0o644) -> bool:
    """write_atomic where the content differs; whether it did. Raises OSError."""
    try:
        with open(path, "rb") as f:
            if f.read() == data:
                return False
    except OSError:
        pass
    write_atomic(path, data, mode=mode)
    return True
