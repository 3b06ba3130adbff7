"""`fairlead maintain` over 16 nodes with jobs, 4 at once, with real reboots; the partition never falls below its floor.

The nodes, slurmctld and the admin host share these cores here: what the command itself takes is in CPU seconds.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.rows import Row, median
from tests.maintain.maintain_admin import Admin, provisioned

NODES = 16
BATCH = 4
FLOOR = 12


@dataclass
class Measured:
    """wall_seconds: the whole command. cpu_seconds: of it and all that it started on the admin host. node_seconds: of each node,
    from idle to back in service. usable: the fewest nodes of the partition at any look that take jobs: neither drained nor down,
    and slurmctld hears from them (sinfo's ``*`` says that it does not); worst: that look."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    node_seconds: list[float] = field(default_factory=list)
    usable: int = NODES
    worst: str = ""
    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    said: str = ""


def rows() -> list[Row]:
    """Bring the rack up, measure, take it down."""
    m = measure()
    return [
        Row(f"maintain, {NODES} nodes, {BATCH} at once, with reboots", m.wall_seconds, None, "s",
            f"fewest usable nodes {m.usable}, floor {FLOOR}; {m.jobs} jobs, {len(m.lost)} lost"),
        Row("... a node, idle until back in service, median", median(m.node_seconds), None, "s",
            f"longest {max(m.node_seconds):.0f} s"),
        Row("... admin host's CPU time for each node", m.cpu_seconds / NODES, None, "s"),
    ]  # fmt: skip


def measure() -> Measured:
    """Raises AssertionError with what the command said where a node is not done, a job is lost, or the floor was broken."""
    with tempfile.TemporaryDirectory() as folder, provisioned(NODES, Path(folder)) as admin:
        jobs = {admin.job(5, f"-wgpu{n}"): f"gpu{n}" for n in range(1, NODES + 1)} | {admin.job(3): "any" for _ in range(NODES)}
        found, over = Measured(jobs=len(jobs)), threading.Event()
        watch = threading.Thread(target=_watch, args=(admin, found, over))
        watch.start()
        try:
            began, more = (
                time.monotonic(),
                ("--batch", str(BATCH), "--floor", f"main={FLOOR}", "--reboot", "--verify-wait", "180s"),
            )
            run = admin.maintain(f"gpu[1-{NODES}]", "--reason", "kernel 6.12", *more)
            _, status, used = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            found.wall_seconds, found.cpu_seconds = time.monotonic() - began, used.ru_utime + used.ru_stime
        finally:
            over.set()
            watch.join()
        found.said, shown = admin.said(), admin.shown().values()
        found.node_seconds = [n.seconds - n.busy_seconds for n in shown]
        found.lost = admin.lost(jobs)
        assert run.returncode == 0 and {n.step for n in shown} == {"done"}, found.said
        assert [admin.boots(host) for host in admin.rack.nodes] == [1] * NODES
        assert not found.lost and found.usable >= FLOOR, (found.worst, found.lost, found.said)
        return found


def _watch(admin: Admin, found: Measured, over: threading.Event) -> None:
    while not over.wait(0.2):
        reading = admin.rack.ctl("sinfo -h -N -p main -o %N=%T", check=False)
        states = [line.partition("=")[2] for line in reading.split()]
        usable = sum(state in ("idle", "allocated", "mixed", "completing") for state in states)
        if states and usable < found.usable:
            found.usable, found.worst = usable, reading
