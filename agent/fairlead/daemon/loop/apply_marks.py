"""Reads the marks by which `fairlead apply` tells the agent that it runs, and that the agent must release NVML."""

from __future__ import annotations

import os

from fairlead.host.clock import boottime


def applying(run_dir: str) -> bool:
    """Return whether `fairlead apply` runs. RUN_DIR/applying has ``1 PID EXPIRES``, in CLOCK_BOOTTIME seconds. An apply that
    was killed leaves its mark, but its process is gone."""
    pid = _marked_by(run_dir, "applying")
    return pid is not None and os.path.exists(f"/proc/{pid}")


def nvml_released(run_dir: str) -> bool:
    """Return whether the agent must release NVML, so that the module can be unloaded or a GPU reset. The mark is
    RUN_DIR/nvml-release, in the same form."""
    return _marked_by(run_dir, "nvml-release") is not None


def _marked_by(run_dir: str, name: str) -> int | None:
    """Return the process that wrote a mark which has not expired, None where there is no such mark."""
    try:
        with open(os.path.join(run_dir, name), encoding="ascii", errors="replace") as f:
            fields = f.read(256).strip().split("\t")
    except OSError:
        return None
    valid = len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit() and int(fields[2]) >= boottime()
    return int(fields[1]) if valid else None
