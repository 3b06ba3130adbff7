"""Collects what jobs used: finds ended jobs, asks their nodes, stores the records, and writes AdminComment. One round at a time.

A round that is killed at any moment is continued by the next one: each step leaves the store whole, and each step may be done
twice. A node that does not answer is asked again with longer and longer waits, for 24 hours after the end of the job, and
``TRIES_MIN`` times in any case: after the controller was off, or an older backup was restored, these 24 hours are over.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from fairlead.controller import round_clock
from fairlead.controller.accounting import Accounting, WritesNothing
from fairlead.controller.job_store import DAY_SECONDS, FOREIGN, JobStore, StoredRun
from fairlead.controller.record_pull import NodeRecords, nodes_to_ask, of_nodes, records_of_node
from fairlead.controller.record_reader import RecordReader
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.jobstats_payload import is_own, payload
from fairlead.jobs.usage_merge import JobReport, merged, nearest, run_key, unfit
from fairlead.jobs.usage_record import UsageRecord
from fairlead.model.nodelist import fold

FIRST_SECONDS = DAY_SECONDS  # how far back the first round looks
OVERLAP_SECONDS = 600  # slurmdbd may learn of an end so much later
WINDOW_SECONDS = 6 * 3600  # the longest time that one sacct is asked for
WAIT_SECONDS, WAIT_MAX_SECONDS = 60, 3600  # before a node is asked again: doubled each time
GIVE_UP_SECONDS = DAY_SECONDS
TRIES_MIN = 24  # with the waits above, they take 19 hours
PARTIAL_SECONDS = 900  # AdminComment of a job with missing nodes is written so long after its end, and again when they answer
CLOCK = "clock"  # the key of the clock as the last round saw it
RUNS_AT_ONCE = 2000
WRITES_AT_ONCE = 1500


class Round(Struct, kw_only=True):
    """Counts what one round did. waiting: the nodes that have not given a record yet."""

    found: int = 0
    asked: int = 0
    complete: int = 0
    records: int = 0
    set_aside: int = 0
    written: int = 0
    foreign: int = 0
    waiting: tuple[str, ...] = ()


class Collection:
    """Collects for one cluster. nodes: the nodes that have an agent, or None for all nodes. say: prints a line. days: how long
    runs are kept. write: whether AdminComment is written."""

    def __init__(
        self,
        store: JobStore,
        accounting: Accounting,
        source: NodeRecords,
        *,
        say: Callable[[str], object],
        nodes: frozenset[str] | None = None,
        days: int = 400,
        write: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._accounting, self._source = store, accounting, source
        self._say, self._nodes, self._days, self._write, self._clock = say, nodes, days, write, clock
        self._has_accounting = False

    def round(self) -> Round:
        """Do one round. Raises HostError and DataError of the store; what Slurm or a node does not give is only said."""
        done = Round()
        now = self._clock()
        clock = round_clock.decoded(self._store.kept(CLOCK))
        if step := round_clock.step_seconds(clock, now):
            self._say(round_clock.step_text(step, self._days))
        clock = round_clock.after_round(clock, now, self._days)
        self._store.keep(CLOCK, round_clock.encoded(clock))
        self._find(done)
        with RecordReader() as reader:
            while runs := self._store.due_runs(self._clock(), RUNS_AT_ONCE):
                self._ask(runs, reader, done)
        if self._write and self._has_accounting:
            self._comment(done)
        if now >= clock.forgets_unix:
            self._store.prune(int(now) - self._days * DAY_SECONDS)
        return done

    # -- finding jobs ------------------------------------------------------------------------------

    def _find(self, done: Round) -> None:
        now = int(self._clock())
        cursor = int(self._store.kept("cursor") or now - FIRST_SECONDS)
        if cursor > now + OVERLAP_SECONDS:  # of a clock that was ahead, or this one is behind: jobs end at its times now
            cursor = now - FIRST_SECONDS
        mistakes: list[str] = []
        try:
            since = cursor - OVERLAP_SECONDS
            while since < now:
                until = min(since + WINDOW_SECONDS, now + 1)
                done.found += self._take(self._with_kinds(self._accounting.ended(since, until, mistakes)))
                self._store.keep("cursor", str(min(until, now)))
                since = until
            self._say_once("sacct", "")
            self._has_accounting = True
        except SlurmError as e:
            self._say_once("sacct", f"{e}; ended jobs are read from slurmctld, and no AdminComment is written")
            try:
                done.found += self._take(self._accounting.just_ended(mistakes))
                self._say_once("squeue", "")
            except SlurmError as other:
                self._say_once("squeue", f"{other}; no ended job is found until slurmctld answers")
        self._say_once("rows", "; ".join(mistakes[:5]))

    def _with_kinds(self, runs: Sequence[JobRun]) -> list[JobRun]:
        """Return the runs with their kinds. Slurm is asked only for new jobs with GPUs."""
        new = sorted({run.job for run in runs if run.gpus and self._is_ours(run) and not self._store.has(run)})
        kinds = self._accounting.kinds(new)
        return [replace(run, kind=kinds.get(run.job, "")) for run in runs]

    def _is_ours(self, run: JobRun) -> bool:
        return self._nodes is None or not self._nodes.isdisjoint(run.nodes)

    def _take(self, runs: Sequence[JobRun]) -> int:
        return self._store.add_runs([run for run in runs if self._is_ours(run)], int(self._clock()))

    # -- asking nodes ------------------------------------------------------------------------------

    def _ask(self, stored: list[StoredRun], reader: RecordReader, done: Round) -> None:
        runs = [each.run for each in stored]
        had = [self._store.records(run) for run in runs]
        wanted = of_nodes(runs, {at: self._to_ask(run, had[at]) for at, run in enumerate(runs)})
        got: dict[int, list[UsageRecord]] = {}
        for nodes, jobs in nodes_to_ask(wanted):
            for node, (answer, trouble) in self._source.fetch(nodes, jobs).items():
                found, why = records_of_node(reader, node, answer, trouble, wanted[node])
                self._say_once(f"node {node}", f"{node}: {why}" if why else "")
                for record in found:
                    got.setdefault(record.job, []).append(record)
        waiting: set[str] = set()
        with self._store.changes():  # one wait for the disk, and not some thousand
            for at, each in enumerate(stored):
                report = self._merge(each.run, (*had[at], *got.get(each.run.job, ())), done)
                waiting |= set(self._to_ask(each.run, report.records))
                self._note(each, report, done)
        done.waiting = tuple(sorted(waiting | set(done.waiting)))

    def _to_ask(self, run: JobRun, records: Sequence[UsageRecord]) -> list[str]:
        """Return the nodes of a run that have an agent, and no record that has ended."""
        ended = {record.node for record in records if record.end_unix is not None}
        return [node for node in run.nodes if node not in ended and (self._nodes is None or node in self._nodes)]

    def _merge(self, run: JobRun, records: Sequence[UsageRecord], done: Round) -> JobReport:
        """Store the records of a run. A record of another run of the same job is left to that run."""
        now = self._clock()
        known = [each.run for each in self._store.runs_of(str(run.job)) if each.run.job == run.job]
        own = [r for r in records if "another time" not in unfit(run, r, now) and run_key(nearest(r, known)) == run_key(run)]
        report, aside = merged(run, own, now)
        for each in aside:
            self._say_once(
                f"aside {run.job} {each.node}", f"job {run.label}: the record of {each.node} {each.why}: it is set aside"
            )
        self._store.put_records(run, report.records, aside)
        done.records += len(report.records)
        done.set_aside += len(aside)
        return report

    def _note(self, each: StoredRun, report: JobReport, done: Round) -> None:
        """Note when to ask again, and whether AdminComment is to be written."""
        run, now = each.run, int(self._clock())
        ended = run.end_unix if run.end_unix is not None else now
        left = self._to_ask(run, report.records)
        done.asked += 1
        done.complete += not left
        wait = min(WAIT_MAX_SECONDS, WAIT_SECONDS << min(each.tries, 6))
        tries = each.tries + 1
        again = now + wait if left and (now < ended + GIVE_UP_SECONDS or tries < TRIES_MIN) else None
        if left and again is None:
            self._say(f"job {run.label}: no record from {fold(left)} in {tries} tries: given up")
        due = bool(report.records) and (not left or again is None or now >= ended + PARTIAL_SECONDS)
        self._store.asked(run, again, comment_due=due)

    # -- AdminComment ------------------------------------------------------------------------------

    def _comment(self, done: Round) -> None:
        for each in self._store.runs_to_comment(WRITES_AT_ONCE):
            try:
                self._comment_one(each, done)
            except (WritesNothing, SlurmUnavailable) as e:
                self._say_once("comment", f"{e}; records are kept, and AdminComment is written when that is solved")
                return
            except SlurmError as e:
                self._say_once(f"comment {each.run.label}", f"job {each.run.label}: {e}")
                if (each.run.end_unix or 0) < self._clock() - 2 * GIVE_UP_SECONDS:
                    self._store.commented(each.run, None)
            else:
                self._say_once("comment", "")

    def _comment_one(self, each: StoredRun, done: Round) -> None:
        run = each.run
        if self._store.runs_of(run.label)[0].run.begin_unix != run.begin_unix:
            self._store.commented(run, None)  # the job was requeued, and AdminComment is that of its last run
            return
        text = payload(merged(run, self._store.records(run), self._clock())[0])
        if each.comment == digest(text):
            self._store.commented(run, None)
            return
        there = self._accounting.comment(run.label)
        if there and there != text and not is_own(there) and digest(there) != each.comment:
            self._say(f"job {run.label}: its AdminComment was written by somebody else: it is left as it is")
            self._store.commented(run, FOREIGN)
            done.foreign += 1
            return
        if there != text:
            self._accounting.write_comment(run.label, text)
            done.written += 1
        self._store.commented(run, digest(text))

    def _say_once(self, about: str, text: str) -> None:
        """Say something that goes on, once. "" ends it, so that it is said again when it comes back."""
        key = f"said {about}"
        if self._store.kept(key) != text:
            self._store.keep(key, text)
            if text:
                self._say(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
