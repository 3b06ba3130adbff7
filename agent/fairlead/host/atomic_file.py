"""Replaces a file as a whole. A reader sees the old content or the new content, even after a crash or a power cut."""

from __future__ import annotations

import os
from contextlib import suppress

from fairlead.host import file_acl, selinux_label

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace(path: str, data: bytes, *, temporary: str, mode: int, sync: bool, reader: int | None = None) -> None:
    """Write ``data`` to ``temporary`` in the folder of ``path``, with exactly this mode, and rename it to ``path``.

    ``reader``: the number of a user who may read the file too. On a file system without ACLs only the mode counts.

    A temporary file that an earlier run left is overwritten. ``sync``: the file's name and content are on the disk when this
    function returns (fsync(2) of the file, then of its folder). If a step fails, the function removes the temporary file and
    raises OSError.
    """
    try:
        fd = os.open(temporary, _NEW, 0o600)
    except FileExistsError:
        os.unlink(temporary)
        fd = os.open(temporary, _NEW, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            if reader is not None:
                with suppress(OSError):
                    file_acl.allow_reading(fd, reader)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync:
        sync_folder(os.path.dirname(path) or ".")


def write_file(path: str, content: bytes | None, mode: int = 0o644) -> None:
    """Replace the file ``path`` as a whole by a file with this ``content`` and exactly this ``mode``, or remove it if
    ``content`` is None. Raises OSError.

    The file belongs to the user of this process (on a node: root), and it has the SELinux label of its place. A temporary file
    that a killed run left is overwritten.
    """
    folder, name = os.path.split(path)
    if content is None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        sync_folder(folder)
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    replace(path, content, temporary=os.path.join(folder, f".{name}.fairlead-new"), mode=mode, sync=True)
    selinux_label.restore(path)


def sync_folder(folder: str) -> None:
    """Write to the disk which names were added to a folder or removed from the folder (fsync(2))."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, *, mode: int = 0o644, sync: bool = False, reader: int | None = None) -> None:
    """Replace ``path`` by a new file with ``data``. Readers see the old content or the new. Raises OSError.

    ``sync``: the new file is on the disk when this function returns. ``reader``: as for ``replace``.
    """
    replace(path, data, temporary=f"{path}.{os.getpid()}.tmp", mode=mode, sync=sync, reader=reader)


def write_if_changed(path: str, data: bytes, *, mode: int = 0o644) -> bool:
    """Write ``data`` with ``write_atomic`` if ``path`` has another content. Return True if it was written. Raises OSError."""
    try:
        with open(path, "rb") as f:
            if f.read() == data:
                return False
    except OSError:
        pass
    write_atomic(path, data, mode=mode)
    return True
