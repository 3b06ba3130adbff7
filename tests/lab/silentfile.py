"""A file that does not answer: whoever opens it sleeps in true D state, until it is let go.

A fanotify group that asks to be asked (FAN_OPEN_PERM, fanotify(7)) and says nothing; closing it lets everybody on. Opening with
O_NONBLOCK waits too, as with a driver that holds a lock in its sysfs files.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLASS_CONTENT, _CLOEXEC = 0x4, 0x1
_MARK_ADD, _OPEN_PERM, _AT_FDCWD = 0x1, 0x10000, -100
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def silent_file(path: Path) -> Iterator[None]:
    """Needs root. Raises OSError where the kernel has no fanotify permission events."""
    group = _libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, os.O_RDONLY)
    if group < 0:
        raise OSError(ctypes.get_errno(), "fanotify_init")
    try:
        if _libc.fanotify_mark(group, _MARK_ADD, ctypes.c_uint64(_OPEN_PERM), _AT_FDCWD, os.fsencode(path)) < 0:
            raise OSError(ctypes.get_errno(), f"fanotify_mark: {path}")
        yield
    finally:
        os.close(group)
