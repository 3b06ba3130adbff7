"""Makes users' folders on a local disk, and removes the folders of jobs that have ended. fairlead-scratch@.service runs this
program as `python -I -m fairlead.host.scratch_folders BASE`.

fairlead makes only these folders on the disk:

- BASE/fairlead belongs to root. Users can pass through it, but can list, make or rename nothing in it.
- BASE/fairlead/BOOT is made for each boot. The folders of other boots contain only files of jobs that have ended.
- BASE/fairlead/BOOT/UID belongs to the user alone. This program makes it as soon as a job of that user has a job record.
- BASE/fairlead/BOOT/UID/JOB.START is made by the job's task prolog, as the user. START is a field of the job record.

So only the user of a job can make its folder in advance. The epilog makes the file /run/fairlead/ended/JOB.START, and this
program then removes the job's folder. Without such a file, the job's folder remains while its user has a process on the node.

A disk that hangs blocks only this program, because nothing waits for it. The blocked process keeps the lock, so that only one
process of this program can hang. Jobs get no folder until the disk answers.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from fairlead.host import job_records, scratch
from fairlead.host.file_lock import locked_within
from fairlead.host.removal import TimeUp
from fairlead.host.scratch_sweep import RUN, UID_MAX, ScratchDisk, Sweep, ended_jobs, opened, records, say

SECONDS = 3000.0  # then the program ends, and the next start by the timer continues; systemd would end it after an hour
LOCK_SECONDS = 3.0
POLL_SECONDS = 0.2
FIRST_POLL_SECONDS = 0.01  # short, because there is seldom much to remove
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: These errors may concern one user's folder only: no room for it, made immutable by an admin, an id that the disk cannot store.
_ONE_USERS = (*_FULL, errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOVERFLOW, errno.EMLINK)


class Refused(Exception):
    """The disk cannot be used. The message gives the reason and, where possible, what to do."""


def lies_there(name: str, up: int) -> bool:
    """Return whether ``name`` exists in the folder ``up``. Call this before mkdir(2), because mkdir waits for a disk that
    accepts no writes, even if the folder exists already."""
    try:
        os.stat(name, dir_fd=up, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def make_own(up: int, name: str, shown: str) -> None:
    """Make a folder of root that others can only pass through. Raises Refused if it exists and does not belong to root alone."""
    if not lies_there(name, up):
        os.mkdir(name, 0o711, dir_fd=up)
    try:
        with opened(name, up) as folder:
            info = os.fstat(folder)
            if info.st_uid != 0 or info.st_mode & 0o022 or info.st_dev != os.fstat(up).st_dev:
                raise Refused(f"{shown} does not belong to root alone, or is another file system: remove it")
            if info.st_mode & 0o777 != 0o711:
                os.chmod(folder, 0o711)  # noqa: S103
    except NotADirectoryError:
        raise Refused(f"{shown} is no folder: remove it") from None


def make_for_users(here: int, jobs: job_records.Jobs, already_said: set[int]) -> None:
    """Make a folder for each user who has a job here. Only root can create entries in the folder ``here``.

    A user whose folder cannot be made is reported once (``already_said``). The program goes on, because it makes room when it
    removes the folders of ended jobs.
    """
    for uid in {job.uid for job in jobs.known if job.id in jobs.running and job.uid is not None}:
        if uid > UID_MAX:
            continue
        try:
            if not lies_there(str(uid), here):
                os.mkdir(str(uid), 0o700, dir_fd=here)
            if os.stat(str(uid), dir_fd=here, follow_symlinks=False).st_uid != uid:
                os.chown(str(uid), uid, -1, dir_fd=here, follow_symlinks=False)
        except OSError as e:
            if e.errno not in _ONE_USERS:
                raise
            if uid not in already_said:
                say(f"no folder for user {uid}: {e.strerror}")
            already_said.add(uid)


def publish(folder: str) -> None:
    """Publish the folder in /run/fairlead/scratch. The agent reads the file and passes the folder to the task prolog."""
    text = f"1\t{folder}\t.\n"
    try:
        with open(f"{RUN}/scratch", encoding="ascii") as f:
            if f.read(4096) == text:
                return
    except (OSError, UnicodeDecodeError):
        pass
    with open(f"{RUN}/.scratch.new", "w", encoding="ascii") as f:
        f.write(text)
    os.rename(f"{RUN}/.scratch.new", f"{RUN}/scratch")


def sweep_in_child(disk: ScratchDisk, top: int, deadline: float) -> int:
    """Start a sweep in a child process and return its process id. Meanwhile this process goes on making folders for users."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.nice(19)
        sweep = Sweep(disk, deadline)
        try:
            sweep.all(top)
            status = 0
        except TimeUp:
            pass  # the next start by the timer continues
        if sweep.removed:
            say(f"removed {sweep.removed} files and folders of jobs that have ended")
    except OSError as e:
        say(f"{e.filename or 'the disk'}: {e.strerror}")
    finally:
        os._exit(status)


def make_room(disk: ScratchDisk, top: int, deadline: float) -> None:
    """Make this boot's folder. If the disk is too full, remove the folders of earlier boots, and wait until they are removed."""
    try:
        os.mkdir(disk.boot, 0o711, dir_fd=top)
    except OSError as e:
        if e.errno not in _FULL:
            raise
        os.waitpid(sweep_in_child(disk, top, deadline), 0)


def work(base: str, boot: str, deadline: float) -> None:
    """Check the disk, make this boot's folder and serve it. Raises Refused, OSError."""
    if why := scratch.fault(base):
        raise Refused(why)
    disk = ScratchDisk(base, boot)
    with opened(base) as up:
        make_own(up, scratch.NAME, f"{base}/{scratch.NAME}")
        with opened(scratch.NAME, up) as top:
            if not lies_there(boot, top):
                make_room(disk, top, deadline)
            make_own(top, boot, f"{base}/{scratch.NAME}/{boot}")
            with opened(boot, top) as here:
                serve(disk, top, here, deadline)


def serve(disk: ScratchDisk, top: int, here: int, deadline: float) -> None:
    """Make folders for users, and remove the folders of ended jobs, until no further job has ended. ``here``: this boot's
    folder."""
    already_said: set[int] = set()
    status, pause = 0, FIRST_POLL_SECONDS
    while status == 0 and time.monotonic() < deadline:
        make_for_users(here, records(), already_said)
        publish(f"{disk.base}/{scratch.NAME}/{disk.boot}")
        known = ended_jobs()
        child, finished = sweep_in_child(disk, top, deadline), 0
        while not finished and time.monotonic() < deadline:
            finished, status = os.waitpid(child, os.WNOHANG)
            if not finished:
                time.sleep(pause)
                pause = min(2 * pause, POLL_SECONDS)
                make_for_users(here, records(), already_said)
        if status == 0 and not ended_jobs() - known:
            make_for_users(here, records(), already_said)
            return


def take_lock(base: str) -> None:
    """Take the lock of this disk until this process and its child have ended. Raises Refused if an earlier process has it."""
    lock = os.open(f"{RUN}/.scratch{base.replace('/', '-')}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not locked_within(lock, LOCK_SECONDS, poll_seconds=POLL_SECONDS):
        raise Refused(f"{base}: the program started before this one does not end: does the disk hang?")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].startswith("/"):
        say("usage: scratch_folders BASE")
        return 64
    base = arguments[0]
    deadline = time.monotonic() + SECONDS
    os.umask(0o022)
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            boot = f.read(8)
        take_lock(base)
        os.makedirs(f"{RUN}/ended", mode=0o700, exist_ok=True)
        work(base, boot, deadline)
    except (Refused, OSError) as e:
        say(str(e) if isinstance(e, Refused) else f"{e.filename or base}: {e.strerror}")
        if scratch.published(RUN, base):
            os.unlink(f"{RUN}/scratch")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
