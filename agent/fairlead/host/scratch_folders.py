"""What fairlead-scratch@.service runs: `python -I -m fairlead.host.scratch_folders BASE`. Nothing else of root's is on the disk.

BASE/fairlead                    root's: users can pass, not list, make or rename anything
BASE/fairlead/BOOT               one for each boot: what is in the others is of jobs that have ended
BASE/fairlead/BOOT/UID           the user's alone, made here as soon as a job of that user has a record
BASE/fairlead/BOOT/UID/JOB.START made by the job's task prolog, as the user; START is that of the job's record

So nobody can make a job's folder in advance but its own user. An epilog leaves /run/fairlead/ended/JOB.START, at which this
program removes that folder; what nobody has said anything of stays as long as its user has a process here.

A disk that hangs holds this program and nothing else: nobody waits for it. Its lock stays taken, so there is one such process and
not one more for each job, and jobs get no folder until the disk answers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from fairlead.host import job_records, scratch
from fairlead.host.removal import Removal, TimeUp, file_rights_of

RUN = "/run/fairlead"
SECONDS = 3000.0  # then it goes on with the timer's next start; the unit ends it after an hour
NAMES_AT_ONCE, NAMES_MAX = 1000, 100_000  # in a user's folder: listed at once, looked at in one pass
USER_SECONDS = 300.0  # of it for one user: who goes on making files there must not keep the others' from being removed
LOCK_SECONDS = 3.0
POLL_SECONDS = 0.2
FIRST_POLL_SECONDS = 0.01  # there is seldom much to remove
LINES_MAX = 20
UID_MAX = 0xFFFFFFFE  # the last one means "no user" (setfsuid(2), chown(2))
_FULL = (errno.ENOSPC, errno.EDQUOT)
_JOB = re.compile(r"(\d{1,15})\.\d{1,15}(?:\.\d{1,15})?")
_BOOT = re.compile(r"[0-9a-f]{8}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """The disk cannot be used; what to do about it."""


@contextmanager
def opened(path: str, up: int | None = None) -> Iterator[int]:
    """A folder, of which ``path`` is no link."""
    folder = os.open(path, _FOLDER, dir_fd=up)
    try:
        yield folder
    finally:
        os.close(folder)


def say(text: str) -> None:
    sys.stderr.write(f"fairlead-scratch: {text}\n")
    sys.stderr.flush()


def lies_there(name: str, up: int) -> bool:
    """Asked first: even a mkdir that has nothing to make waits for a disk that takes no writes."""
    try:
        os.stat(name, dir_fd=up, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def make_own(up: int, name: str, shown: str) -> None:
    """A folder of root's that others can only pass. Raises Refused for one that is somebody's."""
    if not lies_there(name, up):
        os.mkdir(name, 0o711, dir_fd=up)
    try:
        with opened(name, up) as folder:
            info = os.fstat(folder)
            if info.st_uid != 0 or info.st_mode & 0o022 or info.st_dev != os.fstat(up).st_dev:
                raise Refused(f"{shown} is not root's, or another file system: remove it, nobody else may have made it")
            if info.st_mode & 0o777 != 0o711:
                os.chmod(folder, 0o711)  # noqa: S103
    except NotADirectoryError:
        raise Refused(f"{shown} is no folder: remove it") from None


def make_for_users(here: int, jobs: job_records.Jobs, told: set[int]) -> None:
    """A folder for each user who has a job here. Where these lie only root can make names. A full disk is said once for each user
    (``told``) and stops nothing: removing what ended jobs left is what makes room."""
    for uid in {job.uid for job in jobs.known if job.id in jobs.running and job.uid is not None}:
        if uid > UID_MAX:
            continue
        try:
            if not lies_there(str(uid), here):
                os.mkdir(str(uid), 0o700, dir_fd=here)
            if os.stat(str(uid), dir_fd=here, follow_symlinks=False).st_uid != uid:
                os.chown(str(uid), uid, -1, dir_fd=here, follow_symlinks=False)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            if uid not in told:
                say(f"no folder for user {uid}: {e.strerror}")
            told.add(uid)


def publish(folder: str) -> None:
    """Tell the agent, whose tables then name the folder to the task prolog."""
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


def names(path: str | int) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def records() -> job_records.Jobs:
    """What the hooks say of jobs. Raises OSError where that cannot be read: then no job is known to have ended."""
    os.listdir(f"{RUN}/jobs")
    return job_records.scan(f"{RUN}/jobs")


def has_process(uid: int) -> bool:
    """Whether anything runs as this user on the node. Where /proc hides processes (hidepid) that is not known: yes."""
    found = names("/proc")
    if "1" not in found:
        return True
    for pid in found:
        try:
            if pid.isdigit() and os.stat(f"/proc/{pid}").st_uid == uid:
                return True
        except OSError:
            continue
    return False


def over(name: str, uid: int, jobs: job_records.Jobs, ended: frozenset[str], busy: Callable[[int], bool] = has_process) -> bool:
    """Whether no job uses the folder ``name`` of this boot and user any more. In doubt a job does."""
    starts = {f"{job.id}.{job.started}": job for job in jobs.known if job.started}
    if name in starts and starts[name].id in jobs.running:
        return False
    if name in ended or name in starts:
        return True
    found = _JOB.fullmatch(name)
    if found and int(found[1]) in jobs.running:
        return True  # an earlier start of a job that was requeued
    return not busy(uid)


class Sweep:
    """One pass over what jobs have left."""

    def __init__(self, boot: str, deadline: float) -> None:
        self._boot = boot
        self._deadline = deadline
        self._lines = 0
        self._busy: dict[int, bool] = {}
        self.removed = 0

    def _has_process(self, uid: int) -> bool:
        """As ``has_process``, asked once for each user: that is a walk through /proc."""
        if uid not in self._busy:
            self._busy[uid] = has_process(uid)
        return self._busy[uid]

    def all(self, top: int) -> None:
        """Raises TimeUp where not all of it could be done."""
        whole = True
        ended = frozenset(names(f"{RUN}/ended"))
        for boot in filter(_BOOT.fullmatch, names(top)):
            with opened(boot, top) as folder:
                users = [n for n in names(folder) if n.isascii() and n.isdigit() and int(n) <= UID_MAX]
                random.shuffle(users)  # who takes all the time of a pass is not the first in the next one too
                for uid in users:
                    whole &= self._user(folder, int(uid), ended if boot == self._boot else None)
                    if boot != self._boot:
                        _rmdir(uid, folder)
            if boot != self._boot:
                _rmdir(boot, top)
        if not whole:
            raise TimeUp
        for name in ended:
            try:
                os.unlink(f"{RUN}/ended/{name}")
            except IsADirectoryError:
                continue  # of an admin's making: the hooks make files

    def _user(self, folder: int, uid: int, ended: frozenset[str] | None) -> bool:
        """ended: those of this boot; None: this is an earlier one's. Returns whether there was time for all of it."""
        until = min(self._deadline, time.monotonic() + USER_SECONDS)
        removal = Removal(os.fstat(folder).st_dev, until)
        inner = None
        try:
            with file_rights_of(uid):
                inner = removal.enter(folder, str(uid))
            if inner is None:
                self._report(uid, "-", removal)
                return True
            return self._entries(uid, inner, ended, removal, until)
        except TimeUp:
            return False
        except OSError as e:  # of this user alone
            self._say(f"the folders of user {uid}: {e.strerror}")
            return True
        finally:
            if inner is not None:
                os.close(inner)
            self.removed += removal.removed

    def _entries(self, uid: int, inner: int, ended: frozenset[str] | None, removal: Removal, until: float) -> bool:
        """The names in a user's folder, which that user may fill: some at a time, so that neither memory nor time is theirs."""
        passed: set[str] = set()
        while True:
            with file_rights_of(uid), os.scandir(inner) as listed:
                found = list(islice((entry.name for entry in listed if entry.name not in passed), NAMES_AT_ONCE))
            if not found:
                return True
            jobs = records() if ended is not None else None  # after the names: a folder is made after its job's record
            gone = found if ended is None or jobs is None else [n for n in found if over(n, uid, jobs, ended, self._has_process)]
            with file_rights_of(uid):
                for name in gone:
                    removal.stays.clear()
                    removal.tree(inner, name)
                    self._report(uid, name, removal)
            passed.update(found)
            if len(passed) > NAMES_MAX or time.monotonic() > until:
                return False

    def _report(self, uid: int, name: str, removal: Removal) -> None:
        """What stays. The names are the user's text, but for a job's folder."""
        if removal.stays:
            which = f"job folder {name}" if _JOB.fullmatch(name) else "a folder"
            self._say(f"{which} of user {uid} could not be removed whole: {'; '.join(sorted(removal.stays))}")

    def _say(self, text: str) -> None:
        if self._lines < LINES_MAX:
            self._lines += 1
            say(text)


def _rmdir(name: str, up: int) -> None:
    try:
        os.rmdir(name, dir_fd=up)
    except OSError:
        pass  # what stays in there has been told


def sweep_in_child(top: int, boot: str, deadline: float) -> int:
    """Start it; the process's number. This one goes on making folders for users meanwhile."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.nice(19)
        sweep = Sweep(boot, deadline)
        sweep.all(top)
        if sweep.removed:
            say(f"removed {sweep.removed} files and folders of jobs that have ended")
        status = 0
    except TimeUp:
        say("removing what ended jobs left takes too long: it goes on later")
    except OSError as e:
        say(f"{e.filename or 'the disk'}: {e.strerror}")
    finally:
        os._exit(status)


def make_room(top: int, boot: str, deadline: float) -> None:
    """Where the disk is so full that this boot's folder cannot be made: remove what earlier boots left, and wait for that."""
    try:
        os.mkdir(boot, 0o711, dir_fd=top)
    except OSError as e:
        if e.errno not in _FULL:
            raise
        os.waitpid(sweep_in_child(top, boot, deadline), 0)


def work(base: str, boot: str, deadline: float) -> None:
    """Raises Refused, OSError."""
    if why := scratch.fault(base):
        raise Refused(why)
    with opened(base) as up:
        make_own(up, scratch.NAME, f"{base}/{scratch.NAME}")
        with opened(scratch.NAME, up) as top:
            if not lies_there(boot, top):
                make_room(top, boot, deadline)
            make_own(top, boot, f"{base}/{scratch.NAME}/{boot}")
            with opened(boot, top) as here:
                child, status, pause, told = 0, 0, FIRST_POLL_SECONDS, set[int]()
                while status == 0 and time.monotonic() < deadline:
                    make_for_users(here, records(), told)
                    publish(f"{base}/{scratch.NAME}/{boot}")
                    child = child or sweep_in_child(top, boot, deadline)
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if not ended:
                        time.sleep(pause)
                        pause = min(2 * pause, POLL_SECONDS)
                    elif names(f"{RUN}/ended"):
                        child = 0
                    else:
                        make_for_users(here, records(), told)
                        return


def take_lock(base: str) -> None:
    """Until this process and its child have ended. Raises Refused where an earlier one does not end."""
    lock = os.open(f"{RUN}/.scratch{base.replace('/', '-')}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise Refused(f"{base}: the program started before this one does not end: does the disk hang?") from None
            time.sleep(POLL_SECONDS)
        else:
            return


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
