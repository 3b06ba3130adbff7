"""Runs the agent's main loop: read the node, judge it, decide, order the drain, publish, report, and wait for the next event.

The loop is one thread. It never waits for the NVIDIA driver, because a separate process, the NVML worker, calls the driver. It
never waits for slurmctld, because a separate thread, the courier, talks to slurmctld. A kernel record wakes only the checks
that declared such records. They judge the record with the facts of the last sweep. Every other check waits for the next sweep.
"""

from __future__ import annotations

import gc
import select
import time
from collections.abc import Collection, Sequence
from functools import partial
from signal import SIGHUP, SIGUSR1

from fairlead import __version__
from fairlead.config import Document, load_document
from fairlead.daemon.jobs.gres_listing import GresListing
from fairlead.daemon.jobs.job_watch import JobWatch
from fairlead.daemon.jobs.usage_keeper import UsageKeeper
from fairlead.daemon.loop import history_update, state_link
from fairlead.daemon.loop.agent_lock import alone
from fairlead.daemon.loop.apply_marks import applying, nvml_released
from fairlead.daemon.loop.document_reload import take_over
from fairlead.daemon.loop.kernel_records import KernelLog
from fairlead.daemon.loop.loop_watchdog import LoopWatchdog
from fairlead.daemon.loop.policy_input import after_slurm, policy_input, uptime_of
from fairlead.daemon.loop.readers import Readers
from fairlead.daemon.loop.reapply import Reapply
from fairlead.daemon.loop.return_command import Proving
from fairlead.daemon.loop.schedule import TICK_SECONDS, Schedule
from fairlead.daemon.loop.signals import Signals
from fairlead.daemon.publishing import transitions
from fairlead.daemon.publishing.agent_state import AgentState, SweepFacts
from fairlead.daemon.publishing.drain_details import drain_details
from fairlead.daemon.publishing.notify import Notify
from fairlead.daemon.publishing.publisher import Publisher
from fairlead.daemon.publishing.reporter import Reporter
from fairlead.daemon.publishing.service_keeper import ServiceKeeper
from fairlead.daemon.publishing.status_json import status_json
from fairlead.daemon.publishing.verdict_text import verdict_text
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.requests.spool import Requests
from fairlead.daemon.slurmctld.slurm_link import SlurmLink
from fairlead.daemon.slurmctld.slurm_state import want_of
from fairlead.drains.acknowledgement import known_evidence
from fairlead.drains.admin_hold import DISABLED, AdminHold
from fairlead.drains.ledger import machine_id
from fairlead.errors import FairleadError
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.host.boot_clock import boottime
from fairlead.host.bounded_disk import Disk
from fairlead.host.pci_slots import chassis_slots
from fairlead.host.process import jobs_running
from fairlead.host.root import Root
from fairlead.judge import judge, policies_of, quick_checks
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.model.verdict import State
from fairlead.policy import Decision, Now, Order, decide
from fairlead.policy.state_requests import known_of

_EXIT = {State.OK: 0, State.WARN: 1, State.DRAIN: 2, State.UNKNOWN: 3}
_NOTHING: frozenset[str] = frozenset()  # no check has judged, but other input of the decision has changed


def run(document_path: str, *, root: Root, ask_nvml: bool = False, once: bool = False) -> int:
    """Run the agent until SIGTERM and return its exit code.

    ``once``: make one sweep, send nothing to Slurm, and return the verdict's exit code. ``ask_nvml``: query real NVML even on
    a machine tree, instead of reading the tree's nvml.json. Raises ConfigError or InputMissing for a document that cannot be
    read at the start, and AgentRuns if another agent runs.
    """
    document = load_document(document_path)
    with alone(document.agent.run_dir):
        return Loop(document_path, document, root, ask_nvml=ask_nvml).run(once=once)


class Loop:
    """Runs the agent's main loop with its parts. Each thread, file and child process is owned by exactly one attribute."""

    def __init__(self, document_path: str, document: Document, root: Root, *, ask_nvml: bool = False) -> None:
        state_dir, run_dir = document.agent.state_dir, document.agent.run_dir
        self._document_path = document_path
        self._root = root
        self._disk = Disk()
        self._memory = state_link.prepare(document.agent, root, self._disk)
        self._signals = Signals()
        self._schedule = Schedule()
        self._readers = Readers(document, root, ask_nvml=ask_nvml)
        self._boot_id = self._readers.boot_id
        self._trail = Trail(state_dir, run_dir, self._disk)
        self._requests = Requests(state_dir, run_dir, self._trail, self._disk)
        self._history = History(state_dir, self._boot_id, self._disk)
        self._kernel_log = KernelLog(document, self._readers, self._history)
        self._jobs = JobWatch(live=root.is_live)
        self._usage = UsageKeeper(document, root, self._boot_id, self._disk)
        self._hold = AdminHold(self._disk, TICK_SECONDS)
        self.slurm = SlurmLink(document, root, machine=machine_id(root), boot_id=self._boot_id)
        self._proving = Proving(state_dir, self._boot_id, busy=partial(jobs_running, root.join("/proc")), disk=self._disk)
        self._reapply = Reapply(document_path, root, self._disk, self._history)
        self._gres = GresListing(document, root)
        self._publisher = Publisher(document, self._disk)
        self._reporter = Reporter(self._history)
        trail = Trail(state_dir, run_dir, self._disk)
        self._service = ServiceKeeper(self._history, trail, machine_id(root), partial(chassis_slots, root))
        self._notify = Notify()
        self._watchdog = LoopWatchdog(self._publisher, lambda: root.reading)
        self._use(document)
        self._state = self._history.load_state()
        self._sweep = SweepFacts()
        self._findings: tuple[Finding, ...] = ()
        self._decision: Decision | None = None
        self._keep_at = 0.0
        self._metrics_due = True  # the present sweep ends with new metrics, which must show the values of this sweep
        self._readers.follow(document, self._history.cursor())

    def _use(self, document: Document) -> None:
        self._document = document
        self._policies = policies_of(document)
        self._quick_checks = quick_checks(document)
        self._modes = {name: policy.mode.value for name, policy in self._policies.items()}

    # -- the whole run ---------------------------------------------------------------------------

    def run(self, *, once: bool) -> int:
        """Run until a signal ends the agent, or with ``once`` until the first sweep is judged. Return the exit code."""
        self._signals.install()
        try:
            self._start(tell_slurm=not once)
            while not self._signals.ending():
                swept = self._turn()
                if swept and once:
                    break
        finally:
            self._end()
        verdict = self._publisher.verdict
        log.line(log.NOTICE, "agent ends", state=verdict.state.value if verdict else "")
        return _EXIT[verdict.state] if once and verdict else 0

    def _start(self, *, tell_slurm: bool) -> None:
        version, document = __version__, self._document
        log.line(log.NOTICE, "agent starts", version=version, node=document.node, generation=document.generation)
        if tell_slurm and self.slurm.connected:
            transitions.catch_up(self._trail, self.slurm.state)
            self._read_jobs()  # jobs that the prolog has refused must be known before the first question to slurmctld
            self.slurm.start()
        self._watchdog.start()
        self._act_on_kernel_log()
        self._begin_sweep()

    def _turn(self) -> bool:
        """Wait for an event and handle it. Return whether a sweep has ended."""
        self._watchdog.turn()
        ready = self._wait()
        self._act_on_signals()
        self._act_on_slurm()
        self._act_on_kernel_log(ready)
        self._act_on_return_command()
        swept = self._finish_sweep()
        self._notify_systemd()
        self._act_on_suspend()
        self._act_on_reapply()
        self._tick()
        if self._schedule.sweep_due():
            self._begin_sweep()
        return swept

    def _begin_sweep(self) -> None:
        """Read people's requests, and start to read the node. ``_finish_sweep`` gets the facts."""
        interval = self._document.agent.interval_seconds
        self._schedule.begin_sweep()
        self._act_on_requests()
        self._schedule.set_next_sweep(interval)
        self._metrics_due = self._readers.start_sweep(shown=self._publisher.metrics_due())

    def _finish_sweep(self) -> bool:
        """If the node has been read, judge it and act on the result. Return whether the node has been read."""
        node = self._readers.poll()
        if node is None:
            return False
        judged_by = None if node.thorough else self._quick_checks
        findings = self._judge(node, judged_by)
        self._remember(node, judged_by)
        self._restore_settings(findings, judged_by)
        self._conclude(findings, judged_by, swept=True)
        self._publisher.publish_node(node, self._gres.read(node))
        self._usage.add(node, self._findings)
        self._service.add(node, self._document, self._state, self._modes)
        self._after_first_sweep()
        return True

    def _conclude(
        self,
        findings: tuple[Finding, ...] = (),
        judged_by: Collection[str] | None = _NOTHING,
        *,
        swept: bool = False,
        returned: bool = False,
    ) -> None:
        """Decide and act on the decision. The state is saved before anything is sent to Slurm. The verdict says ``drain`` only
        after slurmctld has accepted the drain.

        ``findings``: the new findings of the checks in ``judged_by``, or of all checks if ``judged_by`` is None. The earlier
        findings of the other checks stay. ``swept``: True if the facts were just read. ``returned``: True if the node has gone
        back into service since the last decision.
        """
        self._replace_findings(findings, judged_by)
        now = self._policy_now(swept=swept, returned=returned)
        decision = decide(findings, self._policies, self._state, now, self._document.policy, ran=judged_by)
        self._save(decision)
        self._prove(decision)
        self._order(decision, now)
        news = self._publish_verdict(decision)
        if news or swept:
            self._report(decision, news=news)

    def _end(self) -> None:
        self._watchdog.stop()
        self.slurm.stop()
        self._notify.send("STOPPING=1")
        self._proving.close()
        self._usage.close()
        self._history.save_cursor(self._readers.log_cursor)
        self._history.close()
        self._readers.close()
        self._signals.close()

    # -- the steps of a turn ---------------------------------------------------------------------

    def _wait(self) -> list[int]:
        """Wait for the first event. Return the descriptors that have something to read."""
        timeout = max(0.0, min(self._schedule.next(), self._readers.next_poll(), self._notify.watchdog_at) - time.monotonic())
        sources = [self._signals.fileno(), *self._readers.descriptors(), self.slurm.fileno(), self._proving.fileno()]
        try:
            ready, _, _ = select.select([fd for fd in sources if fd >= 0], [], [], timeout)
        except OSError:
            return []  # a descriptor was closed before select(2): the next turn uses the new descriptor
        if self._signals.fileno() in ready:
            self._signals.empty_pipe()
        return ready

    def _act_on_signals(self) -> None:
        caught = self._signals.take()
        if SIGHUP in caught:
            self._reload()
        if SIGUSR1 in caught:  # `fairlead drain`, `fairlead resume` and the epilog send it
            self._schedule.read_requests_now()
            self._readers.read_thoroughly()
            self.slurm.reconcile()

    def _act_on_slurm(self) -> None:
        """Handle what has changed in Slurm since the last turn."""
        news = self.slurm.take_news()
        if news is None:
            return
        before, after = news
        self._state = after_slurm(self._state, before, after, self._boot_id)
        self._reporter.report_slurm(before, after)
        self._conclude(returned=after.returned > before.returned)
        transitions.slurm(self._trail, before, after, drain_details(self._state, self._jobs.running))
        self._service.write_soon()

    def _act_on_kernel_log(self, ready: Sequence[int] = ()) -> None:
        """Judge each new kernel record at once with the checks that declared such records. ``ready``: the descriptors that can
        be read."""
        if not self._kernel_log.has_news(ready):
            return
        records = self._kernel_log.read(uptime_of(self._sweep.node, self._root))
        if self._kernel_log.lost:
            self._schedule.sweep_now()  # read the GPUs' state from the driver at once
        if not records:
            return
        self._read_jobs()  # the jobs that run now may be to blame, or may delay a drain
        node = self._sweep.node
        woken = self._kernel_log.remember(self._jobs.attribute(records, self._document.agent.run_dir, node))
        if woken and node is not None:
            self._conclude(judge(self._document, node, self._past(), woken), woken)

    def _act_on_return_command(self) -> None:
        """Decide again if the return-to-service command has begun or ended."""
        if self._proving.poll():
            self._history.event(f"return command {self._proving.state.value}", self._proving.said)
            self._conclude()

    def _act_on_requests(self) -> None:
        """Handle the requests of people (`fairlead ack`, `clear`)."""
        if not self._schedule.requests_due():
            return
        read_hold = partial(self._hold.read_now, self._document.agent.state_dir)
        state = self._requests.take(self._state, self._history, self._boot_id, read_hold)
        if state is not self._state:
            self._state = state
            self._reporter.status_now()
            self._service.write_soon()
            if self._decision is not None:
                self._conclude()

    def _act_on_suspend(self) -> None:
        if seconds := self._schedule.suspended_seconds():
            log.line(log.NOTICE, "the machine was suspended", seconds=f"{seconds:.0f}")
            self._schedule.sweep_now()  # the verdict has aged in that time

    def _act_on_reapply(self) -> None:
        if self._reapply.ended():
            self._readers.read_thoroughly()
            self._schedule.sweep_now()

    def _notify_systemd(self) -> None:
        drains = self._decision is not None and self._decision.order is Order.DRAIN and not self.slurm.state.settled
        self._notify.ready(wait=drains and self.slurm.connected)
        self._notify.feed_watchdog()

    def _tick(self) -> None:
        """Read the files of hooks and people every few seconds, and check whether slurmctld has contacted slurmd."""
        if self._schedule.tick_due():
            self._read_jobs()
            self.slurm.watch_slurmd()
            self._release_nvml()

    def _read_jobs(self) -> None:
        """Read the job records, and act on what is new in them."""
        run_dir = self._document.agent.run_dir
        news = self._jobs.read(run_dir)
        if news.refused:
            self.slurm.expect_prolog_mark(news.refused)
        if news.ended or news.changed:
            self._schedule.sweep_now()  # read the node after a job and not during the job, and when a job begins
            self._readers.read_thoroughly()
        self._usage.heed(self._jobs.jobs)
        self._jobs.forget(run_dir, refusal_pending=self.slurm.refusal_pending)
        if news.changed:
            self._publisher.write_metrics_soon()

    def _release_nvml(self) -> None:
        wanted = nvml_released(self._document.agent.run_dir)
        if self._readers.release_nvml(wanted):
            log.line(log.NOTICE, "NVML released" if wanted else "NVML attached again", by="nvml-release")
            self._schedule.sweep_now()

    def _reload(self) -> None:
        """Load the document again, and use all changes that a running agent can use."""
        try:
            document = load_document(self._document_path)
        except FairleadError as e:
            log.line(log.ERROR, "document refused, the old one stays in use", error=e, generation=self._document.generation)
            self._history.event("document refused", str(e))
            return
        document, ignored = take_over(self._document, document)
        if ignored:
            log.line(log.WARNING, "configuration change ignored until the agent is restarted", keys=", ".join(ignored))
            self._history.event("document loaded in part", f"ignored until the agent is restarted: {', '.join(ignored)}")
        self._use(document)
        self._kernel_log.change(document)
        self._readers.change(document)
        self._readers.follow(document, None)
        self._gres.change(document)
        self._publisher.change(document)
        self._usage.change(document)
        self.slurm.change(document)
        log.line(log.NOTICE, "document loaded", generation=document.generation, hash=document.hash)
        self._history.event("document loaded", f"generation {document.generation}")
        self._schedule.sweep_now()

    # -- the steps of a sweep --------------------------------------------------------------------

    def _judge(self, node: Node, judged_by: Collection[str] | None) -> tuple[Finding, ...]:
        self._history.heal()
        history_update.before_judging(self._history, node)
        return judge(self._document, node, self._past(), judged_by)

    def _past(self) -> Past:
        return known_of(self._history.past(), self._state, self._boot_id)

    def _remember(self, node: Node, judged_by: Collection[str] | None) -> None:
        """Add the sweep to the history. Data that rarely change are added at most once a minute."""
        began, count = self._schedule.swept_from, self._sweep.count + 1
        thorough = count % 16 == 1 and began >= self._keep_at
        seconds = uptime_of(node, self._root)
        history_update.after_judging(self._history, self._document, node, seconds, ran=judged_by, thorough=thorough)
        if thorough:
            self._keep_at = began + history_update.KEEP_SECONDS
            self._history.save_samples()
            self._history.save_cursor(self._readers.log_cursor)
        self._sweep = SweepFacts(node=node, count=count, seconds=time.monotonic() - began, ended=boottime())

    def _restore_settings(self, findings: Sequence[Finding], judged_by: Collection[str] | None) -> None:
        """Apply the settings again that were lost by a device's reset, if this sweep has judged the settings."""
        if judged_by is None:
            self._reapply.restore(findings, self._document.agent, job_running=bool(self._jobs.running))

    def _after_first_sweep(self) -> None:
        """Let slurmd start after the first sweep, and exclude what stays in memory from garbage collection."""
        if self._sweep.count == 1:
            self._notify.first_sweep_done()
            gc.collect()
            gc.freeze()
            gc.set_threshold(20000, 20, 50)  # a sweep's objects are freed by their reference counts

    # -- the steps of a decision -----------------------------------------------------------------

    def _replace_findings(self, findings: tuple[Finding, ...], judged_by: Collection[str] | None) -> None:
        kept = () if judged_by is None else (f for f in self._findings if f.check not in judged_by)
        self._findings = (*kept, *findings)

    def _policy_now(self, *, swept: bool, returned: bool) -> Now:
        agent = self._document.agent
        return policy_input(
            self._sweep.node,
            self._jobs,
            self.slurm.state,
            boot_id=self._boot_id,
            proof=self._proving.state,
            applying=applying(agent.run_dir) or nvml_released(agent.run_dir) or self._reapply.under_way,
            hold=self._hold.read(agent.state_dir, agent.run_dir) is not None,
            disabled=self._root.exists(DISABLED),
            returned=returned,
            first=self._decision is None,
            full_sweep=swept,
        )

    def _save(self, decision: Decision) -> None:
        self._state, self._decision = decision.state, decision
        self._history.save_state(decision.state)

    def _prove(self, decision: Decision) -> None:
        """Run the return-to-service command, or end it."""
        self._proving.follow(decision.prove, self.slurm.state.reason, self._document.policy)

    def _order(self, decision: Decision, now: Now) -> None:
        """Give the courier the order that follows from the decision."""
        self.slurm.order(want_of(decision, now), known_evidence(decision.state))

    def _publish_verdict(self, decision: Decision) -> bool:
        """Publish the verdict. Return whether it differs from the verdict before."""
        return self._publisher.publish_verdict(decision.state_word, verdict_text(decision, self.slurm.state))

    def _report(self, decision: Decision, *, news: bool) -> None:
        """Write those of the log, status.json and the metrics that have changed or are due."""
        verdict = self._publisher.verdict
        if news and verdict is not None:
            self._reporter.report_verdict(verdict, decision, self._findings)
        news = self._reporter.report_troubles(self._troubles()) or news
        state = AgentState(
            document=self._document,
            modes=self._modes,
            sweep=self._sweep,
            findings=self._findings,
            decision=decision,
            slurm=self.slurm.state,
            verdict=verdict,
            jobs=len(self._jobs.running),
            records=self._kernel_log.woken,
        )
        if self._reporter.status_due(self._findings, news=news):
            self._trail.heal()
            self._publish_status(state)
        if news or self._metrics_due:
            self._publish_metrics(state)

    def _troubles(self) -> tuple[str, ...]:
        """Return what prevents the agent from writing to its disk, one line for each problem."""
        parts = (self._history, self.slurm.ledger, self._trail, self._usage, self._service)
        return tuple(part.trouble for part in parts if part.trouble)

    def _publish_status(self, state: AgentState) -> None:
        agent = self._document.agent
        data = status_json(
            state,
            hold=self._hold.read(agent.state_dir, agent.run_dir),
            history=self._history.events(),
            proof=self._proving.account(),
            topology=self.slurm.topology,
            memory=self._memory,
            trouble=[*self._troubles(), *self._publisher.trouble.values()],
        )
        self._publisher.publish_status(data)

    def _publish_metrics(self, state: AgentState) -> None:
        from fairlead.daemon.publishing.metrics_input import metrics_input  # imports the metrics library

        found = metrics_input(
            state,
            sources={**self._readers.answered, "state_dir": self._disk.answered},
            worker=self._readers.worker,
            history=self._history,
            proofs=self._proving.outcomes,
            job_gpus=self._jobs.gpus(self._document.agent.run_dir, state.sweep.node),
        )
        self._publisher.publish_metrics(found)
