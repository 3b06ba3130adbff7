"""Reads what a job uses of the node from the control group that Slurm made for the job (cgroup v1 and v2).

With cgroup v2 the group is ``/system.slice/[NODE_]slurmstepd.scope/JOB``. JOB is ``job_N``, or from Slurm 26.05 on the job's
SLUID (see ``host.owners``). With cgroup v1 the group is ``/slurm[_NODE]/uid_U/job_N`` in each hierarchy. Only root can make
groups at these places. slurmstepd removes the group when the last step of the job ends, which is before the epilog ends.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead.host.job_records import Job
from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist
from fairlead.model.missing import Missing

MOUNT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # cgroup v1 writes the largest multiple of the page size where there is no limit


class JobGroup(NamedTuple):
    """Holds the values of a job's control group. A value that could not be read is None.

    cpu_seconds: the CPU time of all processes since the group was made. cpus: the number of CPUs in the cpuset. memory_bytes: the
    most memory that was charged to the group, page cache included, or the present amount if the kernel (before 5.19, with cgroup
    v2) does not record the most. memory_limit_bytes: None if there is no limit.
    """

    cpu_seconds: float | None = None
    cpus: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None


def read(root: Root, job: Job) -> JobGroup:
    """Return the values of the job's control group, or a JobGroup without values if there is none."""
    return _version_2(root, job) if root.exists(f"{MOUNT}/cgroup.controllers") else _version_1(root, job)


def memory_total_bytes(root: Root) -> int | None:
    """Return the memory of the node (MemTotal in proc_meminfo(5)), or None if it cannot be read."""
    text = root.read_text("/proc/meminfo", 65536)
    words = text.split(maxsplit=3)[:3] if isinstance(text, str) else []
    return int(words[1]) << 10 if words[:1] == ["MemTotal:"] and words[1:2] and words[1].isdecimal() else None


def _version_2(root: Root, job: Job) -> JobGroup:
    names = [f"job_{job.id}", *([job.sluid] if job.sluid else [])]
    scopes = (f"{MOUNT}/system.slice/*slurmstepd.scope", f"{MOUNT}/*slurmstepd.scope")
    folder = next((found for scope in scopes for name in names for found in root.glob(f"{scope}/{name}")), None)
    if folder is None:
        return JobGroup()
    microseconds = _field(root, f"{folder}/cpu.stat", "usage_usec")
    peak = _number(root, f"{folder}/memory.peak")
    return JobGroup(
        cpu_seconds=None if microseconds is None else microseconds / 1e6,
        cpus=_cpus(root, f"{folder}/cpuset.cpus.effective"),
        memory_bytes=_number(root, f"{folder}/memory.current") if peak is None else peak,
        memory_limit_bytes=_number(root, f"{folder}/memory.max"),
    )


def _version_1(root: Root, job: Job) -> JobGroup:
    def folder(controller: str) -> str:
        user = "*" if job.uid is None else job.uid
        return next(iter(root.glob(f"{MOUNT}/{controller}/slurm*/uid_{user}/job_{job.id}")), "")

    cpuacct, cpuset, memory = folder("cpuacct"), folder("cpuset"), folder("memory")
    nanoseconds = _number(root, f"{cpuacct}/cpuacct.usage") if cpuacct else None
    limit = _number(root, f"{memory}/memory.limit_in_bytes") if memory else None
    return JobGroup(
        cpu_seconds=None if nanoseconds is None else nanoseconds / 1e9,
        cpus=_cpus(root, f"{cpuset}/cpuset.cpus") if cpuset else None,
        memory_bytes=_number(root, f"{memory}/memory.max_usage_in_bytes") if memory else None,
        memory_limit_bytes=None if limit is None or limit >= _UNLIMITED else limit,
    )


def _text(root: Root, path: str) -> str:
    text = root.read_text(path, 65536)
    return "" if text is None or isinstance(text, Missing) else text.strip()


def _number(root: Root, path: str) -> int | None:
    """Return the number in a file. The word "max", which means that there is no limit, gives None."""
    return _decimal(_text(root, path))


def _field(root: Root, path: str, name: str) -> int | None:
    for line in _text(root, path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return _decimal(value)
    return None


def _decimal(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def _cpus(root: Root, path: str) -> int | None:
    text = _text(root, path)
    try:
        return len(parse_cpulist(text)) or None
    except ValueError:
        return None
