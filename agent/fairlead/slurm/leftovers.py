"""Finds failed epilogs that slurmctld does not show, because the node was already drained.

slurmctld's drain_nodes() skips a drained node (src/slurmctld/node_mgr.c), so slurmctld does not show "Epilog error" anywhere.
slurmd's own log has the error if slurmd logs to a file with LogTimeFormat iso8601_ms (the default), iso8601 or rfc5424
(slurm.conf(5)). In syslog and with other time stamps, nothing is found. If the log was rotated, only later errors are found.
"""

from __future__ import annotations

import calendar
import os
import re
import time

from fairlead.errors import InputMissing
from fairlead.slurm.scontrol import CONF_PATHS
from fairlead.slurm.slurm_conf import parse

TAIL_BYTES = 256 << 10
_LINE = re.compile(
    r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)[^\]]*\] .*\b(epilog (?:failed|error|took too long)|Kill task failed)", re.I
)


class Leftovers:
    """Reads slurmd's log on this node. ``conf``: the path of slurm.conf, or "" to search for it. ``node``: the NodeName, which
    replaces ``%n`` in SlurmdLogFile."""

    def __init__(self, conf: str, node: str) -> None:
        self._conf = conf
        self._node = node

    def since(self, unix_seconds: float) -> str:
        """Return in one line what has failed since ``unix_seconds``, or "" if nothing was found."""
        log = self.log_path()
        return in_log(log, unix_seconds) if log else ""

    def log_path(self) -> str:
        """Return the path of slurmd's log file, or "" if slurmd logs to syslog or slurm.conf cannot be read."""
        conf = self._conf or next((path for path in CONF_PATHS if os.path.exists(path)), "")
        try:
            found = parse(conf, _read).get("SlurmdLogFile") if conf else ""
        except InputMissing:
            return ""
        return found.replace("%n", self._node).replace("%h", os.uname().nodename.split(".")[0])


def in_log(path: str, unix_seconds: float) -> str:
    """Return the first failure of an epilog, or of killing a step, in slurmd's log since ``unix_seconds``. Return "" for none."""
    try:
        with open(path, "rb") as f:
            f.seek(0, os.SEEK_END)
            f.seek(max(0, f.tell() - TAIL_BYTES))
            lines = f.read(TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        match = _LINE.match(line)
        if match and _seconds(match[1]) >= unix_seconds:
            return f"slurmd's log says: {match[2].lower()} at {match[1]}"
    return ""


def _seconds(stamp: str) -> float:
    """Return the Unix time of slurmd's local time stamp."""
    parsed = time.strptime(stamp, "%Y-%m-%dT%H:%M:%S")
    local = time.mktime(parsed)
    return local if local >= 0 else float(calendar.timegm(parsed))


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(4 << 20)
    except OSError:
        return None
