"""The loop's look at the records of jobs under RUN_DIR/jobs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlead.daemon import log
from fairlead.host import job_records

if TYPE_CHECKING:
    from fairlead.daemon.loop import Loop


def look_at_jobs(loop: Loop) -> None:
    """What the prologs have noted since: whom to blame, what to wait for, whom our prolog has refused."""
    folder = f"{loop.document.agent.run_dir}/jobs"
    found = job_records.scan(folder)
    if loop.root.is_live and (gone := loop.presence.gone(found.running)):
        if gone - loop.gone:
            log.line(log.NOTICE, "jobs have no process here any more", jobs=",".join(map(str, sorted(gone))))
        loop.gone = gone
        found = found._replace(running=found.running - gone)  # nothing waits for them, and nothing is their fault
    loop.blame.heed(found)
    if found.refused - loop.jobs.refused and loop.courier is not None:
        log.line(log.NOTICE, "prolog refused", jobs=",".join(map(str, sorted(found.refused - loop.jobs.refused))))
        loop.courier.refused()
    if found.ended:
        loop.next_sweep = min(loop.next_sweep, time.monotonic())  # as it is after a job, not during it
        loop.senses.read_thoroughly()
    told = found.refused & loop.jobs.refused
    job_records.forget(folder, found.ended | (told if loop.courier is None or not loop.courier.refusal_pending else set()))
    if found.running != loop.jobs.running:
        loop.board.hurry()
    loop.jobs = found
