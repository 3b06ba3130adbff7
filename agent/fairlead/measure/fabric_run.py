"""Measures the fabric between nodes in one run: keeps the nodes with one job, runs one round of pairs after the other, and stores
each figure.

If the run ends early (Ctrl-C, a full disk, a bug), it ends its steps and cancels its job. After SIGKILL the job goes on until its
time limit, and the run can be resumed by its name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import TypeVar

from msgspec.structs import replace

from fairlead.errors import FairleadError, HostError, SlurmError, SlurmUnavailable
from fairlead.measure import collective, job_output
from fairlead.measure.acceptance_run import ENDS, NODES_SECONDS, SILENT_SECONDS
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.measure.fabric_plan import FabricPlan
from fairlead.measure.fabric_store import FabricStore
from fairlead.measure.job_script import GRACE_SECONDS, ToolStep
from fairlead.measure.pairs import port_report
from fairlead.measure.pairs.pair_table import PairValue, figure_text
from fairlead.measure.pairs.round_plan import PlannedRound, next_round
from fairlead.measure.slurm_jobs import SUSPENDED, WAITING, AcceptanceJob, blocked
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
ASK_SECONDS = 60.0  # how long Slurm's commands may fail while the rounds run; then the run ends, and is resumed
ASK_AGAIN_SECONDS = 1.0
SUSPENDED_MAX = 4  # how often the job may be suspended; where Slurm does that for ever, no round has an end
STEPS_SECONDS = 120.0  # how long the steps of a killed process may take to end; Slurm sends SIGKILL after KillWait (30 s)
PROGRESS_SECONDS = 10.0
TRIES = 2  # how often a pair is measured that gave no figure for a reason that is not its nodes'
WHY_MAX = 300

#: The status of a task that a signal of srun has ended (SIGTERM, SIGKILL), and how srun reports that a command was not found.
SIGNALLED, NOT_FOUND = (143, 137), "Exited with exit code 127"


Answer = TypeVar("Answer")


class FabricRun:
    """Runs the plan. ``tell`` is called with each line of progress."""

    def __init__(self, plan: FabricPlan, jobs: FabricJobs, store: FabricStore, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._jobs, self._store, self._tell = jobs, store, tell
        self._stop = threading.Event()
        self._job = 0
        self._suspended = 0
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
                if not self._stop.is_set():
                    goes_on = "the job goes on" if self._job else "its job goes on if slurmctld has taken it"
                    hint = f"{goes_on}: fairlead accept --fabric --resume {self.plan.run}"
                    raise SlurmUnavailable(str(e), hint=hint) from None
            except BaseException:
                self._cancel()
                raise
            self._cancel()
            if self._stop.is_set():
                raise KeyboardInterrupt(f"fairlead accept --fabric --resume {self.plan.run}")
            self._store.ended(self.plan.run)

    def _cancel(self) -> None:
        try:
            self._jobs.cancel(self.plan.job_name)
        except SlurmError as e:
            self._tell(f"its job could not be cancelled: {e}; do: scancel --name={self.plan.job_name}")

    def _asked(self, ask: Callable[[], Answer], seconds: float = ASK_SECONDS) -> Answer:
        """Return what Slurm answers. If its commands fail, ask again for some time, because slurmctld may restart. Raises
        SlurmError."""
        began, said = time.monotonic(), ""
        while True:
            try:
                return ask()
            except SlurmError as e:
                if self._stop.is_set() or time.monotonic() - began > seconds:
                    raise SlurmUnavailable(str(e)) from None
                if str(e) != said:
                    said = str(e)
                    self._tell(f"waiting for slurmctld: {said}")
            self._stop.wait(ASK_AGAIN_SECONDS)

    # -- the job ----------------------------------------------------------------------------------

    def _hold(self, *, resumed: bool) -> None:
        """Submit the job that keeps the nodes, or find the job of a run that was killed. Wait until it runs."""
        found = self._asked(lambda: self._jobs.holding(self.plan.job_name)) if resumed else None
        if found is None:
            self._submit()
        else:
            self._job = found.id
            self._store.job(self.plan.run, self._job)
        self._wait_until_running()
        if found is not None and self._job == found.id and not self._stop.is_set():
            self._end_steps()

    def _submit(self) -> None:
        """Submit the job. A node that starts no job is left out, because all others would wait for it. If it is down and has
        taken part, it may have spoiled figures, as each node that goes down in the run."""
        plan = self.plan
        resting = self._resting()
        taken_part = {node for v in self._store.load(plan.run).values for node in v.pair}
        down = {node for node, (states, _) in resting.items() if "DOWN" in states and node in taken_part}
        self._store.left_out(plan.run, {node: why for node, (_, why) in resting.items() if node not in down})
        for node, (_, why) in resting.items():
            if node in down:
                self._store.gone(plan.run, node, why)
            self._tell(f"{node}: {'' if node in down else 'left out: '}{why}")
        gone = self._store.load(plan.run).gone
        nodes = [node for node in plan.nodes if node not in gone and node not in resting]
        if len(nodes) < 2:
            raise HostError(
                f"{len(nodes)} of {len(plan.nodes)} nodes can start a job, and a pair needs two",
                hint=f"fairlead accept --fabric --resume {plan.run} goes on when they can",
            )
        self._job = self._jobs.hold_nodes(nodes, name=plan.job_name, minutes=plan.minutes, more=plan.sbatch)
        self._store.job(plan.run, self._job)
        self._tell(f"run {plan.run}: job {self._job} keeps {len(nodes)} nodes, {plan.minutes} min at most")

    def _resting(self) -> dict[str, tuple[Set[str], str]]:
        """Return the nodes of the run that start no job, with their states, and why."""
        nodes = [node for node in self.plan.nodes if node not in self._store.load(self.plan.run).gone]
        states = {state.name: state for state in self._asked(lambda: self._jobs.nodes(nodes))}
        found: dict[str, tuple[Set[str], str]] = {}
        for node in nodes:
            state = states.get(node)
            if state is None:
                found[node] = frozenset(), "slurmctld has no such node in any partition"
            elif words := blocked(state):
                found[node] = state.states, f"slurmctld has it {words}, and it starts no job"
        return found

    def _wait_until_running(self) -> None:
        """Wait until the job runs. If it waits for a node that starts no job any more, submit one without it in its place."""
        plan, began, said = self.plan, time.monotonic(), ""
        looked = began
        while not self._stop.is_set():
            job = self._asked(lambda: self._jobs.state(self._job), SILENT_SECONDS)
            if job is None or job.over:
                raise self._ended_error(job)
            if job.state not in WAITING | SUSPENDED:
                return
            why = "is suspended" if job.state in SUSPENDED else f"waits: {one_line(job.reason or job.state, WHY_MAX)}"
            if why != said and (job.reason or job.state != "PENDING"):
                said = why
                self._tell(f"job {self._job} {why}")
            if time.monotonic() - began > plan.max_wait_seconds:
                raise SlurmError(
                    f"job {self._job} did not run in {plan.max_wait_seconds:g} s ({why}); it is cancelled",
                    hint=f"fairlead accept --fabric --resume {plan.run} submits another one",
                )
            if job.state in WAITING and time.monotonic() - looked > NODES_SECONDS:
                looked = time.monotonic()
                if self._resting().keys() - self._store.load(plan.run).left_out.keys():
                    self._jobs.cancel_one(self._job, plan.job_name)
                    self._submit()
            self._stop.wait(min(5.0, 0.3 + (time.monotonic() - began) / 30))

    def _ended_error(self, job: AcceptanceJob | None) -> FairleadError:
        """Return the error of a run whose job has ended."""
        if self._store.load(self.plan.run).ended is not None:
            return HostError(f"job {self._job} has ended: fairlead accept --cancel {self.plan.run} ended the run")
        why = ENDS.get(job.state if job is not None else "none", "somebody cancelled it, or it met its time limit")
        return HostError(
            f"job {self._job} has ended: {why}",
            hint=f"fairlead accept --fabric --resume {self.plan.run} goes on with another job",
        )

    def _end_steps(self) -> None:
        """End the steps that a killed process has left in the job, and wait until they have ended. Their traffic would make the
        pairs of the next round slow."""
        left = self._asked(lambda: self._jobs.steps(self._job, self.plan.job_name))
        words, refused, began = f", {_count(len(left), 'step')} ended" if left else "", "not asked yet", time.monotonic()
        while left and not self._stop.is_set() and time.monotonic() - began < STEPS_SECONDS:
            if refused:
                try:
                    self._jobs.end_steps(left)
                    refused = ""
                except SlurmError as e:  # Slurm also refuses if a step has ended by itself in the meantime
                    refused = f" ({e})"
            self._stop.wait(0.5)
            left = self._asked(lambda: self._jobs.steps(self._job, self.plan.job_name))
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
            if lost := [v for v in record.open_round if set(v.pair) & record.left_out.keys()]:
                self._store.measured(plan.run, [replace(v, why="one of the nodes was left out") for v in lost])
                record = self._store.load(plan.run)
            if record.open_round:
                todo, number, stage = list(record.open_round), record.open_round[0].round, record.open_round[0].stage
                self._tell(f"round {number} ({stage}) goes on: {_count(len(todo), 'pair')}")
            else:
                planned = next_round(plan.pairs, record.values, record.gone, record.left_out)
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
            found = self._measured_without_suspension(todo)
            if self._stop.is_set():
                return
            gone |= self._find_gone({node for v in found if v.gbps is None for node in v.pair} - gone)
            if self._stop.is_set():  # nobody knows which of the nodes went down
                return
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

    def _measured_without_suspension(self, todo: Sequence[PairValue]) -> list[PairValue]:
        """Measure the pairs, and measure them again if the job was suspended meanwhile, because a suspended step looks slow."""
        while True:
            before = self._asked(lambda: self._jobs.suspensions(self._job))
            found = self._measured(todo)
            after = before if self._stop.is_set() else self._asked(lambda: self._jobs.suspensions(self._job))
            if after is None or after == before:
                return found
            self._go_on_after_suspension()

    def _go_on_after_suspension(self) -> None:
        """Wait until the job runs again. Raises HostError if it was suspended too often."""
        self._suspended += 1
        if self._suspended > SUSPENDED_MAX:
            raise HostError(
                f"job {self._job} was suspended {self._suspended} times, and each suspension spoils a round",
                hint="look at PreemptMode of its partition; --partition or --reservation names another place",
            )
        self._tell(f"  job {self._job} was suspended: its pairs are measured again")
        self._wait_until_running()

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
        begun = self.plan.begun in err
        err = "".join(line for line in err.splitlines(keepends=True) if self.plan.begun not in line)
        if output.late and not begun:
            return replace(planned, why=one_line(f"the step did not start: {last_line(err) or 'no answer'}", WHY_MAX))
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
        lost, probes = doubtful, 0
        while lost and probes < PROBES and not self._stop.is_set():
            self._wait_until_known(lost)
            lost = self._without_step(lost)
            probes = probes + 1 if not lost or self._job_runs() else 0
        if self._stop.is_set():
            return frozenset()
        states = {state.name: state for state in self._asked(lambda: self._jobs.nodes(sorted(lost)))} if lost else {}
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
            states = self._asked(lambda: self._jobs.nodes(sorted(nodes)))
            unknown = sorted(state.name for state in states if "UNKNOWN" in state.states)
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

    def _job_runs(self) -> bool:
        """Say whether the job that keeps the nodes runs. If it is suspended, no step starts in it: wait until it runs again, and
        return False. A cancelled job completes for some time, and no step starts in it either. Raises HostError if it has ended.
        """
        job = self._asked(lambda: self._jobs.state(self._job))
        if job is None or job.over:
            raise self._ended_error(job)
        if job.state in WAITING | SUSPENDED:
            self._go_on_after_suspension()
            return False
        return True

    # -- ports ------------------------------------------------------------------------------------

    def _ports(self, *, after: bool) -> Set[str]:
        """Store the counters of all ports, and return the nodes that did not answer. The run goes on without them, because
        counters decide nothing."""
        record = self._store.load(self.plan.run)
        nodes = [node for node in self.plan.nodes if node not in record.gone and node not in record.left_out]
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
