"""Decides whether the agent may write to Slurm. The agent may not during an admin hold (`fairlead hold`), or while fairlead is
disabled on the node."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import msgspec

from fairlead.host.boot_clock import boot_id, boottime
from fairlead.host.bounded_disk import Storage
from fairlead.host.root import Root
from fairlead.model.json_text import NOT_JSON

#: What `fairlead hold --until` writes for the clock of this boot, beside the time of day.
OF_BOOT = ("until_boot_seconds", "boot_id")
SET_BACK_SECONDS = 86400.0
DISABLED = "/etc/fairlead/disabled"


def read_hold(state_dir: str, run_dir: str) -> dict[str, str] | None:
    """Return the content of this node's admin hold (`fairlead hold`), or None if there is none. A file that cannot be read counts
    as a hold. `fairlead hold` writes the file into ``run_dir`` if the disk of ``state_dir`` cannot be written."""
    return _hold(os.path.join(state_dir, "hold")) or _hold(os.path.join(run_dir, "hold"))


class AdminHold:
    """Reads the admin hold through a disk that may not answer. While the disk is silent, the last known hold is still valid.

    ``every_seconds``: the file is read again after this time. With 0 it is read at each call, and every writer to Slurm uses 0.
    """

    def __init__(self, disk: Storage, every_seconds: float = 0.0) -> None:
        self._disk = disk
        self._known: dict[str, str] | None = None
        self._every_seconds = every_seconds
        self._next = 0.0

    def read(self, state_dir: str, run_dir: str) -> dict[str, str] | None:
        """Return the content of this node's admin hold, or None when there is none."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every_seconds
            with suppress(OSError):
                self._disk.do(lambda: self.read_now(state_dir))
        return self._known or _hold(os.path.join(run_dir, "hold"))

    def read_now(self, state_dir: str) -> None:
        """Read the admin hold now, where the disk is accessed anyway. This waits for the disk."""
        self._known = _hold(os.path.join(state_dir, "hold"))
        self._next = time.monotonic() + self._every_seconds


def _hold(path: str) -> dict[str, str] | None:
    try:
        with open(path, "rb") as f:
            data = msgspec.json.decode(f.read(65536))
    except FileNotFoundError:
        return None
    except (*NOT_JSON, OSError):
        return {"reason": "unreadable"}
    if not isinstance(data, dict):
        return {"reason": "unreadable"}
    if _ended(data):
        return None
    return {str(k): str(v) for k, v in data.items() if k not in OF_BOOT} or {"reason": "unreadable"}


def _ended(data: dict[str, object]) -> bool:
    """Say whether the hold has ended by itself. After a reboot, only the time of day decides.

    In the boot in which the hold was written, it ends when its span has passed and its time of day has come. So no step of the
    clock ends it early. If the clock was set back by more than ``SET_BACK_SECONDS``, the span alone decides.
    """
    until, until_boot = data.get("until_unix"), data.get("until_boot_seconds")
    if not isinstance(until, int | float):
        return False
    left = until - time.time()
    if isinstance(until_boot, int | float) and data.get("boot_id") == boot_id(Root("/")) != "":
        return boottime() >= until_boot and (left <= 0 or left > SET_BACK_SECONDS)
    return left <= 0


def barred(hold: AdminHold, state_dir: str, run_dir: str, disabled: str) -> str:
    """Return why the agent may not write to Slurm, or "" if it may: there is an admin hold, or the file ``disabled`` exists."""
    if os.path.lexists(disabled):
        return "fairlead is disabled on this node"
    return "held by an admin" if hold.read(state_dir, run_dir) is not None else ""
