"""The agent with every check on, in each fault that it has to live through: CPU, memory, and the prolog, beside the budgets.

One agent with a 1 s sweep on a machine tree, behind its worker the simulated library, its state directory on a disk that can
fall silent, its run directory in memory, as /run is on every node (systemd mounts it). CPU is what the scheduler has counted
(/proc/PID/task/*/schedstat) in the minute that begins with the fault: with what it takes to notice and to say it, and with
every worker that is started meanwhile. (A few seconds would say nothing: a thorough look comes every 14 s, with it a text
file of metrics, the worker after one that was killed at once and then after 60 s.) The start of the agent itself is over by
then: what that costs is paid once.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fairlead import config
from tests.alive.conftest import Living
from tests.bench.rows import Row, median
from tests.daemon.conftest import XID79
from tests.hooks.stage import Stage
from tests.lab.nvml.library import build
from tests.lab.silent import silent_disk, why_not

MACHINE, PROFILE = "hgx-h100.tuned", "hgx-h100"
MEMORY = "/dev/shm"
SECONDS = 60.0
START_SECONDS = 5.0
PROLOGS = 15
LINES = 10_000
TURNS = 10_000


def rows() -> list[Row]:
    """Needs root, a loop device and mkfs.ext4; without the last two the fault of the disk is left out."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        stage = Stage()
        try:
            library = build(Path(place, "library")).parent
            if why_not():
                return _rows(Path(folder), library, stage, None)
            with silent_disk(Path(place, "silent")) as disk:
                return _rows(Path(folder), library, stage, disk)
        finally:
            stage.close()


def _rows(folder: Path, library: Path, stage: Stage, disk: object | None) -> list[Row]:
    from tests.lab.silent import SilentDisk

    data = config.to_data(config.profile_document("n1", PROFILE))
    checks = {name: params | {"enabled": True} for name, params in data["checks"].items()}
    agent_options = {"interval_seconds": 1.0, "nvml_deadline_seconds": 1.0}
    if isinstance(disk, SilentDisk):
        agent_options["state_dir"] = f"{disk.mount}/state"
    agent = Living(folder, library, stage, MACHINE, agent=agent_options, checks=checks, settings=data["settings"])
    if isinstance(disk, SilentDisk):
        agent.before = disk.enter
    agent.start()
    time.sleep(START_SECONDS)
    try:
        return _faults(agent, disk if isinstance(disk, SilentDisk) else None)
    finally:
        agent.faults.clear()
        if isinstance(disk, SilentDisk):
            disk.thaw()
        agent.end()


def _faults(agent: Living, disk: object | None) -> list[Row]:
    faults = agent.faults
    kinds: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("nothing wrong", lambda: None, lambda: None),
        ("an NVML call hangs", lambda: faults.hang("nvmlDeviceGetPowerUsage", 5), faults.clear),
        ("NVML kills its worker", lambda: faults.crash("nvmlDeviceGetMemoryInfo", 2), faults.clear),
        ("a GPU answers nothing", lambda: faults.error(4, "*", 999), faults.clear),
        ("a GPU is lost", lambda: faults.lost(3), faults.clear),
        ("the kernel log is gone", agent.fifo.unlink, lambda: os.mkfifo(agent.fifo)),
    ]
    if disk is not None:
        kinds.append(("the state's disk is silent", lambda: (disk.freeze(), agent.kernel(_xid())), disk.thaw))  # type: ignore[attr-defined]
    found: list[Row] = []
    for name, begin, end in kinds:
        print(f"bench:   {name}", file=sys.stderr, flush=True)
        share, pss, speed = _cost(agent, begin, SECONDS)
        prolog = _prolog(agent)
        end()
        _over(agent)
        found += [
            Row(f"agent, all checks, {name}", share, 0.5, "% of a core", "", f"{TURNS} turns of a loop: {speed:.2f} ms"),
            Row("... PSS with its worker", pss, 48, "MiB"),
            Row("... prolog over an empty sh script, median", prolog, 1, "ms", "", f"{PROLOGS} pairs"),
        ]
    found.append(_flood(agent))
    return found


def _over(agent: Living) -> None:
    """Wait until the fault has no part in what the agent does next; a thorough look asks the driver at once."""
    time.sleep(2)
    agent.send(signal.SIGUSR1)
    agent.until(lambda: not any(f["check"] == "nvml_responsive" for f in agent.status()["findings"]), "NVML to answer again")
    time.sleep(2)


def _xid() -> str:
    return XID79.format(n=1, us=1_000_000)


def _flood(agent: Living) -> Row:
    """Lines that mean nothing, and one fault among them."""
    pids = _pids(agent)
    before, start = sum(map(_cpu, pids)), time.monotonic()
    with open(agent.fifo, "w") as out:
        for n in range(LINES):
            text = "NVRM: Xid (PCI:0000:d1:00): 79, pid=1, GPU has fallen off the bus." if n == LINES // 2 else f"chatter {n}"
            out.write(f"6,{n + 100},{n},-;{text}\n")
    agent.until(lambda: any(f["device"] == "0000:d1:00.0" for f in agent.status()["findings"]), "the fault among the lines")
    took = time.monotonic() - start
    share = (sum(map(_cpu, pids)) - before) / 60 * 100
    return Row(f"agent, {LINES} kernel lines in a minute's second, CPU over the minute", share, 0.5, "% of a core", "",
               f"the Xid among them decided after {took * 1000:.0f} ms")  # fmt: skip


def _pids(agent: Living) -> list[int]:
    assert agent.process is not None
    pid = agent.process.pid
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]
    return [pid]


def _cpu(pid: int) -> float:
    """Seconds on a CPU, all threads (Documentation/scheduler/sched-stats.rst: the first number, nanoseconds)."""
    total = 0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def _loop() -> float:
    """Milliseconds of CPU for the same work: how fast this CPU is now. One that others share may be half as fast as usual."""
    start = time.thread_time()
    for _ in range(TURNS):
        pass
    return (time.thread_time() - start) * 1000


def _cost(agent: Living, begin: Callable[[], object], seconds: float) -> tuple[float, float, float]:
    """Share of a core in so many seconds from the fault on, and PSS in MiB at their end, of the agent and its workers; one
    that dies meanwhile is counted up to its end. And ``_loop`` in that time, the median."""
    speed = []
    spent = {pid: [used, used] for pid in _pids(agent) for used in (_cpu(pid),)}
    start = time.monotonic()
    begin()
    while time.monotonic() - start < seconds:
        time.sleep(0.1)
        speed.append(_loop())
        for pid in _pids(agent):
            first_and_last = spent.setdefault(pid, [0.0, 0.0])
            first_and_last[1] = max(first_and_last[1], _cpu(pid))
    took, size = time.monotonic() - start, 0.0
    for pid in _pids(agent):
        with suppress(OSError):
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            size += int(match[1]) / 1024 if match else 0.0
    return sum(last - first for first, last in spent.values()) / took * 100, size, median(speed)


def _prolog(agent: Living) -> float:
    """Milliseconds, median of pairs: both run in a mount namespace of their own, which is not counted."""
    empty = agent.folder / "empty"
    empty.write_text("#!/bin/sh\nexit 0\n")
    empty.chmod(0o755)
    more = []
    for _ in range(PROLOGS):
        start = time.perf_counter()
        agent.prolog()
        middle = time.perf_counter()
        agent.prolog(hook=empty)
        more.append((2 * middle - start - time.perf_counter()) * 1000)
    return median(more)


if __name__ == "__main__":
    from tests.bench.rows import table

    print(table(rows()))
    sys.exit(0)
