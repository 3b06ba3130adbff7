"""Files for others to read: whole or not at all."""

from __future__ import annotations

import os

from fairlead.host.atomic_file import replace


def write_atomic(path: str, data: bytes, *, mode: int = 0o644, sync: bool = False) -> None:
    """Replace ``path`` by a new file with ``data``. Readers see the old content or the new. Raises OSError.

    sync: on the disk when this returns.
    """
    replace(path, data, temporary=f"{path}.{os.getpid()}.tmp", mode=mode, sync=sync)


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
