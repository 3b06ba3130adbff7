"""Measures several nodes in one run: submits one job for each node, waits a limited time for the jobs, and stores their results.

If the run ends early (Ctrl-C, a full disk, a bug), it cancels its jobs. Jobs remain only after SIGKILL, or while slurmctld does
not answer. They end at their own time limit, and the run can be resumed by its name.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from fairlead.errors import HostError, SlurmError, SlurmUnavailable, next_step
from fairlead.measure import job_output
from fairlead.measure.acceptance_plan import AcceptancePlan, PlannedNode, gpu_kind
from fairlead.measure.job_script import ToolStep
from fairlead.measure.results_store import RAW_MAX, ResultStore, StoredResult
from fairlead.measure.slurm_jobs import SUSPENDED, WAITING, AcceptanceJob, AcceptanceJobs, blocked, by_node
from fairlead.measure.stop_signals import stopped_by_signals
from fairlead.measure.tool import MeasuredOutcome, ToolReading
from fairlead.measure.tools import load
from fairlead.model.plain_text import one_line
from fairlead.slurm.client import NodeState

LATE_SECONDS = 20.0  # how long after a job's end its output may reach this host; a network file system delays it
OVER_SECONDS = 600.0  # a job is given up this long after its time limit, because its processes cannot be killed
SILENT_SECONDS = 900.0  # how long slurmctld may give no answer, or Slurm's commands may fail
ASK_AGAIN_SECONDS = 3.0
LIMIT_SLACK_SECONDS = 5  # a job that met its own time limit has run at most so much shorter, as squeue counts it
WAIT_REPORT_SECONDS = 5.0  # a job that waits a shorter time gets no line of progress
NODES_SECONDS = 10.0  # between two readings of the nodes' states
ARGUMENTS_MAX = 1 << 16  # bytes of a command line that are read
FILE_MAX = 8 << 20  # bytes of one job's output that are read; the tools write far less

#: States in which a job can end, and the meaning of each. No such state says anything about the node's speed.
ENDS = {
    "NODE_FAIL": "the node failed while the job ran",
    "BOOT_FAIL": "the node did not boot for the job",
    "PREEMPTED": "the job was preempted",
    "OUT_OF_MEMORY": "the job ran out of memory",
    "DEADLINE": "the job met its deadline",
    "REVOKED": "the job was revoked",
    "TIMEOUT": "the job met its time limit",
    "COMPLETED": "the job ended",
    "FAILED": "the job failed",
    "": "slurmctld does not know the job any more",
}


Answer = TypeVar("Answer")


class NodeProgress(Struct, kw_only=True):
    """Holds how far a node is in the run. since, running, suspended, refused, ended: when its job was submitted (or found again),
    when it was first seen running, suspended and ended, and when scancel first refused to end it, in monotonic seconds. used: how
    many seconds it ran, as Slurm says. missing: how often in a row slurmctld did not have the job."""

    target: PlannedNode
    job: int | None = None
    since: float = 0.0
    running: float = 0.0
    suspended: float = 0.0
    refused: float = 0.0
    ended: float = 0.0
    used: int | None = None
    state: str = ""
    reason: str = ""
    missing: int = 0
    done: bool = False


class AcceptanceRun:
    """Runs the plan. ``tell`` is called with each line of progress."""

    def __init__(self, plan: AcceptancePlan, jobs: AcceptanceJobs, store: ResultStore, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._jobs, self._store, self._tell = jobs, store, tell
        self._nodes_progress = [NodeProgress(target=target) for target in plan.targets]
        self._stop = threading.Event()
        self._nodes: dict[str, NodeState] = {}
        self._nodes_at = 0.0
        self._answered = time.monotonic()
        self._strays = False

    def measure(self, *, resumed: bool = False) -> None:
        """Submit the jobs (or find the jobs of a resumed run), wait for them, and store their results. Raises SlurmError,
        HostError, and KeyboardInterrupt if the run was interrupted."""
        with stopped_by_signals(self._stop):
            try:
                self._find() if resumed else self._submit()
                self._wait()
                self._end_strays()
            except SlurmUnavailable as e:
                if not self._stop.is_set():
                    raise SlurmUnavailable(str(e), hint=f"the jobs go on: fairlead accept --resume {self.plan.run}") from None
            except BaseException:
                self._cancel()
                raise
            if self._stop.is_set():
                self._cancel()
                for progress in self._open():
                    self._close(progress, "the run was interrupted")
                self._store.ended(self.plan.run)
                raise KeyboardInterrupt

    def _cancel(self) -> None:
        try:
            self._jobs.cancel(self.plan.job_name)
        except SlurmError as e:
            self._tell(f"its jobs could not be cancelled: {e}; do: scancel --name={self.plan.job_name}")
        else:
            self._tell("its jobs are cancelled")

    def _end_strays(self) -> None:
        """End the jobs that this run has in Slurm without knowing them: sbatch got no answer, and slurmctld took the job."""
        if self._strays and not self._stop.is_set():
            with suppress(SlurmError):
                if any(not job.over for job in self._jobs.seen(self.plan.job_name)):
                    self._jobs.cancel(self.plan.job_name)

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """Return what Slurm answers. If its commands fail, ask again, for a quarter of an hour. Raises SlurmUnavailable."""
        self._answered = time.monotonic()
        while True:
            try:
                return ask()
            except SlurmError as e:
                self._bear(e)
            self._stop.wait(ASK_AGAIN_SECONDS)

    def _bear(self, error: SlurmError) -> None:
        """Report that Slurm's commands fail. Raises SlurmUnavailable if the run was stopped, or if they have failed for a quarter
        of an hour. One failure says nothing about the jobs: slurmctld restarts, or somebody upgrades Slurm's commands."""
        if self._stop.is_set() or time.monotonic() - self._answered > SILENT_SECONDS:
            raise SlurmUnavailable(str(error)) from None
        self._tell(f"waiting for slurmctld: {error}")

    def _open(self) -> list[NodeProgress]:
        return [progress for progress in self._nodes_progress if not progress.done]

    # -- submitting -------------------------------------------------------------------------------

    def _submit(self) -> None:
        self._asked(self._read_node_states)
        for progress in self._nodes_progress:
            if self._stop.is_set():
                return
            node = progress.target.node
            self._store.submitted(self.plan.run, node, progress.target.class_name, None)
            if why := self._blocked(node):
                self._close(progress, f"not submitted: {why}")
                continue
            path = f"{self.plan.base(progress.target)}.sh"
            self._write(path, self.plan.script(progress.target))
            try:
                progress.job = self._submit_job(path, progress.target)
            except SlurmUnavailable:
                raise
            except SlurmError as e:
                if not self._stop.is_set():
                    self._close(progress, f"not submitted: {e}")
                continue
            progress.since = time.monotonic()
            self._store.submitted(self.plan.run, node, progress.target.class_name, progress.job)
        count = sum(progress.job is not None for progress in self._nodes_progress)
        self._tell(f"run {self.plan.run}: {count} jobs submitted, scripts and outputs in {self.plan.folder}")

    def _submit_job(self, path: str, target: PlannedNode) -> int:
        """Submit the job of a node, and return its id. If sbatch gets no answer, slurmctld may have the job all the same. Raises
        SlurmError, SlurmUnavailable."""
        self._answered, name = time.monotonic(), self.plan.job_name
        while True:
            try:
                return self._jobs.submit(
                    path, target.node, name=name, minutes=target.minutes, more=target.sbatch, folder=self.plan.folder
                )
            except SlurmUnavailable as e:
                self._bear(e)
            self._strays, began = True, self._answered
            self._stop.wait(ASK_AGAIN_SECONDS)
            if job := by_node(self._asked(lambda: self._jobs.seen(name))).get(target.node):
                return job.id
            self._answered = began

    def _write(self, path: str, text: str) -> None:
        # The folder is shared with the nodes. A file that already has this name may be a link to a file of this host.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
                file.write(text)
        except OSError as e:
            hint = next_step(e) or "--folder names a folder that this host and the nodes share"
            raise HostError(f"{path}: {e.strerror}", hint=hint) from None

    def _find(self) -> None:
        """Resume a run that was killed. Nodes that were measured are left alone, and the job of each other node is searched."""
        known = {n: (j, w) for n, j, w in self._store.read("SELECT node, job, why FROM node WHERE run = ?", (self.plan.run,))}
        there, self._strays = by_node(self._asked(lambda: self._jobs.seen(self.plan.job_name))), True
        for progress in self._nodes_progress:
            node = progress.target.node
            job, why = known.get(node, (None, ""))
            if node in known and why != "not measured":
                progress.done = True
                continue
            progress.job, progress.since = job or (there[node].id if node in there else None), time.monotonic()
            self._store.submitted(self.plan.run, node, progress.target.class_name, progress.job)
            if progress.job is None and not self._report(progress).node:  # else it was submitted, and slurmctld has forgotten it
                self._close(progress, "the run ended before its job was submitted")
        self._tell(f"run {self.plan.run}: {len(self._open())} jobs found again")

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self) -> None:
        began = self._answered = time.monotonic()
        while self._open() and not self._stop.is_set():
            try:
                self._step({job.id: job for job in self._jobs.seen(self.plan.job_name)})
                self._answered = time.monotonic()
            except SlurmError as e:
                self._bear(e)
            self._stop.wait(min(5.0, 0.3 + (time.monotonic() - began) / 60))

    def _step(self, seen: dict[int, AcceptanceJob]) -> None:
        now = time.monotonic()
        if now - self._nodes_at > NODES_SECONDS and any(not progress.running for progress in self._open()):
            self._read_node_states()
        for progress in self._open():
            job = seen.get(progress.job or 0)
            progress.missing = 0 if job is not None else progress.missing
            if progress.ended or job is None or job.ended:
                self._ended(progress, job, now)
            elif job.state in WAITING:
                self._waiting(progress, job, now)
            elif job.state in SUSPENDED:
                self._suspended(progress, job, now)
            else:
                self._running(progress, job, now)

    def _running(self, progress: NodeProgress, job: AcceptanceJob, now: float) -> None:
        target = progress.target
        if not progress.running:
            progress.running = now
            self._tell(f"{target.node}: job {job.id} runs, {target.minutes} min at most")
        if progress.suspended:
            progress.running, progress.suspended = progress.running + now - progress.suspended, 0.0
        if job.over and (read := self._report(progress)).done and not read.cut:
            progress.state = "COMPLETED"  # an epilog may take long, or wait for ever; the script itself has come to its end
            self._collect(progress, read)
        elif now - progress.running > target.minutes * 60 + OVER_SECONDS:
            self._give_up(progress, job, f"job {job.id} is {job.state} beyond its time limit", now)

    def _suspended(self, progress: NodeProgress, job: AcceptanceJob, now: float) -> None:
        """Wait until somebody lets the job go on. The time does not count for its time limit."""
        if not progress.suspended:
            progress.suspended, progress.running = now, progress.running or now
            self._tell(f"{progress.target.node}: job {job.id} is suspended")
        if now - progress.suspended > self.plan.max_wait_seconds:
            self._give_up(progress, job, f"job {job.id} was suspended for {self.plan.max_wait_seconds:g} s", now)

    def _waiting(self, progress: NodeProgress, job: AcceptanceJob, now: float) -> None:
        if progress.running:  # somebody has requeued it
            progress.running, progress.suspended, progress.since = 0.0, 0.0, now
        if job.reason != progress.reason and now - progress.since > WAIT_REPORT_SECONDS:
            progress.reason = job.reason
            self._tell(f"{progress.target.node}: job {job.id} waits: {job.reason or job.state}")
        why = self._blocked(progress.target.node)
        late = now - progress.since > self.plan.max_wait_seconds
        if why or late:
            waited = f"did not start in {self.plan.max_wait_seconds:g} s ({job.reason or job.state})"
            self._give_up(progress, job, f"job {job.id} {f'waited while {why}' if why else waited}", now)

    def _give_up(self, progress: NodeProgress, job: AcceptanceJob, why: str, now: float) -> None:
        """End a job, and close its node. If scancel refuses, try it again at each look, for a quarter of an hour, because the
        other nodes of the run go on."""
        words = "it is cancelled"
        try:
            self._jobs.cancel_one(job.id, self.plan.job_name)
        except SlurmUnavailable:
            raise
        except SlurmError as e:
            if not progress.refused:
                progress.refused = now
                self._tell(f"{progress.target.node}: job {job.id} cannot be cancelled yet: {e}")
            if now - progress.refused < SILENT_SECONDS:
                return
            words = f"it cannot be cancelled ({e}); do: scancel {job.id}"
        self._close(progress, f"{why}; {words}")

    def _ended(self, progress: NodeProgress, job: AcceptanceJob | None, now: float) -> None:
        """Collect the output of a job that has ended, or that slurmctld has forgotten. The output may reach this host some
        seconds later."""
        if not progress.ended:
            if job is None:
                progress.missing += 1
                if progress.missing < 3:
                    return
            progress.ended = now
            accounted = self._jobs.accounted(progress.job) if job is None else (job.state, job.used_seconds)
            progress.state, progress.used = accounted
        read = self._report(progress)
        if read.done or read.cut or now - progress.ended > (LATE_SECONDS if progress.state in ("COMPLETED", "") else 2.0):
            self._collect(progress, read)

    def _read_node_states(self) -> None:
        self._nodes = {n.name: n for n in self._jobs.nodes([progress.target.node for progress in self._nodes_progress])}
        self._nodes_at = time.monotonic()

    def _blocked(self, node: str) -> str:
        """Return why no job starts on the node, or "" if no reason is known."""
        state = self._nodes.get(node)
        if state is None:
            return "slurmctld has no such node"
        why = blocked(state)
        return f"the node is in state {why} and starts no job" if why else ""

    # -- reading ----------------------------------------------------------------------------------

    def _report(self, progress: NodeProgress) -> job_output.JobOutput:
        base = self.plan.base(progress.target)
        said = [_written(path) for path in (f"{base}.out", f"{base}.err")]
        cut = any(len(each) >= FILE_MAX for each in said)
        return job_output.parse(self.plan.mark, *(each.decode("utf-8", "replace") for each in said), cut=cut)

    def _collect(self, progress: NodeProgress, read: job_output.JobOutput) -> None:
        target = progress.target
        if not read.node:
            self._close(progress, self._no_output(progress))
            return
        if read.node != target.node:
            self._close(progress, f"its output says that it is of another node: {one_line(read.node, job_output.NAME_MAX)}")
            return
        ended = ENDS.get(progress.state, f"the job ended as {progress.state}")
        in_full = progress.used is not None and progress.used >= target.minutes * 60 - LIMIT_SLACK_SECONDS
        if progress.state == "TIMEOUT" and not in_full:
            ended = "Slurm ended the job early: its time limit was shortened, or its reservation ended"
        if progress.state.startswith("CANCELLED"):
            ended = "the job was cancelled by somebody"
        if read.cut:
            ended = f"its output is longer than {FILE_MAX >> 20} MiB, and the rest is not read"
        tools, results = load(), []
        for step in target.steps:
            ran = read.ran.get(step.name, job_output.ToolRun())
            said = job_output.said(tools[step.name], step, ran, target.gpus, ended)
            if ran.begun and ran.status is None and progress.state == "TIMEOUT" and target.roomy and in_full:
                said = job_output.hung(tools[step.name], step, ran)
            results.append(_result(step, ran, said))
        gpus = read.gpus
        driver = next((g.driver for g in gpus), "") or next((r.versions["driver"] for r in results if "driver" in r.versions), "")
        kind = gpu_kind([g.name for g in gpus])
        known = all(r.outcome in (MeasuredOutcome.PASS, MeasuredOutcome.WARN, MeasuredOutcome.ABSENT) for r in results)
        self._store.measured(
            self.plan.run,
            target.node,
            MeasuredOutcome.UNKNOWN,
            "not judged yet" if known else "not judged yet; see its tools",
            kind=kind,
            driver=driver,
            gpus=gpus,
            results=results,
        )
        self._finish(progress, "measured" if read.done and not read.cut else ended)

    def _no_output(self, progress: NodeProgress) -> str:
        """Return why a job has no output."""
        ended = ENDS.get(progress.state, f"it ended as {progress.state}")
        if progress.state == "COMPLETED":
            return (
                f"job {progress.job} ended, but its output is not in {self.plan.folder}: "
                "do the nodes share that folder? see --folder"
            )
        if progress.state.startswith("CANCELLED"):
            with suppress(SlurmError):
                self._read_node_states()
            why = self._blocked(progress.target.node)
            return f"job {progress.job} was cancelled before it began" + (f"; {why}" if why else " by somebody")
        return f"job {progress.job} gave no output: {ended}"

    def _close(self, progress: NodeProgress, why: str) -> None:
        """Store ``why`` for a node that was not measured."""
        self._store.measured(
            self.plan.run, progress.target.node, MeasuredOutcome.UNKNOWN, why, kind="", driver="", gpus=(), results=()
        )
        self._finish(progress, why)

    def _finish(self, progress: NodeProgress, said: str) -> None:
        progress.done = True
        done = sum(s.done for s in self._nodes_progress)
        self._tell(f"[{done}/{len(self._nodes_progress)}] {progress.target.node}: {said}")


def _written(path: str) -> bytes:
    """Return the first FILE_MAX bytes of a job's output file. Return nothing if it is no plain file, because a node may have put
    a link or a pipe there."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(FILE_MAX) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _result(step: ToolStep, ran: job_output.ToolRun, said: ToolReading) -> StoredResult:
    return StoredResult(
        tool=step.name,
        command=step.command,
        outcome=said.outcome,
        why=said.why,
        notes=said.notes,
        seconds=ran.seconds,
        versions=said.versions,
        figures=said.figures,
        out=ran.out[:RAW_MAX],
        err=ran.err[:RAW_MAX],
    )


def alive(pid: int, host: str, began: float, run: str) -> bool:
    """Say whether the process of a run still lives. For a process on another host return True, because nobody here can know.

    A process that resumed the run began after the run did. It is known by the name of the run in its command line."""
    if host != os.uname().nodename:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        if words[0] in (b"Z", b"X"):  # it was killed, and its parent has not asked for its exit status
            return False
        ticks = int(words[19])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if run.encode() in file.read(ARGUMENTS_MAX):
                return True
    except (OSError, IndexError, ValueError):
        return False
    with open("/proc/uptime", encoding="ascii") as file:
        booted = time.time() - float(file.read().split()[0])
    return booted + ticks / os.sysconf("SC_CLK_TCK") <= began + 5  # otherwise a later process has the same pid
