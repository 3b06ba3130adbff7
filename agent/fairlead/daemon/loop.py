"""The agent: gather, judge, decide, publish, and wait for the kernel log, the NVML worker, Slurm, a signal or the time.

One thread, which never waits for a driver (the worker is a process) nor for slurmctld (the courier is a thread).
A kernel record wakes only the checks that declared it, on the last look at the node; all else is for the full sweep.
"""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import time
from collections.abc import Collection
from functools import partial

from msgspec.structs import replace

from fairlead import __version__
from fairlead.config import Document, load_document
from fairlead.daemon import log, remember, status, transitions
from fairlead.daemon.account import account_of, troubles_of
from fairlead.daemon.alone import alone
from fairlead.daemon.audit import Trail
from fairlead.daemon.board import Board
from fairlead.daemon.courier import Courier, Standing, Want
from fairlead.daemon.disk import Disk
from fairlead.daemon.drain import Drain
from fairlead.daemon.evidence import evidence_of
from fairlead.daemon.history import History
from fairlead.daemon.joblook import look_at_jobs
from fairlead.daemon.jobs import NO_JOBS, Blame
from fairlead.daemon.judge import fresh, heeded_by, judge, prefixes
from fairlead.daemon.ledger import Ledger
from fairlead.daemon.lookout import Lookout
from fairlead.daemon.moment import now_of, uptime_of
from fairlead.daemon.notify import Notify
from fairlead.daemon.presence import Presence
from fairlead.daemon.proof import Proving
from fairlead.daemon.reapply import Reapply
from fairlead.daemon.requests import Requests
from fairlead.daemon.rules import DISABLED, Hold, barred, drain_protocol, keeping, nvml_released, policies_of
from fairlead.daemon.senses import Senses, machine
from fairlead.daemon.slurmd import Slurmd
from fairlead.errors import FairleadError
from fairlead.host.clock import asleep, boottime
from fairlead.host.process import jobs_running
from fairlead.host.root import Root
from fairlead.model.check import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.model.verdict import State
from fairlead.policy import Decision, Order, acknowledge_evidence, decide
from fairlead.policy.state_requests import known_of
from fairlead.policy.tracks import of_this_boot

TICK_SECONDS = 2.0  # job records and files of people are looked at this often, and with each sweep
REQUESTS_SECONDS = 1.5  # and their requests, on the state's disk: at once after SIGUSR1, which whoever asks sends
STATUS_SECONDS = 10.0
ASLEEP_SECONDS = 1.0
_EXIT = {State.OK: 0, State.WARN: 1, State.DRAIN: 2, State.UNKNOWN: 3}


def run(document_path: str, *, root: Root, ask_nvml: bool = False, once: bool = False) -> int:
    """Run the agent until SIGTERM; its exit code. ``once``: one sweep, no word to Slurm, the verdict's exit code.
    ``ask_nvml``: of a recorded tree too it is NVML that is asked, not nvml.json.

    Raises ConfigError or InputMissing for a document that cannot be read at the start, AgentRuns where another agent runs.
    """
    document = load_document(document_path)
    with alone(document.agent.run_dir):
        return Loop(document_path, document, root, ask_nvml=ask_nvml).run(once=once)


class Loop:
    """All that the agent is; every thread, file and process has its one owner below."""

    def __init__(self, document_path: str, document: Document, root: Root, *, ask_nvml: bool = False) -> None:
        self.document_path = document_path
        self.document = document
        self.root = root
        state_dir = document.agent.state_dir
        self.disk = Disk()
        try:
            self.disk.do(partial(os.makedirs, state_dir, mode=0o755, exist_ok=True))
        except OSError as e:
            log.line(log.ERROR, "no state directory", error=f"{state_dir}: {e.strerror}")
        self.senses = Senses(document, root, ask_nvml=ask_nvml)
        self.trail = Trail(state_dir, document.agent.run_dir, self.disk)
        self.requests = Requests(state_dir, document.agent.run_dir, self.trail, self.disk)
        self.history = History(state_dir, self.senses.boot_id, self.disk)
        self.hold = Hold(self.disk, TICK_SECONDS)
        self.board = Board(document, self.disk)
        self.lookout = Lookout(self.board, lambda: root.reading)
        self._couriers = Disk("courier's disk")
        self._couriers_hold = Hold(self._couriers)
        self.ledger = Ledger(
            state_dir, document.agent.run_dir, node=document.slurm_node, machine=machine(root), disk=self._couriers
        )
        self.courier: Courier | None = None
        self.standing = Standing()
        self.returned = False  # the node has gone back into service since the last decision
        slurm = document.slurm
        if root.is_live or slurm.conf:  # what a recorded tree says drains no node, unless a cluster is named for it
            self.courier = Courier(self._protocol(document), splay_seconds=slurm.splay_seconds, look_seconds=slurm.look_seconds)
            self.standing = self.courier.take()
        self.proving = Proving(state_dir, self.senses.boot_id, busy=partial(jobs_running, root.join("/proc")), disk=self.disk)
        self.notify = Notify()
        self.state = self.history.load_state()
        self.node: Node | None = None
        self.findings: tuple[Finding, ...] = ()
        self.decision: Decision | None = None
        self.jobs, self.blame = NO_JOBS, Blame()
        self.sweeps = self.woken = 0
        self.presence, self.reapply, self.slurmd = Presence(), Reapply(), Slurmd("/proc" if root.is_live else "")
        self.gone: frozenset[int] = frozenset()
        self._told: dict[str, str] = {}
        self._lost, self._slept = 0, asleep()
        self._shows = True  # this sweep ends in new metrics, so that what they show is of the sweep
        self._shown: set[tuple[str, int]] = set()  # what status.json lists: keys and levels of findings
        self._troubles: tuple[str, ...] = ()
        self._asked_at = self.sweep_seconds = self.sweep_boot = self._requests_at = self._keep_at = 0.0
        self.next_sweep = self._next_tick = self._next_watchdog = self._status_at = 0.0
        self._signals: set[int] = set()
        self._take_up(document)
        self.senses.follow(document, self.history.cursor())

    def _protocol(self, document: Document) -> Drain:
        why = partial(barred, self._couriers_hold, document.agent.state_dir, document.agent.run_dir, self.root.join(DISABLED))
        return drain_protocol(document, self.ledger, barred=why, boot_id=self.senses.boot_id)

    def _take_up(self, document: Document) -> None:
        self.document = document
        self.policies = policies_of(document)
        self.wakes = prefixes(document)
        self.prefixes = tuple(prefix for known in self.wakes.values() for prefix in known)

    # -- the loop --------------------------------------------------------------------------------

    def run(self, *, once: bool) -> int:
        log.line(log.NOTICE, "agent starts", version=__version__, node=self.document.node, generation=self.document.generation)
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda got, frame: self._signals.add(got))
        if self.courier is not None and not once:
            transitions.catch_up(self.trail, self.standing)
            look_at_jobs(self)  # a refusal that an earlier agent left: known before the first look at slurmctld
            self.courier.start()
        try:
            self.lookout.start()
            self._kernel()
            self._start_sweep()
            while not self._signals & {signal.SIGTERM, signal.SIGINT}:
                self.lookout.turn()
                ready = self._wait(reader)
                self._heed_signals()
                self._slurm_news()
                self._kernel(ready)
                if self.proving.poll():
                    self.history.event(f"return command {self.proving.state.value}", self.proving.said)
                    self._decide((), frozenset())
                swept = self._swept()
                waits = self.decision is not None and self.decision.order is Order.DRAIN and not self.standing.settled
                self.notify.ready(wait=waits and self.courier is not None)
                self._tick()
                if swept and once:
                    break
        finally:
            self._end(reader, writer)
        log.line(log.NOTICE, "agent ends", state=self.board.verdict.state.value if self.board.verdict else "")
        return _EXIT[self.board.verdict.state] if once and self.board.verdict else 0

    def _wait(self, reader: int) -> list[int]:
        due = [self.next_sweep, self._next_tick, self.senses.next_poll()]
        due += [self._next_watchdog] if self.notify.watchdog_seconds else []
        timeout = max(0.0, min(due) - time.monotonic())
        news = [self.courier.fileno()] if self.courier is not None else []
        news += [self.proving.fileno()] if self.proving.fileno() >= 0 else []
        try:
            ready, _, _ = select.select([reader, *self.senses.descriptors(), *news], [], [], timeout)
        except OSError:
            return []  # a source went away between asking and waiting: the next turn has the new one
        if reader in ready:
            os.read(reader, 256)
        return ready

    def _end(self, reader: int, writer: int) -> None:
        self.lookout.stop()
        if self.courier is not None:
            self.courier.stop()
        self.notify.send("STOPPING=1")
        self.proving.close()
        if self.senses.follower is not None:
            self.history.save_cursor(self.senses.follower.cursor)
        self.history.close()
        self.senses.close()
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)

    def _heed_signals(self) -> None:
        heard, self._signals = self._signals, self._signals & {signal.SIGTERM, signal.SIGINT}
        if signal.SIGHUP in heard:
            self._reload()
        if signal.SIGUSR1 in heard:
            self.next_sweep = self._requests_at = 0.0
            self.senses.read_thoroughly()
            if self.courier is not None:
                self.courier.look()  # `fairlead drain` and `fairlead resume` send it

    def _reload(self) -> None:
        try:
            document = load_document(self.document_path)
        except FairleadError as e:
            log.line(log.ERROR, "document refused, the old one stays", error=e, generation=self.document.generation)
            self.history.event("document refused", str(e))
            return
        document, later = keeping(self.document, document)
        if later:
            log.line(log.WARNING, "only a restart of the agent takes up", keys=", ".join(later))
            self.history.event("document in part", f"only a restart of the agent takes up {', '.join(later)}")
        self._take_up(document)
        self.senses.change(document)
        self.senses.follow(document, None)
        self.board.change(document)
        if self.courier is not None:
            options = document.slurm
            self.courier.change(self._protocol(document), splay_seconds=options.splay_seconds, look_seconds=options.look_seconds)
        log.line(log.NOTICE, "document taken up", generation=document.generation, hash=document.hash)
        self.history.event("document taken up", f"generation {document.generation}")
        self.next_sweep = 0.0

    def _tick(self) -> None:
        now = time.monotonic()
        if (slept := asleep()) > self._slept + ASLEEP_SECONDS:
            log.line(log.NOTICE, "the machine has slept", seconds=f"{slept - self._slept:.0f}")
            self._slept, self.next_sweep = slept, 0.0  # the verdict has aged with it
        if self.notify.watchdog_seconds and now >= self._next_watchdog:
            self._next_watchdog = now + self.notify.watchdog_seconds / 2
            self.notify.send("WATCHDOG=1")
        self.reapply.turn(self)
        if now >= min(self._next_tick, self.next_sweep):  # with a sweep: one turn of the loop for both
            self._next_tick = now + TICK_SECONDS
            look_at_jobs(self)
            self.slurmd.heed(self.courier)
            if self.senses.let_go(wanted := nvml_released(self.document.agent.run_dir)):
                log.line(log.NOTICE, "NVML let go of" if wanted else "NVML taken hold of again", by="nvml-release")
                self.next_sweep = 0.0
        if now >= self.next_sweep:
            self._start_sweep()

    # -- sources ---------------------------------------------------------------------------------

    def _start_sweep(self) -> None:
        now = self._asked_at = time.monotonic()
        if now >= self._requests_at:
            self._requests_at = now + REQUESTS_SECONDS
            asked = self.requests.take(self.state, self.history, self.senses.boot_id)
            if asked is not self.state:
                self.state, self._status_at = asked, 0.0
                if self.decision is not None:
                    self._decide((), frozenset())
        self.next_sweep = now + self.document.agent.interval_seconds * random.uniform(0.95, 1.05)
        self._shows = self.board.due(self.document.agent.interval_seconds if self.senses.is_due() else 0.0)
        self.senses.start_sweep(shown=self._shows)

    def _swept(self) -> bool:
        """Take the result of a sweep, if it is there: the whole pipe."""
        node = self.senses.poll()
        if node is None:
            return False
        self.node = node
        self.sweeps += 1
        self.history.heal()
        seconds = uptime_of(node, self.root)
        remember.before(self.history, node)
        ran = fresh(self.document, node)
        findings = judge(self.document, node, self._past(), ran)
        thorough = self.sweeps % 16 == 1 and self._asked_at >= self._keep_at
        remember.after(self.history, self.document, node, seconds, ran=ran, thorough=thorough)
        if thorough:
            self._keep_at = self._asked_at + remember.KEEP_SECONDS
            self.history.save_samples()
            if self.senses.follower is not None:
                self.history.save_cursor(self.senses.follower.cursor)
        self.sweep_seconds, self.sweep_boot = time.monotonic() - self._asked_at, boottime()
        if ran is None:  # the settings too
            self.reapply.heed(self, findings)
        self._decide(findings, ran, swept=True)
        self.board.facts(node)
        if self.sweeps == 1:
            self.notify.looked()
            gc.collect()
            gc.freeze()
            gc.set_threshold(20000, 20, 50)  # what a sweep makes goes by its reference counts
        return True

    def _kernel(self, ready: list[int] | None = None) -> None:
        """Kernel records: those that a check declared are remembered, and wake it at once. ``ready``: descriptors with news."""
        follower = self.senses.follower
        if follower is None or (ready and not self.senses.kernel_spoke(ready)):
            return
        records = self.senses.kernel()
        lost = self.senses.lost
        self.history.set_log(follower.state, lost, uptime_of(self.node, self.root), follower.cursor)
        if lost > self._lost:
            log.line(log.WARNING, "kernel records lost", count=lost - self._lost, now="read on from the oldest that is left")
            self._lost, self.next_sweep = lost, 0.0  # what the driver itself says of its GPUs, at once
        known = [r for r in records if r.text.startswith(self.prefixes)] if records and self.prefixes else []
        known = [r for r in known if any(heeded_by(r.text, self.wakes))]
        if not known:
            return
        look_at_jobs(self)  # whom to blame, and whether a drain has to wait: as it is now
        known = self.blame.attribute(known, self.document.agent.run_dir, self.node)
        if not self.history.add_records(known, follower.cursor):
            return
        self.woken += len(known)
        if self.node is not None:
            woken = {name for r in known for name in heeded_by(r.text, self.wakes)}
            self._decide(judge(self.document, self.node, self._past(), woken), woken)

    def _past(self) -> Past:
        return known_of(self.history.past(), self.state, self.senses.boot_id)

    def _slurm_news(self) -> None:
        if self.courier is None:
            return
        standing = self.courier.take()
        if standing == self.standing:
            return
        before, self.standing = self.standing, standing
        if standing.acknowledged > before.acknowledged:
            self.state = acknowledge_evidence(self.state, standing.known)
            self.history.event("acknowledged", f"a person resumed our drain: {transitions.covers(standing)}")
            log.line(log.NOTICE, "acknowledged", by="resume in Slurm")
        elif standing.lost > before.lost:
            self.state = acknowledge_evidence(self.state, standing.known)
        if standing.lost > before.lost or (before.drained and not standing.drained):  # the trail says why
            self.state = of_this_boot(self.state, self.senses.boot_id)
        if standing.drained != before.drained:
            self.history.event("drained" if standing.drained else "not drained by us", standing.reason or before.reason)
        self.returned = standing.returned > before.returned
        self._decide((), frozenset())
        self.returned = False
        transitions.slurm(self.trail, before, standing)

    # -- the decision ----------------------------------------------------------------------------

    def _decide(self, findings: tuple[Finding, ...], ran: Collection[str] | None, *, swept: bool = False) -> None:
        """Decide on new findings of the checks ``ran`` (None: all), save, order, publish. ``swept``: on facts just read."""
        if ran is None:
            self.findings = findings
        else:
            self.findings = (*(f for f in self.findings if f.check not in ran), *findings)
        now = now_of(self, full_sweep=swept)
        decision = decide(findings, self.policies, self.state, now, self.document.policy, ran=ran)
        self.state = decision.state
        self.history.save_state(decision.state)
        self.proving.follow(decision.prove, self.standing.reason, self.document.policy)
        if self.courier is not None:
            kind = decision.order.value
            room = not (now.over_budget or now.suspicion)
            fit = decision.state_word in (State.OK, State.WARN) and not decision.counted and room
            words, certain = decision.reason_summary, decision.certain
            drain = Want(kind=kind, check=decision.reason_check, summary=words, job=decision.job, certain=certain)
            other = Want(kind=kind, fit=fit and decision.order is Order.KEEP and not now.applying)
            held = replace(drain, held=True) if decision.limited else other
            self.courier.want(drain if decision.order is Order.DRAIN else held, evidence_of(self.state))
        before = self.board.verdict
        verdict = self.board.say(decision.state_word, status.verdict_text(decision, self.standing))
        news = before is None or (before.state, before.text) != (verdict.state, verdict.text)
        self.decision = decision
        if news:
            self._tell(decision)
        if news or swept:
            self._publish(decision, news=news)

    def _tell(self, decision: Decision) -> None:
        """Log the change of the verdict with the findings that caused it, and keep it for `fairlead why`."""
        verdict = self.board.verdict
        if verdict is None:
            return
        loud = log.WARNING if verdict.state in (State.DRAIN, State.UNKNOWN) or decision.counted else log.NOTICE
        log.line(loud, "verdict", state=verdict.state.value, order=decision.order.value, text=verdict.text)
        self.history.event(f"verdict {verdict.state.value}", verdict.text)
        self._told = transitions.findings(self._told, self.findings)

    def _publish(self, decision: Decision, *, news: bool) -> None:
        moment = time.monotonic()
        troubles = troubles_of(self)
        if troubles != self._troubles:
            transitions.troubles(self._troubles, troubles)
            self._troubles, news = troubles, True
        shown = {(f.key, f.level.value) for f in self.findings}
        if news or shown != self._shown or moment >= self._status_at:
            self._shown = shown
            self._status_at = moment + STATUS_SECONDS
            self.trail.heal()
            self.board.status(account_of(self, decision))
        if news or self._shows:
            from fairlead.daemon.view import view_of

            self.board.metrics(view_of(self, decision))
