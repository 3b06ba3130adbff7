"""Reads the lines of a table that a command of Slurm has printed into a file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from fairlead.errors import DataError, InputMissing

FILE_MAX_BYTES = 4 << 30
LINE_MAX_BYTES = 1 << 20


def table_lines(folder: str, name: str, mistakes: list[str]) -> Iterator[str] | None:
    """Return the lines of a table, or None if there is no such file. A last line without an end is named in ``mistakes`` and left
    out: the end of a cut output may look like a whole row. Raises InputMissing, DataError."""
    path = os.path.join(folder, name)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}") from None
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_MAX_BYTES:
        os.close(fd)
        raise DataError(f"{path}: is not a regular file of at most {FILE_MAX_BYTES >> 30} GiB")
    return _lines(fd, name, mistakes)


def _lines(fd: int, name: str, mistakes: list[str]) -> Iterator[str]:
    with open(fd, "rb") as file:
        while line := file.readline(LINE_MAX_BYTES):
            if not line.endswith(b"\n") and len(line) < LINE_MAX_BYTES:
                mistakes.append(f"{name}: the last line has no end: the output was cut off, and this line is not counted")
                return
            yield line.decode("utf-8", "replace")
