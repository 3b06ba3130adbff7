"""Asking the agent to let go of NVML for a while, so that the kernel module can be unloaded or a GPU reset.

``RUN_DIR/nvml-release``: ``1 PID EXPIRES`` (TAB separated, CLOCK_BOOTTIME seconds), as ``applying`` is. While it is there and
not expired the agent has no NVML worker, and says so; for a run that is killed nobody waits longer than that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fairlead.host.atomic_file import write_file
from fairlead.host.clock import boottime

RUN_DIR = "/run/fairlead"
NAME = "nvml-release"
SECONDS = 300


@contextmanager
def asked(run_dir: str = RUN_DIR, seconds: int = SECONDS) -> Iterator[None]:
    """While this runs, the agent is asked. Raises OSError."""
    path = os.path.join(run_dir, NAME)
    write_file(path, f"1\t{os.getpid()}\t{int(boottime()) + seconds}\n".encode())
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
