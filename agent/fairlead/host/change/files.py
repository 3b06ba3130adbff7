"""Files by temp and rename: whole or not at all."""

from __future__ import annotations

import os


def write_file(path: str, content: bytes | None, mode: int = 0o644) -> None:
    """Put ``content`` at ``path`` whole or not at all (None removes it); owner root, exact ``mode``. Raises OSError.

    A reader, a crash and a power cut see the old file or the new one. A left-over of a killed run is overwritten by the next.
    """
    folder, name = os.path.split(path)
    if content is None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        _sync_folder(folder)
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.fairlead-new")
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
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
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
