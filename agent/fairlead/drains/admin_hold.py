"""What keeps the agent from writing to Slurm: a person's hold (`fairlead hold`), or the file that disables fairlead."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import msgspec

from fairlead.host.bounded_disk import Storage
from fairlead.model.json_text import NOT_JSON

DISABLED = "/etc/fairlead/disabled"


def hold_of(state_dir: str, run_dir: str) -> dict[str, str] | None:
    """Who holds this node by `fairlead hold`; None: nobody. A hold that cannot be read is one. It lies in ``run_dir`` where
    the disk took nothing."""
    return _hold(os.path.join(state_dir, "hold")) or _hold(os.path.join(run_dir, "hold"))


class Hold:
    """``hold_of`` where the disk may not answer: what was known of a hold then stands. ``every_seconds``: asked so often at
    most; who writes to Slurm asks each time."""

    def __init__(self, disk: Storage, every_seconds: float = 0.0) -> None:
        self._disk = disk
        self._known: dict[str, str] | None = None
        self._every_seconds = every_seconds
        self._next = 0.0

    def look(self, state_dir: str, run_dir: str) -> dict[str, str] | None:
        """Who holds this node; None: nobody."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every_seconds
            with suppress(OSError):
                self._known = self._disk.do(lambda: _hold(os.path.join(state_dir, "hold")))
        return self._known or _hold(os.path.join(run_dir, "hold"))


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
    until = data.get("until_unix")
    if isinstance(until, int | float) and time.time() >= until:
        return None
    return {str(k): str(v) for k, v in data.items()} or {"reason": "unreadable"}


def barred(hold: Hold, state_dir: str, run_dir: str, disabled: str) -> str:
    """Why the agent may write nothing to Slurm: a person's hold, or the file ``disabled``; "" when it may."""
    if os.path.lexists(disabled):
        return "fairlead is disabled on this node"
    return "held by an admin" if hold.look(state_dir, run_dir) is not None else ""
