"""Prevents a second agent on the node: the agent locks the file RUN_DIR/agent.lock as long as it runs.

Two agents would write the verdict in turns, and each would treat the other agent's drain as a drain by somebody else. Only root
can open the file (mode 0600), because every process that can open a file can also lock it (flock(2)). If an agent is killed
while one of its threads hangs on a dead disk, its lock stays until that disk answers. Such an agent does not judge any more, so
its lock file is replaced.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fairlead.errors import AgentRuns
from fairlead.host import log

NAME = "agent.lock"
_SIGKILL = 1 << 8
_WRITES_SECONDS = 0.1  # an agent writes its process id within this time after taking the lock


@contextmanager
def alone(run_dir: str) -> Iterator[None]:
    """Lock the file while the ``with`` block runs. Raises AgentRuns if another agent runs."""
    lock = claim(run_dir)
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def claim(run_dir: str) -> int:
    """Lock the file and return its descriptor. If the folder cannot be written, return -1 and lock nothing. Raises AgentRuns if
    another agent runs."""
    path = os.path.join(run_dir, NAME)
    for _ in range(3):
        try:
            os.makedirs(run_dir, mode=0o755, exist_ok=True)
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as e:
            log.line(log.WARNING, "no lock against a second agent", error=f"{path}: {e.strerror}")
            return -1
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = _holder(lock)
            time.sleep(_WRITES_SECONDS)
            ending = other == _holder(lock) and _is_ending(other)
            os.close(lock)
            if not ending:
                hint = "`systemctl stop fairlead-agent` ends the node's own; a second one needs a document with another run_dir"
                raise AgentRuns(f"an agent runs on this node already (process {other}, {path})", hint=hint) from None
            os.unlink(path)
            continue
        if not _is_at(lock, path):  # another agent has replaced the file meanwhile
            os.close(lock)
            continue
        # ``lock`` is open for reading only, because /run cannot be made read-only while a file there is open for writing.
        with suppress(OSError), open(path, "w", encoding="ascii") as note:
            note.write(f"{os.getpid()}\n")
        return lock
    raise AgentRuns(f"several agents start on this node at once ({path})", hint="see which of them has to run")


def _is_at(lock: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path, follow_symlinks=False))
    except OSError:
        return False


def _holder(lock: int) -> int:
    text = os.pread(lock, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _is_ending(pid: int) -> bool:
    """Return whether the process was killed and has not ended: its main thread has ended, or a SIGKILL is pending."""
    try:
        with open(f"/proc/{pid}/status", "rb") as f:
            lines = dict(line.partition(b":")[::2] for line in f.read(8192).splitlines())
        pending = int(lines.get(b"SigPnd", b"0"), 16) | int(lines.get(b"ShdPnd", b"0"), 16)
    except (OSError, ValueError):
        return False
    return lines.get(b"State", b"").split()[:1] in ([b"Z"], [b"X"]) or bool(pending & _SIGKILL)
