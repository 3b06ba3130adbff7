"""Reads two files with which `fairlead apply` tells the agent that an apply runs, and that the agent must release NVML."""

from __future__ import annotations

import os

from fairlead.host.boot_clock import boottime


def applying(run_dir: str) -> bool:
    """Return whether `fairlead apply` runs. The file RUN_DIR/applying has ``1 PID EXPIRES``, where EXPIRES is in CLOCK_BOOTTIME
    seconds. An apply that was killed leaves the file, so the process PID must exist too."""
    pid = _marked_by(run_dir, "applying")
    return pid is not None and os.path.exists(f"/proc/{pid}")


def nvml_released(run_dir: str) -> bool:
    """Return whether the agent must release NVML, so that the kernel module can be unloaded or a GPU can be reset. The file
    RUN_DIR/nvml-release requests this. It has the same format as RUN_DIR/applying."""
    return _marked_by(run_dir, "nvml-release") is not None


def _marked_by(run_dir: str, name: str) -> int | None:
    """Return the id of the process that wrote this file, or None if there is no such file or it has expired."""
    try:
        fd = os.open(f"{run_dir}/{name}", os.O_RDONLY | os.O_CLOEXEC)  # most of the time there is no such file
    except OSError:
        return None
    try:
        fields = os.read(fd, 256).decode("ascii", "replace").strip().split("\t")
    except OSError:
        return None
    finally:
        os.close(fd)
    valid = len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit() and int(fields[2]) >= boottime()
    return int(fields[1]) if valid else None
