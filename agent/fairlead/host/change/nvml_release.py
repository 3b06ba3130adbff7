"""Asks the agent to release NVML for a while, so that the kernel module can be unloaded or a GPU can be reset.

The request is the file ``RUN_DIR/nvml-release``: ``1 PID EXPIRES``, separated by TAB. EXPIRES is in CLOCK_BOOTTIME seconds.
While the file is there and has not expired, the agent runs no NVML worker. If the process that wrote the file is killed, the
agent starts its NVML worker again when the file expires.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fairlead.host.atomic_file import write_file
from fairlead.host.boot_clock import boottime

RUN_DIR = "/run/fairlead"
NAME = "nvml-release"
SECONDS = 300


@contextmanager
def asked(run_dir: str = RUN_DIR, seconds: int = SECONDS) -> Iterator[None]:
    """Ask the agent to release NVML, and withdraw the request when the ``with`` block ends. Raises OSError."""
    path = os.path.join(run_dir, NAME)
    write_file(path, f"1\t{os.getpid()}\t{int(boottime()) + seconds}\n".encode())
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
