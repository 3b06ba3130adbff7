"""Compares the machine before and after the self-test: fairlead's files, kernel values and configuration files, mounts.

A running agent writes its own files all the time. They are not compared then.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fairlead.host.root import Root
from fairlead.selftest.private_mounts import OURS

_FOLDERS = (*OURS, "/opt/fairlead", "/etc/slurm/prolog.d", "/etc/slurm/epilog.d", "/etc/slurm/fairlead")
_FILES = ("/etc/nccl.conf",)
_AGENTS = ("/run/fairlead", "/var/lib/fairlead")
_FILES_MAX = 20_000
_DEPTH_MAX = 3


class Stamps(NamedTuple):
    """Holds what identifies the state of each file (inode, size, mode, times), and the mount points."""

    files: Mapping[str, Sequence[int]]
    mounts: Collection[str]


def stamps(root: Root) -> Stamps:
    """Return the state of fairlead's files and the mount points now."""
    folders = [f for f in _FOLDERS if not (f in _AGENTS and agent_runs(root))]
    found: dict[str, Sequence[int]] = {}
    for path in (*_FILES, *folders, *(entry for folder in folders for entry in _below(folder))):
        if len(found) < _FILES_MAX and (stamp := _stamp(path)) is not None:
            found[path] = stamp
    text = root.read_text("/proc/self/mountinfo")
    points = (line.split(" ")[4] for line in text.splitlines() if line.count(" ") > 5) if isinstance(text, str) else ()
    return Stamps(found, sorted({*points}))


def agent_runs(root: Root) -> bool:
    """Return whether the process that the agent's lock file names lives."""
    text = root.read_text("/run/fairlead/agent.lock")
    number = text.strip() if isinstance(text, str) else ""
    return number.isdecimal() and root.exists(f"/proc/{number}")


def changes(before: Stamps, after: Stamps) -> list[str]:
    """Return what differs, each as ``PATH was changed``, ``PATH is new`` or ``PATH is gone``."""
    found = []
    for path in sorted({*before.files, *after.files}):
        if before.files.get(path) != after.files.get(path):
            found.append(_change(path, path in before.files, path in after.files))
    for path in sorted({*before.mounts} ^ {*after.mounts}):
        found.append(_change(f"the mount {path}", path in before.mounts, path in after.mounts))
    return found


def value_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return which kernel values and configuration files have another content."""
    return [_change(path, True, True) for path in sorted({*before} & {*after}) if before[path] != after[path]]


def _change(what: str, was: bool, there: bool) -> str:
    return f"{what} {'was changed' if was and there else 'is gone' if was else 'is new'}"


def _below(folder: str, depth: int = 0) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        yield entry.path
        if depth < _DEPTH_MAX and entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, depth + 1)


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mode, info.st_uid, info.st_mtime_ns, info.st_ctime_ns
