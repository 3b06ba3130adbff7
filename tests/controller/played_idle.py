"""Runs the idle program over a simulated fleet with a clock of its own. Its channel keeps what it really got, in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.controller.idle_channels import Found, Outcome
from fairlead.controller.idle_journal import IdleJournal
from fairlead.controller.idle_program import IdleProgram, IdleRun
from fairlead.jobs.idle_rule import IdleOptions, RunningJob
from fairlead.jobs.idle_stages import IdleEvent
from fairlead.jobs.usage_record import UsageRecord
from tests.jobs.idle_fleet import BEGIN, Played

ACT = IdleOptions(mode="act", signed_off="2026-11-01", act_command="/bin/true", act_partitions=("gpu",), channel="/bin/true")
POLL_SECONDS = 1200


class Killed(BaseException):
    """Stands for SIGKILL in tests of one process: nothing catches it, and only files survive."""


class FileChannel:
    """A channel that writes each message to a file. ``replies``: what it answers, or "lost"."""

    def __init__(self, folder: Path, reply: str = "accepted", *, knows: bool = True) -> None:
        self.path, self.reply, self.knows = folder / "delivered", reply, knows

    def got(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []

    def deliver(self, message: str, job: RunningJob, text: str) -> Outcome:
        if self.reply != "refused":
            with self.path.open("a") as file:
                file.write(message + "\n")
        return "unconfirmed" if self.reply == "lost" else self.reply  # type: ignore[return-value]

    def query(self, message: str) -> Found:
        if not self.knows:
            return "unconfirmed"
        return "accepted" if message in self.got() else "not_taken"


class FileAct:
    """The site's act, which writes each id to the same file as the channel."""

    def __init__(self, channel: FileChannel) -> None:
        self.channel = channel

    def act(self, message: str, job: RunningJob) -> Outcome:
        return self.channel.deliver(message, job, "")


class Deadly(IdleJournal):
    """Kills the program at its write number ``at``, before or after it."""

    def __init__(self, folder: str, at: int, when: str) -> None:
        super().__init__(folder)
        self.to_come, self.when = at, when

    def append(self, event: IdleEvent) -> None:
        self.to_come -= 1
        if self.to_come < 0 and self.when == "before":
            raise Killed
        super().append(event)
        if self.to_come < 0:
            raise Killed


def poll(
    folder: Path,
    played: Sequence[Played],
    seconds: int,
    channel: FileChannel,
    *,
    options: IdleOptions = ACT,
    journal: IdleJournal | None = None,
    switches: Sequence[str] = (),
    dry_run: bool = False,
    records: Sequence[UsageRecord] | None = None,
    running: Callable[[], Sequence[RunningJob]] | None = None,
) -> IdleRun:
    """One run of the program, so many seconds after the begin of the jobs. records, running: in place of those of the jobs."""
    return IdleProgram(
        options=options,
        folder=str(folder / "state"),
        running=running or (lambda: [each.job for each in played]),
        records=lambda: [each.record(seconds) for each in played] if records is None else records,
        channel=channel,
        act=FileAct(channel),  # type: ignore[arg-type]
        journal=journal,
        clock=lambda: BEGIN + seconds,
        boottime=lambda: float(seconds),
        switches=switches,
        dry_run=dry_run,
    ).run()


def files(folder: Path) -> list[str]:
    return sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
