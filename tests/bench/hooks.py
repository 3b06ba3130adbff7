"""The prolog against an empty sh script, pair by pair: alone, and 64 at once (with a wedged driver: tests/bench/faults.py).

Runs in a private mount namespace with its own /run/fairlead and /etc/fairlead; nothing of the machine is touched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.bench.rows import Row, median, percentile

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 300
ROUNDS = 12
AT_ONCE = 64


def rows() -> list[Row]:
    """Measures in a child that has a mount namespace of its own."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.bench.hooks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return [Row(**r) for r in json.loads(done.stdout)]


def _spawn(script: str, environment: dict[str, str]) -> int:
    null = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    return os.posix_spawn("/bin/sh", ["sh", script], environment, file_actions=null)


def _once(script: str, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    pid = _spawn(script, environment)
    _, status = os.waitpid(pid, 0)
    took = time.perf_counter() - start
    assert os.waitstatus_to_exitcode(status) == 0, script
    return took * 1000


def _burst(script: str, environment: dict[str, str]) -> list[float]:
    start = time.perf_counter()
    pids = {_spawn(script, {**environment, "SLURM_JOB_ID": str(1000 + i)}) for i in range(AT_ONCE)}
    took = []
    while pids:
        pid, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == 0, script
        if pid in pids:
            pids.remove(pid)
            took.append((time.perf_counter() - start) * 1000)
    return took


def _measure() -> list[Row]:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/fairlead/jobs").mkdir(parents=True)
    # /etc as an overlay: the machine's own is neither written nor missing
    for name in ("up", "work"):
        Path(f"/run/{name}").mkdir()
    subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", "lowerdir=/etc,upperdir=/run/up,workdir=/run/work", "/etc"], check=True
    )
    Path("/etc/fairlead").mkdir(exist_ok=True)
    Path("/etc/fairlead/hooks").write_text("1\tallow\tfull\t-\t-\n")
    Path("/run/fairlead/verdict").write_text("1\tok\t99999999999\t7\t-\n")
    empty = Path("/run/empty")
    empty.write_text("#!/bin/sh\nexit 0\n")
    prolog = str(ROOT / "slurm" / "prolog")
    environment = {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1000", "SLURM_JOB_GPUS": "0,1", "SLURM_JOB_COMMENT": ""}
    for script in (prolog, str(empty)):
        _once(script, environment)
    ours, theirs = [], []
    for _ in range(PAIRS):
        ours.append(_once(prolog, environment))
        theirs.append(_once(str(empty), environment))
    difference = [a - b for a, b in zip(ours, theirs, strict=True)]
    out = [Row("prolog over an empty sh script", median(difference), 1, "ms", f"empty script {median(theirs):.2f} ms",
               f"prolog {median(ours):.2f} ms, p99 {percentile(ours, 99):.2f} ms")]  # fmt: skip
    worst, calm, both = [], [], []
    for _ in range(ROUNDS):
        a, b = _burst(prolog, environment), _burst(str(empty), environment)
        worst.append(percentile(a, 99))
        calm.append(percentile(b, 99))
        both.append(worst[-1] - calm[-1])
    beside = f"64 empty scripts p99 {median(calm):.1f} ms"
    out.append(
        Row("prolog, 64 at once, p99 over empty scripts", median(both), 5, "ms", beside, f"prologs {median(worst):.1f} ms")
    )
    return out


if __name__ == "__main__":
    json.dump([r.__dict__ for r in _measure()], sys.stdout)
