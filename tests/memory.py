"""Folders in memory for tests that write many files or databases, each synced when it is changed.

A sync takes ten milliseconds on a busy disk, and more than a second on one that several clusters use. Where /dev/shm refuses
programs, as in a container, the folder is on the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path("/dev/shm")
PREFIX = "fairlead-tests."


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder, gone at the end; on the disk where there is no memory to be had for files."""
    base = FOLDER if os.access(FOLDER, os.W_OK) and not os.statvfs(FOLDER).f_flag & os.ST_NOEXEC else None
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}.", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def sweep() -> None:
    """Remove what processes have left that were killed."""
    for left in FOLDER.glob(f"{PREFIX}*"):
        pid = left.name.removeprefix(PREFIX).partition(".")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left, ignore_errors=True)
