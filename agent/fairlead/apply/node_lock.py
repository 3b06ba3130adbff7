"""Lets only one run of apply at a time change a node, and writes a file that tells the agent that apply runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.errors import HostError, next_step
from fairlead.host import change as changing
from fairlead.host.boot_clock import boottime
from fairlead.host.file_lock import locked_within
from fairlead.host.root import Root

APPLYING = "applying"  # a file in the run directory: while it is there and has not expired, drift does not drain the node
APPLYING_SECONDS = 600
LOCK = "apply.lock"  # a file in the run directory
LOCK_SECONDS = 90.0


@contextmanager
def applying(root: Root, run_dir: str, seconds: int = APPLYING_SECONDS) -> Iterator[None]:
    """Lock RUN_DIR/apply.lock, and keep the file RUN_DIR/applying, while the ``with`` block runs.

    RUN_DIR/applying contains ``1 PID EXPIRES`` (EXPIRES in CLOCK_BOOTTIME seconds), so that the file of a killed run expires.
    Raises HostError if the file cannot be written, or if another run does not end.
    """
    path = root.join(f"{run_dir}/{APPLYING}")
    try:
        lock = _locked(root.join(f"{run_dir}/{LOCK}"))
        try:
            expires = int(boottime()) + seconds
            changing.write_file(path, f"1\t{os.getpid()}\t{expires}\n".encode())
        except OSError:
            os.close(lock)
            raise
    except OSError as e:
        raise HostError(f"{e.filename or path}: {e.strerror}", hint=next_step(e) or "is this run by root?") from None
    try:
        yield
    finally:
        try:
            os.unlink(path)
        except OSError:
            pass
        os.close(lock)


def _locked(path: str) -> int:
    """Lock a file, so that a run of the boot unit and a run of `fairlead provision` do not write the same files at once.

    Return the descriptor of the locked file. The kernel unlocks the file when the process ends. Raises OSError, and HostError if
    another run does not end within LOCK_SECONDS.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if locked_within(lock, LOCK_SECONDS):
        return lock
    os.close(lock)
    words = f"another fairlead apply runs here for more than {LOCK_SECONDS:.0f} s"
    raise HostError(words, hint="look at it, then try again")
