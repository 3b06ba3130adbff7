"""The prolog's and epilog's records in /run/fairlead/jobs: which jobs run here, which have ended, which were refused.

A record is one TAB line: ``1 STATE UID GPUS START END FLAGS .``; without the last field it is still being written.
"""

from __future__ import annotations

import os

from msgspec import Struct

RECORD_MAX_BYTES = 1024


class Jobs(Struct, frozen=True):
    """Job ids by what their record says."""

    running: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    refused: frozenset[int] = frozenset()


def scan(folder: str) -> Jobs:
    """All complete records. A folder that is not there or cannot be read holds none."""
    found: dict[str, set[int]] = {"running": set(), "ended": set(), "refused": set()}
    try:
        names = os.listdir(folder)
    except OSError:
        return Jobs()
    for name in names:
        if name.isascii() and name.isdigit():
            state = _state(os.path.join(folder, name))
            if state in found:
                found[state].add(int(name))
    return Jobs(frozenset(found["running"]), frozenset(found["ended"]), frozenset(found["refused"]))


def _state(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fields = os.read(fd, RECORD_MAX_BYTES).decode("ascii", "replace").removesuffix("\n").split("\t")
    except OSError:
        return ""
    finally:
        os.close(fd)
    return fields[1] if len(fields) == 8 and fields[0] == "1" and fields[7] == "." else ""


def forget(folder: str, jobs: frozenset[int]) -> None:
    """Remove the records of jobs that are over."""
    for job in jobs:
        try:
            os.unlink(os.path.join(folder, str(job)))
        except OSError:
            pass
