"""Runs the programs that install packages, and waits for their locks. apt's and dnf's transactions both use it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fairlead.errors import HostError, next_step
from fairlead.host.file_lock import locked_within
from fairlead.host.root import Root

# dkms builds a module for each kernel, which takes many minutes on a slow machine. Less than apply_steps.PACKAGES_SECONDS.
TRANSACTION_SECONDS = 3300.0
SIMULATE_SECONDS = 120.0
LOCK_SECONDS = 120.0
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",  # needrestart would restart slurmd or, with other options, ask a question
    "NEEDRESTART_MODE": "l",  # Ubuntu's runs in more places; it then only lists what should be restarted
    "UCF_FORCE_CONFFOLD": "1",
}
#: Folders that packages and their scripts write to. Each of them may be a file system of its own.
_WRITTEN = ("/usr", "/var/lib", "/var/cache", "/boot", "/etc", "/tmp")
#: Runs a command in an image. dkms needs /proc there, so it is mounted for this command alone where that is permitted.
_IN_IMAGE = """\
if unshare --mount --propagation private true 2>/dev/null; then
  exec unshare --mount --propagation private sh -c 'mount -t proc proc "$0/proc" 2>/dev/null; exec chroot "$0" "$@"' "$0" "$@"
fi
exec chroot "$0" "$@"
"""


class LaterError(HostError):
    """Another program has locked the package database, so the change must wait for another run."""


def wait_for_lock(path: str, whose: str) -> None:
    """Wait until no other program has the lock file ``path`` (fcntl, as dpkg and rpm lock it).

    whose: the program's name for the message ("dpkg"). Raises LaterError after ``LOCK_SECONDS``, and HostError for a file that
    cannot be opened or locked.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
    try:
        if not locked_within(fd, LOCK_SECONDS, take=fcntl.lockf, poll_seconds=0.2):
            words = f"another program has held {whose}'s lock for more than {LOCK_SECONDS:.0f} s"
            raise LaterError(words, hint=f"`fuser -v {path}` names it; then run it again")
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None
    finally:
        os.close(fd)


def tool(root: Root, command: Sequence[str], *, check: bool = True, seconds: float = SIMULATE_SECONDS) -> str:
    """Run a command there, and return what it prints. Raises HostError as ``run``, and with ``check`` also for an exit code."""
    code, out = run(root, command, seconds)
    if code and check:
        raise HostError(f"{' '.join(command[:2])}: {(out.strip().splitlines() or [f'exit code {code}'])[-1]}")
    return out


def run(root: Root, command: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run a command there (in an image by chroot), and return its exit code and what it prints on both streams.

    The command has a session of its own, because what stops fairlead is not to stop a package manager half-way. Raises
    HostError when the command is late or missing; then all that it started has ended.
    """
    words = list(command) if root.is_live else ["sh", "-c", _IN_IMAGE, root.path, *command]
    try:
        with subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        ) as process:
            with _ended(process):
                out, _ = process.communicate(timeout=seconds)
            return process.returncode, out.decode("utf-8", "replace")
    except FileNotFoundError:
        raise HostError(f"{command[0]}: not installed") from None
    except subprocess.TimeoutExpired:
        words_ = f"{' '.join(command[:2])}: no end within {seconds:.0f} s"
        raise HostError(words_, hint="run it again: what was begun is then completed") from None


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def no_room(root: Root, said: str) -> HostError:
    """Return the error for a transaction that failed because a file system is full.

    said: the package manager's own words. If they do not name the file system, the error names the one with the least free space.
    """
    words = f"no room for the packages on this node: {said}"
    if "filesystem" in said:
        return HostError(words, hint="make room there, then run it again")
    free, path = min((shutil.disk_usage(root.join(path)).free, path) for path in _WRITTEN if root.exists(path))
    return HostError(f"{words} ({path} has {free >> 10} KiB free)", hint=f"make room in {path}, then run it again")


def refuse_undeclared(program: str, more: Sequence[str]) -> None:
    """Raise HostError if ``program`` would also do these steps (such as "remove NAME VERSION"), which are not declared."""
    if not more:
        return
    words = f"{program} would also {'; '.join(more[:6])}" + (f" and {len(more) - 6} more" if len(more) > 6 else "")
    hint = "add these packages to settings.driver.install, or remove them from this node"
    raise HostError(f"{words}: not in the declared set", hint=hint)
