"""Keeps the lines of ``/@packages`` of an EL node between the runs of fairlead's programs, until the next reboot.

Each `fairlead apply` is a new process. To read rpm's database takes 10 ms longer than to read dpkg's file, and on EL8 rpm itself
has to be asked. So the lines are kept together with the stamp of the database (``rpm_database.stamp``). As long as the stamp is
the same, nothing but this file is read.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from fairlead.host.atomic_file import write_atomic
from fairlead.host.root import Root

PATH = "/run/fairlead/rpm-packages"
MAX_BYTES = 64 << 20
#: A file may change twice within one tick of the clock of its file system, so younger stamps do not count.
SETTLED_SECONDS = 1.0


def kept(root: Root, stamp: tuple[tuple[int, ...], ...]) -> str | None:
    """Return the lines that belong to this stamp, or None."""
    text = root.read_text(PATH, MAX_BYTES) if root.is_live else None
    first, _, lines = text.partition("\n") if isinstance(text, str) else ("", "", "")
    return lines if first == repr(stamp) else None


def keep(root: Root, stamp: tuple[tuple[int, ...], ...], lines: str) -> None:
    """Keep the lines of a live machine. Nothing is kept without the folder, or if it cannot be written: this is no error."""
    newest = max((known[2] for known in stamp if len(known) > 2), default=0)
    if not root.is_live or os.geteuid() != 0 or time.time() - newest / 1e9 < SETTLED_SECONDS:
        return
    if os.path.isdir(os.path.dirname(PATH)):
        with suppress(OSError):
            write_atomic(PATH, f"{stamp!r}\n{lines}".encode())
