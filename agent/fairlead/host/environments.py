"""Reads the environments of a job's tasks on this machine, as they were when each program started: /proc/PID/environ, proc(5).

A user may read the environments of his own processes, and root may read all. Only processes of the requested job are returned.
"""

from __future__ import annotations

import os

from msgspec import Struct

ENVIRON_MAX_BYTES = 1 << 20


class Task(Struct, frozen=True, kw_only=True):
    """Describes one task. ``step`` is "batch" or a number. ``rank`` is SLURM_PROCID, "" in the batch step. ``cpus``: the CPUs
    that the process may use now (sched_getaffinity(2)), or () if they cannot be read."""

    step: str
    rank: str
    pid: int
    environment: dict[str, str]
    cpus: tuple[int, ...] = ()


def allowed_cpus(pid: int) -> tuple[int, ...]:
    """Return the CPUs that a process may use, or () if the process has ended or may not be read. 0 is this process."""
    try:
        return tuple(sorted(os.sched_getaffinity(pid)))
    except OSError:
        return ()


def of_job(job: str, proc: str = "/proc") -> tuple[Task, ...]:
    """Return the tasks of a job, or () if none can be read. Each task is read from its process with the lowest process id."""
    found: dict[tuple[str, str], Task] = {}
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdecimal()):
        environment = _environment(f"{proc}/{pid}/environ")
        if environment.get("SLURM_JOB_ID") != job or "SLURM_TASK_PID" not in environment:
            continue
        step = environment.get("SLURM_STEP_ID", "")
        batch = not step.isdecimal() or len(step) > 9
        key = ("batch", "") if batch else (step, environment.get("SLURM_PROCID", ""))
        if key not in found:
            found[key] = Task(step=key[0], rank=key[1], pid=pid, environment=environment, cpus=allowed_cpus(pid))
    return tuple(sorted(found.values(), key=lambda t: (t.step != "batch", len(t.step), t.step, len(t.rank), t.rank)))


def _environment(path: str) -> dict[str, str]:
    try:
        with open(path, "rb") as f:
            data = f.read(ENVIRON_MAX_BYTES)
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in data.split(b"\0") if b"=" in part)
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}
