"""Removes locks of dnf whose process has ended, although its process id is in use.

dnf's lock is a file with a process id. A dnf that was killed leaves the file, and the next dnf takes the lock over if
/proc has no such process. If the id now belongs to another process, or the dead one was not reaped yet, every dnf waits or
ends with 200 as long as that process lives. Source: dnf/lock.py of dnf 4.14 and 4.23; proc(5) (stat, fields 3 and 22).
"""

from __future__ import annotations

import fcntl
import os

from fairlead.host.root import Root

LOCKS = (
    "/var/lib/dnf/rpmdb_lock.pid",
    "/var/cache/dnf/metadata_lock.pid",
    "/var/cache/dnf/download_lock.pid",
    "/var/log/log_lock.pid",
)
#: The clock may have been set between the two times that are compared.
MARGIN_SECONDS = 60.0


def remove_dead(root: Root) -> bool:
    """Remove each lock file whose process is a zombie, or began after the file was written. Say whether one was removed."""
    removed = False
    for path in LOCKS:
        try:
            fd = os.open(root.join(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # dnf reads and writes the file under this lock
            process = os.read(fd, 20)
            if process.isdigit() and _is_dead(int(process), os.fstat(fd).st_mtime):
                os.unlink(root.join(path))
                removed = True
        except OSError:
            continue
        finally:
            os.close(fd)
    return removed


def _is_dead(process: int, written: float) -> bool:
    """Say whether the process that wrote its id at this time has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        with open("/proc/stat", "rb") as f:
            boot = next(float(line.split()[1]) for line in f if line.startswith(b"btime "))
        began = boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return False
    return fields[0] == b"Z" or began > written + MARGIN_SECONDS
