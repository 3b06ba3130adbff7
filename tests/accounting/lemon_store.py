"""Adds 60 machines and their jobs of 80 days to the stores of a controller: one of them is a lemon.

It imports fairlead only, so that the controller of a rack can run it: python lemon_store.py FOLDER NOW
"""

from __future__ import annotations

import sys

from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.fleet.service_record import CardSeen, ServiceEntry, ServiceRecord
from fairlead.jobs.job_run import JobRun

DAY, DAYS, MACHINES, LEMON = 86400, 80, 60, "made7"
PCI = "0000:1b:00.0"


def fill(folder: str, now: float) -> None:
    """``now``: Unix seconds. Nothing of the last two days is added."""
    begin = int(now) - (DAYS + 2) * DAY
    names = [f"made{number}" for number in range(1, MACHINES + 1)]
    with FleetStore(folder, write=True) as fleet:
        fleet.add([_record(name, begin, now) for name in names], 0.0)
    with JobStore(folder, write=True) as jobs:
        jobs.add_runs([_run(name, at, begin + day * DAY) for at, name in enumerate(names) for day in range(DAYS)], int(now))


def _record(name: str, begin: int, now: float) -> ServiceRecord:
    days = range(3, 75, 9) if name == LEMON else ()
    entries = [entry for day in days for entry in _incident(name, begin + day * DAY + 3600)]
    return ServiceRecord(
        node=name,
        machine=f"id-{name}",
        node_class="hgx-h100",
        written_unix=now,
        watched=((begin, now),),
        cards=(CardSeen(pci=PCI, serial=f"S-{name}", since_unix=begin),),
        entries=tuple(entries),
    )


def _incident(name: str, unix: int) -> tuple[ServiceEntry, ...]:
    reason = f"fairlead:xid:{unix:012x} Xid 79 on GPU {PCI}"
    args = {"reason": reason, "findings": f"xid/{PCI}"}
    return (
        ServiceEntry(unix=unix, id=f"{name}d{unix}", what="drained", who="agent", args=args),
        ServiceEntry(unix=unix + 7200, id=f"{name}r{unix}", what="resumed", who="agent", args={"reason": reason}),
    )


def _run(name: str, at: int, begin: int) -> JobRun:
    """A job of a day, each of another user."""
    job = 1_000_000 + at * DAYS + begin // DAY % DAYS
    return JobRun(
        job=job,
        label=str(job),
        user=f"user{job}",
        account="research",
        partition="main",
        state="COMPLETED",
        nodes=(name,),
        begin_unix=begin,
        end_unix=begin + DAY - 60,
        gpus=8,
    )


if __name__ == "__main__":
    fill(sys.argv[1], float(sys.argv[2]))
