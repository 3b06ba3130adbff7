"""Runs each hook in a private mount namespace, with made-up variables and files, and measures how long it takes.

The hooks find their fixed paths /etc/fairlead and /run/fairlead empty, and what they write there vanishes with the process. The
made-up node has two cores and two GPUs, each GPU near the other core, so that the task prolog has to exchange two tasks' CPUs.
What a hook says is the same on every machine, therefore its digest is too.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fairlead import assets
from fairlead.selftest import private_mounts
from fairlead.selftest.part_process import Message, doing

HOOKS = ("prolog", "prolog-drain", "prolog-stale", "epilog", "health-check", "task-prolog", "bind-plan")
RUNS = 11  # an odd number, so that the median is a measured value
ONCE_SECONDS = 5.0
_NOBODY = 65534  # the overflow uid (proc(5), /proc/sys/kernel/overflowuid)
_JOB = "4711"
_RUN, _ETC = Path("/run/fairlead"), Path("/etc/fairlead")
_TOPOLOGY = """\
1\tnode\tselftest\t2\t0-1\t2\t1
gpu\t0\t0\tGPU-0\t0000:01:00.0\t1\t1\t-\t2
gpu\t1\t1\tGPU-1\t0000:02:00.0\t0\t0\t-\t1
core\t0\t0\t0\t0
core\t1\t1\t1\t1
"""
_READY = "fl_ready='0,1 1 0:2 1:1'\n"
_ROWS = """\
fl_rows='SELFTEST_ALWAYS\talways\tone\tminimal\t-
SELFTEST_CORES\tgpu\t@cores\tfull\t-
SELFTEST_NODES\tnodes\ttwo\tfull\t-
.'
"""
_STEP = {
    "SLURM_JOB_ID": _JOB, "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_NUM_NODES": "1", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_GTIDS": "0,1", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1,0x2", "SLURM_STEP_GPUS": "0,1",
    "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_COMMENT": "a comment",
}  # fmt: skip


class HookEnd(NamedTuple):
    """Holds how one run of a hook ended. ``said``: its output and what it wrote, without times."""

    status: int
    said: bytes
    errors: str
    milliseconds: float


def run_hooks() -> Iterator[Message]:
    """Yield a row for each hook. Raises OSError if this process may have no mounts of its own."""
    folder = assets.directory("slurm")
    yield doing("make a private mount namespace")
    private_mounts.make_ours_empty()
    empty = _RUN / "empty"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    hung: set[str] = set()
    for name in HOOKS:
        yield doing(f"run {name}")
        row = _row(name, folder, str(empty)) if _file(name) not in hung else _not_run(name, "the same hook hung before")
        if row["state"] == "hung":
            hung.add(_file(name))
        yield row


def _file(name: str) -> str:
    return "prolog" if name.startswith("prolog") else name


def _not_run(name: str, why: str) -> Message:
    return {"name": name, "state": "not_run", "reasons": [why]}


def _row(name: str, folder: Path, empty: str) -> Message:
    began = time.monotonic()
    if name in ("task-prolog", "bind-plan") and not {0, 1} <= os.sched_getaffinity(0):
        return _not_run(name, "a task needs the CPUs 0 and 1, and this process may not use them")
    try:
        ends, over_empty = _repeated(name, folder, empty)
    except subprocess.TimeoutExpired:
        return {"name": name, "state": "hung", "reasons": [f"it did not end within {ONCE_SECONDS:.0f} s"]}
    except OSError as e:
        return _not_run(name, f"it cannot be started: {e.strerror}")
    first = ends[0]
    return {
        "name": name,
        "state": "run",
        "status": first.status,
        "runs": len(ends),
        "over_empty_milliseconds": over_empty,
        "digest": hashlib.sha256(first.said).hexdigest()[:16],
        "reasons": [first.errors] if first.errors and name != "prolog-drain" else [],
        "milliseconds": (time.monotonic() - began) * 1000,
    }


def _repeated(name: str, folder: Path, empty: str) -> tuple[list[HookEnd], float]:
    """Return how the runs ended, and the median of what the hook takes longer than an empty script, in milliseconds.

    Each run follows a run of the empty script, so that other load of the machine touches both alike.
    """
    ends, over = [], []
    with subprocess.Popen(["sleep", "60"], user=_NOBODY, group=_NOBODY, extra_groups=[]) as task:
        try:
            for _ in range(RUNS):
                nothing = _once([empty], {}, user=None)
                _lay_out(name)
                ends.append(_one(name, folder, task.pid))
                over.append(ends[-1].milliseconds - nothing.milliseconds)
        finally:
            task.kill()
    return ends, statistics.median(over)


@cache
def _python() -> str:
    """Return the Python of fairlead, or the distribution's if only some users may run that of fairlead (a virtual environment
    below /root)."""
    for path in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError, subprocess.TimeoutExpired):
            if _once([path, "-I", "-S", "-c", ""], {}, user=_NOBODY).status == 0:
                return path
    return sys.executable


def _lay_out(name: str) -> None:
    """Write the files that the hooks read."""
    with open("/proc/uptime", encoding="ascii") as f:
        now = int(f.read().split(".")[0])
    state = "drain" if name == "prolog-drain" else "ok"
    (_RUN / "verdict").write_text("" if name == "prolog-stale" else f"1\t{state}\t{now + 3600}\t1\ta reason\n")
    (_ETC / "hooks").write_text(f"1\tallow\tfull\t-\t{_python()}\n")
    (_RUN / "topology").write_text(_TOPOLOGY)
    (_RUN / "plans" / "2.ready").write_text(_READY)
    (_RUN / "env").write_text(_ROWS)
    record = _RUN / "jobs" / _JOB
    record.write_text(f"1\trunning\t1000\t0,1\t{now}.00\t-\t-\t.\n") if name == "epilog" else record.unlink(missing_ok=True)


def _one(name: str, folder: Path, task: int) -> HookEnd:
    """Run a hook once as slurmd or slurmstepd would, and add to its output what it wrote or bound."""
    variables = {**_STEP, "SLURM_TASK_PID": str(task)}
    if name == "bind-plan":
        return _once([_python(), "-I", "-S", "-E", str(folder / name)], variables, user=_NOBODY)
    if name == "task-prolog":
        end = _once([str(folder / name)], variables, user=_NOBODY)
        return end._replace(said=end.said + f"bound to {sorted(os.sched_getaffinity(task))}\n".encode())
    end = _once([str(folder / _file(name))], variables, user=None)
    return end._replace(said=end.said + _record())


def _record() -> bytes:
    """Return the job's record with its times replaced, or b"" if there is none."""
    try:
        fields = (_RUN / "jobs" / _JOB).read_text().rstrip("\n").split("\t")
    except OSError:
        return b""
    return "\t".join("TIME" if at in (4, 5) and f != "-" else f for at, f in enumerate(fields)).encode() + b"\n"


def _once(command: list[str], variables: dict[str, str], *, user: int | None) -> HookEnd:
    how = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    began = time.perf_counter()
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=variables, cwd="/", timeout=ONCE_SECONDS, check=False, **how
    )  # type: ignore[call-overload]
    took = (time.perf_counter() - began) * 1000
    return HookEnd(done.returncode, done.stdout, done.stderr[:400].decode("utf-8", "replace"), took)
