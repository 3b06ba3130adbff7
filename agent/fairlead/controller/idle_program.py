"""Looks for idle jobs once, and does the next step of each: what ``fairlead idle observe`` and ``fairlead idle run`` do.

Each step is written to the journal before it is carried out. A run that is killed at any moment is continued by the next one: it
asks the channel what became of the message, and without an answer it does nothing more for that job.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.controller.idle_channels import Channel, Outcome, SiteAct
from fairlead.controller.idle_journal import LOCK, IdleJournal
from fairlead.controller.idle_readings import IdleReadings, windows
from fairlead.errors import HostError, SlurmError, next_step
from fairlead.host import boot_clock
from fairlead.host.atomic_file import write_atomic
from fairlead.host.file_lock import locked_within
from fairlead.host.root import Root
from fairlead.jobs.idle_rule import IdleOptions, JobJudgement, RunningJob, judge_job
from fairlead.jobs.idle_stages import (
    DAY,
    Case,
    IdleDecision,
    IdleEvent,
    Stages,
    World,
    case_name,
    decision,
    doubts,
    marks_seen,
    stages_of,
    with_event,
)
from fairlead.jobs.usage_record import UsageRecord

#: Either file stops every message and every act at once.
SWITCHES = ("/etc/fairlead/disabled", "/etc/fairlead/idle-disabled")
FRESH_SECONDS = 300.0


class IdleRow(Struct, frozen=True, kw_only=True):
    """Says of one running job what it was judged to be, and what was decided. done: the channel's answer, "" for none."""

    job: RunningJob
    judgement: JobJudgement
    decision: IdleDecision
    done: str = ""


class IdleRun(Struct, frozen=True, kw_only=True):
    """Holds the result of one run. doubts: each reason for which nothing was done."""

    rows: tuple[IdleRow, ...]
    doubts: tuple[str, ...]
    nodes: int
    nodes_fresh: int
    unread: int = 0


class IdleProgram:
    """Runs once. running: lists the running jobs, and raises SlurmError. records: reads the newest records of running jobs.
    dry_run: writes nothing and tells nobody."""

    def __init__(
        self,
        *,
        options: IdleOptions,
        folder: str,
        running: Callable[[], Sequence[RunningJob]],
        records: Callable[[], Sequence[UsageRecord]],
        channel: Channel,
        act: SiteAct | None,
        journal: IdleJournal | None = None,
        clock: Callable[[], float] = time.time,
        boottime: Callable[[], float] = boot_clock.boottime,
        switches: Sequence[str] = SWITCHES,
        dry_run: bool = False,
    ) -> None:
        self.options, self.folder, self.running, self.records = options, folder, running, records
        self.channel, self.act, self.switches, self.dry_run = channel, act, switches, dry_run
        self.clock, self.boottime = clock, boottime
        self.journal = journal or IdleJournal(folder)
        self.readings = IdleReadings(os.path.join(folder, "polls"))
        self.stages = Stages()

    def run(self) -> IdleRun:
        """Judge all running jobs, and do the next step of each. Raises HostError if another run is under way."""
        with self._alone():
            return self._run()

    def _run(self) -> IdleRun:
        now = self.clock()
        self.stages = stages_of(self.journal.read(), self.options, now)
        clock_step = self._clock_step(now)
        try:
            jobs: Sequence[RunningJob] = self.running()
            answered = True
        except SlurmError:
            jobs, answered = (), False
        known = {job.job for job in jobs}
        latest = [record for record in self.records() if record.job in known]
        fresh = {record.node for record in latest if abs(now - record.written_unix) <= FRESH_SECONDS}
        nodes = {node for job in jobs for node in job.nodes}
        if answered and not self.dry_run:
            self.readings.add(latest, now, self.options)
        of_job = windows(jobs, [*self.readings.records(), *latest], self.options)
        world = World(
            slurm_answered=answered,
            clock_step_seconds=clock_step,
            nodes=len(nodes),
            nodes_fresh=len(nodes & fresh),
            switched_off=self._switched_off(),
        )
        found = [(job, judge_job(job, of_job.get(job.job, {}), now, self.options)) for job in jobs]
        found.sort(key=lambda pair: -pair[1].idle_gpus * pair[1].idle_seconds)  # the most idle GPU time first
        rows = [self._one(job, judgement, world) for job, judgement in found]
        reasons = doubts(self.stages, world, self.options)
        return IdleRun(
            rows=tuple(rows), doubts=reasons, nodes=len(nodes), nodes_fresh=len(nodes & fresh), unread=self.journal.unread
        )

    # -- one job ----------------------------------------------------------------------------------

    def _one(self, job: RunningJob, judgement: JobJudgement, world: World) -> IdleRow:
        now, name = self.clock(), case_name(job)
        case = self.stages.cases.get(name, Case())
        for event in marks_seen(self.stages, job, now, self.options):
            self._write(event)
        if judgement.word in ("active", "partly") and case.steps:
            self._write(IdleEvent(kind="active", at_unix=now, case=name, user=job.user, detail=judgement.word))
        if judgement.word == "idle" and case.observed_day != int(now // DAY):
            self._write(IdleEvent(kind="observed", at_unix=now, case=name, user=job.user, detail=_evidence(job, judgement)))
        if reasons := doubts(self.stages, world, self.options):
            return IdleRow(job=job, judgement=judgement, decision=IdleDecision(act="wait", why=reasons[0]))
        chosen = decision(self.stages, job, judgement, now, self.options)
        if chosen.act == "query":
            chosen = self._queried(job, chosen, judgement)
        if chosen.act != "do" or self.dry_run:
            return IdleRow(job=job, judgement=judgement, decision=chosen)
        return IdleRow(job=job, judgement=judgement, decision=chosen, done=self._do(job, judgement, chosen))

    def _queried(self, job: RunningJob, asked: IdleDecision, judgement: JobJudgement) -> IdleDecision:
        """Ask the channel what became of a message, and return what to do then."""
        name = case_name(job)
        state = self.stages.cases[name].steps[asked.step]
        found = "unconfirmed" if asked.step == "act" or self.dry_run else self.channel.query(asked.message)
        if found != state.status:
            self._write(self._event(found, job, asked))
        if found == "unconfirmed":
            return IdleDecision(act="wait", step=asked.step, message=asked.message, why=asked.why)
        return decision(self.stages, job, judgement, self.clock(), self.options)

    def _do(self, job: RunningJob, judgement: JobJudgement, chosen: IdleDecision) -> str:
        """Carry out a step: write the intent, act, write the answer. Return the answer, or "" if the step was given up."""
        if self._switched_off() or (chosen.step == "act" and not self._same_now(job)):
            return ""
        self._write(self._event("intent", job, chosen, _evidence(job, judgement)))
        if chosen.step != "act":
            outcome: Outcome = self.channel.deliver(chosen.message, job, message_text(chosen.step, job, judgement, self.options))
        else:
            outcome = self.act.act(chosen.message, job) if self.act is not None else "refused"
        self._write(self._event(outcome, job, chosen))
        return outcome

    def _same_now(self, job: RunningJob) -> bool:
        """Ask Slurm once more before an act: the same run of the job, without a new word of its owner."""
        try:
            return job in self.running()
        except SlurmError:
            return False

    def _event(self, kind: Any, job: RunningJob, of: IdleDecision, detail: str = "") -> IdleEvent:
        return IdleEvent(
            kind=kind, at_unix=self.clock(), case=case_name(job), user=job.user, step=of.step, message=of.message, detail=detail
        )

    def _write(self, event: IdleEvent) -> None:
        if not self.dry_run:
            self.journal.append(event)
        self.stages = with_event(self.stages, event, self.options)

    # -- the machine ------------------------------------------------------------------------------

    def _switched_off(self) -> bool:
        return any(os.path.lexists(path) for path in self.switches)

    def _clock_step(self, now: float) -> float:
        """Return by how many seconds the clock was set since the last run, 0 after a boot or in the first run."""
        path = os.path.join(self.folder, "clock.json")
        boot, boot_id = self.boottime(), boot_clock.boot_id(Root("/"))
        try:
            with open(path, "rb") as file:
                earlier = msgspec.json.decode(file.read(4096), type=ClockReading)
        except (OSError, msgspec.MsgspecError):
            earlier = None
        if not self.dry_run:
            write_atomic(path, msgspec.json.encode(ClockReading(unix=now, boot=boot, boot_id=boot_id)), mode=0o600)
        if earlier is None or earlier.boot_id != boot_id:
            return 0.0
        return (now - earlier.unix) - (boot - earlier.boot)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the folder. Raises HostError if another run has it, or if the folder cannot be made."""
        if self.dry_run:
            yield
            return
        path = os.path.join(self.folder, LOCK)
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e) or "name another folder: --state DIR") from None
        try:
            if not locked_within(fd, 0.0, take=fcntl.flock):
                raise HostError(f"{self.folder}: another run of fairlead idle is under way")
            yield
        finally:
            os.close(fd)


class ClockReading(Struct, frozen=True):
    """Holds the system clock and CLOCK_BOOTTIME of one moment, in seconds."""

    unix: float
    boot: float
    boot_id: str


def _evidence(job: RunningJob, judgement: JobJudgement) -> str:
    classes = ",".join(filter(None, (judgement.spared, *judgement.possible)))
    hours = judgement.idle_gpus * judgement.idle_seconds / 3600
    return f"{judgement.why}; {hours:.1f} GPU-hours; could not be excluded: {classes or 'none'}"


def message_text(step: str, job: RunningJob, judgement: JobJudgement, options: IdleOptions) -> str:
    """Return the text for the owner of a job. It has no text of any user in it."""
    begin = f"fairlead: job {job.job} has {judgement.idle_gpus} idle GPUs: {judgement.why}."
    keep = f"To keep it: scontrol update JobId={job.job} Comment=fairlead:keep ({options.keep_hours:g} h)."
    wrong = f"If it worked all the time: scontrol update JobId={job.job} Comment=fairlead:work. Nothing is sent after that."
    if step == "ask":
        next_ = (
            f"In {options.ask_minutes:g} min the site may end or requeue it."
            if options.mode == "act" and options.act_command
            else f"If you do not need it: scancel {job.job}."
        )
        return f"{begin} Do you still need it? {keep} {wrong} {next_}"
    return f"{begin} {keep} {wrong}"
