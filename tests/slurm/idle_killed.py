"""A child that runs the idle program poll after poll, and ends itself by SIGKILL at the K-th write to the journal.

python -m tests.slurm.idle_killed BIN FOLDER K before|after
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fairlead.controller.idle_channels import SiteAct, SiteProgram
from fairlead.controller.idle_journal import IdleJournal
from fairlead.controller.idle_program import IdleProgram
from fairlead.controller.running_jobs import running_jobs
from fairlead.jobs.idle_rule import IdleOptions, RunningJob
from fairlead.jobs.idle_stages import IdleEvent
from fairlead.slurm.scontrol import Scontrol
from tests.jobs.idle_fleet import Played, idle_batch

POLL_SECONDS = 1200
POLLS = 16


class Deadly(IdleJournal):
    """Kills this process at its write number ``to_come``."""

    def __init__(self, folder: str, to_come: int, when: str) -> None:
        super().__init__(folder)
        self.to_come, self.when = to_come, when

    def append(self, event: IdleEvent) -> None:
        self.to_come -= 1
        if self.to_come < 0 and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().append(event)
        if self.to_come < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def run(bin_dir: str, folder: Path, at: int, when: str, poll: int) -> None:
    """One poll. The clock is that of the job's begin and goes on by 20 minutes for each poll."""
    client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=bin_dir, deadline_seconds=60)
    begin = float((folder / "begin").read_text())
    seconds = POLL_SECONDS * poll

    def running() -> list[RunningJob]:
        return [job for job in running_jobs(client) if job.job == int((folder / "job").read_text())]

    options = IdleOptions(
        mode="act",
        signed_off="2026-11-01",
        act_command=str(folder / "act"),
        act_partitions=("main",),
        channel=str(folder / "channel"),
    )
    program = IdleProgram(
        options=options,
        folder=str(folder / "state"),
        running=running,
        records=lambda: [Played(job, idle_batch, False).record(seconds) for job in running()],
        channel=SiteProgram(options.channel),
        act=SiteAct(options.act_command, bin_dir),
        journal=Deadly(str(folder / "state"), at, when),
        clock=lambda: begin + seconds,
        boottime=lambda: float(seconds),
        switches=(),
    )
    found = program.run()
    assert not found.doubts, found.doubts


def main() -> None:
    bin_dir, folder, at, when = sys.argv[1:5]
    mark = Path(folder) / "poll"
    writes = int(at)
    for poll in range(int(mark.read_text()) if mark.exists() else 1, POLLS):
        mark.write_text(str(poll + 1))
        before = len(IdleJournal(f"{folder}/state").read())
        run(bin_dir, Path(folder), writes, when, poll)
        writes -= len(IdleJournal(f"{folder}/state").read()) - before


if __name__ == "__main__":
    main()
