"""Measures the fabric between nodes in one run: keeps the nodes with one job, runs one round of pairs after the other, and stores
each figure.

If the run ends early (Ctrl-C, a full disk, a bug), it ends its steps and cancels its job. After SIGKILL the job goes on until its
time limit, and the run can be resumed by its name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Set

from msgspec.structs import replace

from fairlead.errors import HostError, SlurmError, SlurmUnavailable
from fairlead.measure import collective, job_output
from fairlead.measure.acceptance_run import ENDS
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.measure.fabric_plan import FabricPlan
from fairlead.measure.fabric_store import FabricStore
from fairlead.measure.job_script import GRACE_SECONDS, ToolStep
from fairlead.measure.pairs import port_report
from fairlead.measure.pairs.pair_table import PairValue, figure_text
from fairlead.measure.pairs.round_plan import PlannedRound, next_round
from fairlead.measure.slurm_jobs import WAITING
from fairlead.measure.step_output import StepOutput, run_all
from fairlead.measure.stop_signals import stopped_by_signals
from fairlead.measure.tool import MeasuredOutcome, Tool, last_line
from fairlead.model.nodelist import fold
from fairlead.model.plain_text import one_line

PROBES = 2  # how often a node is asked before it counts as gone
PROBE_SECONDS = 45.0  # a step of a node that does nothing; slurmd has MessageTimeout to answer
UNKNOWN_SECONDS = 400.0  # after SlurmdTimeout (300 s) slurmctld has a node that does not answer as DOWN
UNKNOWN_POLL_SECONDS = 2.0
PORTS_SECONDS = 60.0
STEPS_SECONDS = 120.0  # how long the steps of a killed process may take to end; Slurm sends SIGKILL after KillWait (30 s)
PROGRESS_SECONDS = 10.0
TRIES = 2  # how often a pair is measured that gave no figure for a reason that is not its nodes'
WHY_MAX = 300

#: The status of a task that a signal of srun has ended (SIGTERM, SIGKILL), and how srun reports that a command was not found.
SIGNALLED, NOT_FOUND = (143, 137), "Exited with exit code 127"


class FabricRun:
    """Runs the plan. ``tell`` is called with each line of progress."""

    def __init__(self, plan: FabricPlan, jobs: FabricJobs, store: FabricStore, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._jobs, self._store, self._tell = jobs, store, tell
        self._stop = threading.Event()
        self._job = 0
        self._progress_at = 0.0
        self._tool = Tool(
            summary="",
            command="",
            seconds=plan.seconds,
            read=lambda out, err: collective.read(plan.collective, out, err),
            so_far=collective.so_far,
        )

    def measure(self, *, resumed: bool = False) -> None:
        """Keep the nodes, and measure round after round. Raises SlurmError, HostError, and KeyboardInterrupt if the run was
        interrupted."""
        with stopped_by_signals(self._stop):
            try:
                self._hold(resumed=resumed)
                self._ports(after=False)
                self._rounds()
                while self._find_gone(self._ports(after=True)):  # such a node may have made the last rounds slow
                    self._rounds()
            except SlurmUnavailable as e:
                hint = f"the job goes on: fairlead accept --fabric --resume {self.plan.run}"
                raise SlurmUnavailable(str(e), hint=hint) from None
            except BaseException:
                self._cancel()
                raise
            self._cancel()
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._store.ended(self.plan.run)

    def _cancel(self) -> None:
        try:
            self._jobs.cancel(self.plan.job_name)
        except SlurmError as e:
            self._tell(f"its job could not be cancelled: {e}; do: scancel --name={self.plan.job_name}")

    # -- the job ----------------------------------------------------------------------------------

    def _hold(self, *, resumed: bool) -> None:
        """Submit the job that keeps the nodes, or find the job of a run that was killed. Wait until it runs."""
        plan = self.plan
        found = self._jobs.holding(plan.job_name) if resumed else None
        gone = self._store.load(plan.run).gone
        if found is not None:
            self._job = found.id
            self._end_steps()
        else:
            nodes = [node for node in plan.nodes if node not in gone]
            self._job = self._jobs.hold_nodes(nodes, name=plan.job_name, minutes=plan.minutes, more=plan.sbatch)
            self._tell(f"run {plan.run}: job {self._job} keeps {len(nodes)} nodes, {plan.minutes} min at most")
        self._store.job(plan.run, self._job)
        began, reason = time.monotonic(), ""
        while not self._stop.is_set():
            job = self._jobs.state(self._job)
            if job is not None and job.state not in WAITING and not job.over:
                return
            if job is None or job.over:
                raise SlurmError(
                    f"job {self._job} has ended before it began: {ENDS.get(job.state if job else '', 'it was cancelled')}"
                )
            if job.reason != reason:
                reason = job.reason
                self._tell(f"job {self._job} waits: {one_line(reason or job.state, WHY_MAX)}")
            if time.monotonic() - began > plan.max_wait_seconds:
                raise SlurmError(f"job {self._job} did not start in {plan.max_wait_seconds:g} s ({reason}); it is cancelled")
            self._stop.wait(min(5.0, 0.3 + (time.monotonic() - began) / 30))

    def _end_steps(self) -> None:
        """End the steps that a killed process has left in the job, and wait until they have ended. Their traffic would make the
        pairs of the next round slow."""
        left = self._jobs.steps(self._job, self.plan.job_name)
        words, refused = f", {_count(len(left), 'step')} ended" if left else "", ""
        try:
            self._jobs.end_steps(left)
        except SlurmUnavailable:
            raise
        except SlurmError as e:  # Slurm also refuses if a step has ended by itself in the meantime
            refused = f" ({e})"
        began = time.monotonic()
        while left and not self._stop.is_set() and time.monotonic() - began < STEPS_SECONDS:
            self._stop.wait(0.5)
            left = self._jobs.steps(self._job, self.plan.job_name)
        self._tell(f"run {self.plan.run}: job {self._job} found again{words}")
        if left and not self._stop.is_set():
            raise HostError(
                f"{_count(len(left), 'step')} of the killed run cannot be ended: {left[0]}{refused}",
                hint=f"its job is cancelled; fairlead accept --fabric --resume {self.plan.run} goes on with another job",
            )

    # -- rounds -----------------------------------------------------------------------------------

    def _rounds(self) -> None:
        plan = self.plan
        while not self._stop.is_set():
            record = self._store.load(plan.run)
            if record.open_round:
                todo, number, stage = list(record.open_round), record.open_round[0].round, record.open_round[0].stage
                self._tell(f"round {number} ({stage}) goes on: {_count(len(todo), 'pair')}")
            else:
                planned = next_round(plan.pairs, record.values, record.gone)
                if planned is None:
                    return
                self._store.planned(plan.run, planned)
                self._tell(_announced(planned, plan))
                todo = list(self._store.load(plan.run).open_round)
            self._round(todo, set(record.gone))
            values = self._store.load(plan.run).values
            if values and not any(v.measured for v in values) and not self._stop.is_set():
                hint = "look at accept.pair_command and accept.pair_srun in site.toml"
                raise HostError(f"no pair could be measured: {values[0].why}", hint=hint)

    def _round(self, todo: Sequence[PairValue], gone: set[str]) -> None:
        """Measure the pairs of a round at once. A pair without a figure is measured again if both of its nodes answer."""
        for attempt in range(1, TRIES + 1):
            found = self._measured(todo)
            if self._stop.is_set():
                return
            gone |= self._find_gone({node for v in found if v.gbps is None for node in v.pair} - gone)
            values = [_without_gone(v, gone) for v in found]
            again = [v for v in values if not v.measured and not set(v.pair) & gone and attempt < TRIES]
            self._store.measured(self.plan.run, [v for v in values if v not in again])
            for v in values:
                if v.gbps is None and v not in again:
                    self._tell(f"  {v.node_a} - {v.node_b}{f' rail {v.rail}' if v.rail else ''}: {v.why}")
            if not again:
                break
            self._tell(f"  {_count(len(again), 'pair')} without a figure again, such as: {again[0].why}")
            todo = again
        figures = [v.speed for v in self._store.load(self.plan.run).values if v.round == todo[0].round and v.gbps is not None]
        if figures:
            self._tell(f"  {_count(len(figures), 'figure')}, from {figure_text(min(figures))} to {figure_text(max(figures))}")

    def _measured(self, todo: Sequence[PairValue]) -> list[PairValue]:
        plan = self.plan
        commands = {}
        for v in todo:
            command = self._jobs.step_command(self._job, v.pair, name=plan.job_name, seconds=plan.step_seconds, more=plan.srun)
            commands[f"{v.node_a} {v.node_b} {v.rail}"] = [*command, "/bin/sh", "-c", plan.script(v.rail)]
        done: list[str] = []
        self._progress_at = time.monotonic()

        def progress() -> None:
            if time.monotonic() - self._progress_at > PROGRESS_SECONDS:
                self._progress_at = time.monotonic()
                self._tell(f"  {len(done)} of {len(commands)} steps have ended")

        outputs = run_all(
            commands,
            seconds=plan.step_seconds,
            environment=self._jobs.environment(),
            stopped=self._stop.is_set,
            ended=lambda name, output: done.append(name),
            waiting=progress,
        )
        return [self._value(v, outputs[f"{v.node_a} {v.node_b} {v.rail}"]) for v in todo]

    def _value(self, planned: PairValue, output: StepOutput) -> PairValue:
        """Return the figure of a pair. A run that hung, crashed or computed wrong values has failed. If it could not be started
        or read, nothing was measured."""
        step = ToolStep(name="pair", command="", seconds=self.plan.seconds)
        out, err = output.texts
        if output.cut or (output.late and output.status is None):
            return replace(planned, why="its output is too long" if output.cut else "srun did not end")
        status = 124 if output.late else output.status
        if status in SIGNALLED and NOT_FOUND in err:  # srun then ends the other task, and reports the end of that one
            status = 127
        ran = job_output.ToolRun(out=out, err=err, status=status, seconds=int(output.seconds), begun=status is not None)
        if status == 137 and output.seconds >= self.plan.seconds + GRACE_SECONDS:
            ran = replace(ran, status=124)
        said = job_output.said(self._tool, step, ran, None, last_line(err, out) or "srun did not start")
        why, wanted = one_line(said.why, WHY_MAX), self.plan.ranks(planned.rail)
        if said.outcome in (MeasuredOutcome.PASS, MeasuredOutcome.WARN) and said.figures:
            if wanted and said.ranks not in (None, wanted):
                return replace(planned, why=f"{said.ranks} ranks took part, and {wanted} should: was it built with MPI?")
            return replace(planned, gbps=said.figures[0].value)
        return replace(planned, failed=said.outcome is MeasuredOutcome.FAIL, why=why or str(said.outcome))

    def _find_gone(self, doubtful: Set[str]) -> Set[str]:
        """Return those of the nodes on which no step starts any more. What a step wrote decides nothing, because the other
        node of the pair can have written it. A node is asked again after slurmctld has answered and knows its state, because no
        step starts on any node while slurmctld restarts."""
        lost = doubtful
        for _ in range(PROBES if doubtful else 0):
            self._wait_until_known(lost)
            lost = self._without_step(lost)
            if lost and self._holding_ended():
                raise HostError(
                    f"job {self._job} has ended: somebody cancelled it, or it met its time limit",
                    hint=f"fairlead accept --fabric --resume {self.plan.run} goes on with another job",
                )
        states = {state.name: state for state in self._jobs.nodes(sorted(lost))} if lost else {}
        for node in sorted(lost):
            words = "+".join(sorted(states[node].states)) if node in states else "not known to slurmctld"
            why = f"no step starts on it; slurmctld has it {words}"
            self._store.gone(self.plan.run, node, why)
            self._tell(f"  {node}: {why}")
        return lost

    def _wait_until_known(self, nodes: Set[str]) -> None:
        """Wait until slurmctld knows the state of these nodes. After its restart it does not, until it has asked them. Raises
        SlurmUnavailable if that takes too long."""
        began = time.monotonic()
        while nodes and not self._stop.is_set():
            unknown = sorted(state.name for state in self._jobs.nodes(sorted(nodes)) if "UNKNOWN" in state.states)
            if not unknown:
                return
            if time.monotonic() - began > UNKNOWN_SECONDS:
                raise SlurmUnavailable(f"slurmctld does not know the state of {fold(unknown)}")
            self._stop.wait(UNKNOWN_POLL_SECONDS)

    def _without_step(self, nodes: Set[str]) -> set[str]:
        """Return those of the nodes on which a step that does nothing does not end well. If the run was stopped, return none."""
        commands = {
            node: [*self._jobs.step_command(self._job, [node], name=self.plan.job_name, seconds=60, more=["--mpi=none"]), "true"]
            for node in sorted(nodes)
        }
        outputs = run_all(commands, seconds=PROBE_SECONDS, environment=self._jobs.environment(), stopped=self._stop.is_set)
        return {node for node in nodes if outputs[node].status != 0} if not self._stop.is_set() else set()

    def _holding_ended(self) -> bool:
        """Say whether the job that keeps the nodes does not run any more. A cancelled job completes for some time, and no step
        starts in it, which says nothing about the nodes."""
        job = self._jobs.state(self._job)
        return job is None or job.state != "RUNNING"

    # -- ports ------------------------------------------------------------------------------------

    def _ports(self, *, after: bool) -> Set[str]:
        """Store the counters of all ports, and return the nodes that did not answer. The run goes on without them, because
        counters decide nothing."""
        record = self._store.load(self.plan.run)
        nodes = [node for node in self.plan.nodes if node not in record.gone]
        if self._stop.is_set() or (not after and record.ports[0]):
            return frozenset()
        command = self._jobs.step_command(
            self._job, nodes, name=self.plan.job_name, seconds=int(PORTS_SECONDS), more=["--mpi=none", "--label"]
        )
        script = [*command, "/bin/sh", "-c", port_report.script(self.plan.mark)]
        output = run_all(
            {"ports": script}, seconds=PORTS_SECONDS, environment=self._jobs.environment(), stopped=self._stop.is_set
        )["ports"]
        reports = {n: r for n, r in port_report.parse(self.plan.mark, output.texts[0]).items() if n in nodes}
        self._store.ports(self.plan.run, reports, after=after)
        missing = set(nodes) - set(reports)
        if missing:
            self._tell(f"no counters of the ports of {fold(sorted(missing))}: {last_line(*output.texts[::-1]) or 'no answer'}")
        return missing


def _without_gone(v: PairValue, gone: set[str]) -> PairValue:
    """Return the value, which says nothing about its nodes if one of them went down."""
    lost = sorted(set(v.pair) & gone)
    return replace(v, failed=False, why=f"{', '.join(lost)} went down") if lost and v.gbps is None else v


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _announced(planned: PlannedRound, plan: FabricPlan) -> str:
    rails = f", {len(planned.rails)} rails each" if planned.rails != ("",) else ""
    return f"round {planned.number} ({planned.stage}): {_count(len(planned.pairs), 'pair')}{rails}, {plan.seconds} s at most"
