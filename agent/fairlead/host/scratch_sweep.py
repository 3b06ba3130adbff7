"""Makes one pass over the folders of jobs on a local disk (``scratch_folders``), and removes folders that no job uses any more.

Meanwhile a user may fill his own folder with an endless number of files, or with files that cannot be removed. So a pass spends
only a limited time on each user. The next pass continues, and handles the users in another order.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from fairlead.host import job_records, scratch
from fairlead.host.removal import Removal, TimeUp, file_rights_of
from fairlead.host.subuids import SubUids

RUN = "/run/fairlead"
#: At most NAMES_AT_ONCE names in a user's folder are listed at once, and at most NAMES_MAX are read in one pass. If NAMES_MAX
#: names remain, the pass takes 0.12 s of CPU time (measured; a million names take 1.2 s). Usually a user's folder has some ten
#: names, one for each job.
NAMES_AT_ONCE, NAMES_MAX = 1000, 100_000
#: The longest time for one user in a pass. A user who goes on making files must not delay the removal of other users' files.
#: Ten such users fit in a pass (``scratch_folders.SECONDS``). The removal was measured on two shared cores under load 8 to 10, on
#: ext4 on a slow virtual disk, first from the cache and then freshly mounted: 1,000 files 0.07 and 0.05 s; 10,000 files 0.5 and
#: 0.5 s; 100,000 files 4 and 15 s; 100,000 folders 9 and 92 s; a tree of 3,000 levels 0.4 and 2.4 s. On tmpfs the same five took
#: 0.02, 0.08, 1.1, 6.4 and 0.5 s. So this time is enough for two million files or 300,000 folders. The next passes remove the
#: rest.
USER_SECONDS = 300.0
LINES_MAX, LINES_OF_A_USER_MAX = 20, 5
UID_MAX = 0xFFFFFFFE  # the highest id, 0xFFFFFFFF, means "no user" (setfsuid(2), chown(2))
_JOB = re.compile(r"(\d{1,15})\.\d{1,15}(?:\.\d{1,15})?")
_BOOT = re.compile(r"[0-9a-f]{8}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ScratchDisk(NamedTuple):
    """Names the declared folder on the disk (``base``), and the folder of this boot below BASE/fairlead (``boot``)."""

    base: str
    boot: str


@contextmanager
def opened(path: str, up: int | None = None) -> Iterator[int]:
    """Open a folder. A ``path`` that is a link raises OSError."""
    folder = os.open(path, _FOLDER, dir_fd=up)
    try:
        yield folder
    finally:
        os.close(folder)


def say(text: str) -> None:
    sys.stderr.write(f"fairlead-scratch: {text}\n")
    sys.stderr.flush()


def names(path: str | int) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def ended_jobs() -> frozenset[str]:
    """Return JOB.START of the jobs that epilogs have reported as ended."""
    return frozenset(filter(_JOB.fullmatch, names(f"{RUN}/ended")))


def records() -> job_records.Jobs:
    """Return the job records. Raises OSError if they cannot be read, because then it is not known which jobs have ended."""
    os.listdir(f"{RUN}/jobs")
    return job_records.scan(f"{RUN}/jobs")


def has_process(is_theirs: Callable[[int], bool]) -> bool:
    """Return whether a process runs on the node with a user id that ``is_theirs`` accepts. Also return True if /proc hides
    processes (hidepid), because there may be such a process."""
    found = names("/proc")
    if "1" not in found:
        return True
    for pid in found:
        try:
            if pid.isdigit() and is_theirs(os.stat(f"/proc/{pid}").st_uid):
                return True
        except OSError:
            continue
    return False


def over(found: list[str], jobs: job_records.Jobs, ended: frozenset[str], busy: Callable[[], bool]) -> list[str]:
    """Return those names in ``found``, the folders of one user in this boot, that no job uses any more.

    ``ended``: JOB.START of the jobs that have ended. ``busy``: returns whether the user has a process here. A folder without a
    job record is unused if the user has no process, or if the job's epilog has reported its end.
    """
    starts = {f"{job.id}.{job.started}": job.id in jobs.running for job in jobs.known if job.started}
    unused_names = []
    for name in found:
        job = _JOB.fullmatch(name)
        if name in starts or name in ended:
            unused = not starts.get(name, False)
        elif job and int(job[1]) in jobs.running:
            unused = True  # an earlier start of a job that was requeued
        else:
            unused = not busy()
        unused_names += [name] if unused else []
    return unused_names


class SaidOnce:
    """Remembers the messages about a disk, so that a message is not written again in every pass. There are several passes per
    job."""

    def __init__(self, base: str) -> None:
        self._path = f"{RUN}/.scratch{base.replace('/', '-')}.told"
        self._before: frozenset[str] = frozenset()
        try:
            with open(self._path, encoding="ascii") as f:
                self._before = frozenset(f.read(1 << 16).splitlines())
        except (OSError, UnicodeDecodeError):
            pass
        self._now: dict[str, int] = {}

    def say(self, uid: int, text: str) -> None:
        """Write a message about a user. The number of messages is limited in total and for each user, so that messages about
        one user do not hide the messages about another."""
        of_a_user = sum(each == uid for each in self._now.values())
        if text in self._now or of_a_user >= LINES_OF_A_USER_MAX or len(self._now) >= LINES_MAX:
            return
        self._now[text] = uid
        if text not in self._before:
            say(text)

    def keep(self) -> None:
        """Save the messages of this pass for the next pass. A message that this pass did not have is forgotten, so that a later
        pass can write it again."""
        if frozenset(self._now) == self._before:
            return
        try:
            with open(f"{self._path}.new", "w", encoding="ascii", errors="replace") as f:
                f.writelines(f"{text}\n" for text in self._now)
            os.rename(f"{self._path}.new", self._path)
        except OSError:
            pass  # /run is full, so the next pass writes the messages again


class Sweep:
    """Makes one pass over the folders of jobs."""

    def __init__(self, disk: ScratchDisk, deadline: float) -> None:
        self._disk = disk
        self._deadline = deadline
        self._said_once = SaidOnce(disk.base)
        self._subuids: SubUids | None = None  # read once, when the first folder with another user's id is found
        self._busy: dict[int, bool] = {}
        self._unfinished: set[int] = set()
        self.removed = 0

    def all(self, top: int) -> None:
        """Remove the folders of ended jobs. Raises TimeUp if the time was too short for all of them."""
        all_ended = names(f"{RUN}/ended")
        ended = frozenset(filter(_JOB.fullmatch, all_ended))
        for boot in filter(_BOOT.fullmatch, names(top)):
            try:
                with opened(boot, top) as folder:
                    self._users(folder, boot, ended if boot == self._disk.boot else None)
            except NotADirectoryError:
                continue
            if boot != self._disk.boot:
                _rmdir(boot, top)
        self._said_once.keep()
        whose = {f"{job.id}.{job.started}": job.uid for job in records().known}
        for name in all_ended:
            uid = whose.get(name)  # None: the agent has removed the record, so any user may have had the job
            if not self._unfinished or (uid is not None and uid not in self._unfinished):
                _unlink(f"{RUN}/ended/{name}")
        if self._unfinished:
            raise TimeUp

    def _users(self, folder: int, boot: str, ended: frozenset[str] | None) -> None:
        """Remove the folders of ended jobs in one boot's folder. ``ended``: JOB.START of the jobs that have ended in this boot,
        or None for the folder of an earlier boot."""
        users = [int(n) for n in names(folder) if n.isascii() and n.isdigit() and int(n) <= UID_MAX]
        random.shuffle(users)  # a user who takes all the time of a pass shall not be first in the next one too
        for uid in users:
            if not self._user(folder, uid, f"{self._disk.base}/{scratch.NAME}/{boot}/{uid}", ended):
                self._unfinished.add(uid)
                self._said_once.say(uid, f"what ended jobs of user {uid} left takes too long: it goes on later")
            if ended is None:
                _rmdir(str(uid), folder)

    def _holds(self, uid: int, other: int) -> bool:
        if self._subuids is None:
            self._subuids = SubUids()
        return self._subuids.assigned_to(other, by=uid)

    def _has_process(self, uid: int) -> bool:
        """Return whether the user has a process here. The answer is cached, because it needs a search of /proc."""
        if uid not in self._busy:
            self._busy[uid] = has_process(lambda other: other == uid or self._holds(uid, other))
        return self._busy[uid]

    def _user(self, folder: int, uid: int, shown: str, ended: frozenset[str] | None) -> bool:
        """Remove the folders of one user's ended jobs. Return False if the time was too short for all of them."""
        until = min(self._deadline, time.monotonic() + USER_SECONDS)
        removal = Removal(uid, os.fstat(folder).st_dev, until, lambda other: self._holds(uid, other))
        inner = -1
        try:
            with file_rights_of(uid):
                found = removal.enter(folder, str(uid))
            if found is None:
                self._report("-", shown, removal)
                return True
            inner = found[0]
            return self._entries(inner, shown, ended, removal)
        except TimeUp:
            return False
        except OSError as e:  # the error concerns this user only
            self._said_once.say(uid, f"the folders of user {uid}: {e.strerror}")
            return True
        finally:
            if inner >= 0:
                os.close(inner)
            self.removed += removal.removed

    def _entries(self, inner: int, shown: str, ended: frozenset[str] | None, removal: Removal) -> bool:
        """Remove the names in a user's folder that no job uses. The user may fill the folder. So a limited number of
        names is read at a time, and memory and time remain limited."""
        looked_at = 0
        with os.scandir(inner) as listed:
            while found := [entry.name for entry in islice(listed, NAMES_AT_ONCE)]:
                looked_at += len(found)
                if ended is not None:  # the records are read after the names, because a folder is made after its job's record
                    found = over(found, records(), ended, lambda: self._has_process(removal.uid))
                with file_rights_of(removal.uid):
                    for name in found:
                        removal.tree(inner, name)
                        self._report(name, shown, removal)
                if looked_at >= NAMES_MAX or time.monotonic() > removal.deadline:
                    return False
        return True

    def _report(self, name: str, shown: str, removal: Removal) -> None:
        """Report what could not be removed, and what an admin can do. The report has no names that the user may have chosen. It
        only has the name of a job's folder."""
        if not removal.stays:
            return
        is_job = _JOB.fullmatch(name) is not None
        which, path = (f"job folder {name}", f"{shown}/{name}") if is_job else ("a folder", shown)
        why = "; ".join(sorted(removal.stays))
        if removal.others:
            whose = ", ".join(map(str, sorted(removal.others)))
            why += f" (folders of user {whose}, not in this user's range of /etc/subuid)"
        self._said_once.say(
            removal.uid, f"{which} of user {removal.uid} could not be removed whole: {why}; look at {path}, remove it as root"
        )


def _rmdir(name: str, up: int) -> None:
    try:
        os.rmdir(name, dir_fd=up)
    except OSError:
        pass  # the folder is not empty: what could not be removed was reported


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # an admin has made it a folder or immutable; the next pass tries again
