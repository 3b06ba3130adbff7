"""Random interleavings of agents, people, jobs and slurmctld over one node's state, and what must hold in each.

The agent is the real courier, drain protocol and ledger, taken step by step: between any two steps anything may happen,
and it may end there. Its judgement is reduced to a count of evidence (``Agent.evidence``). A ``World`` is the model of
slurmctld or the real one. ``Monitor`` knows whose state the node's is and judges each write of an agent.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder, SlurmState
from fairlead.drains.ledger import LATE_SECONDS, Ledger, Phase
from fairlead.drains.node_state import SAVED_SECONDS, NodeDrainState
from fairlead.drains.outcome import Steps, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.policy.ownership import MANUAL, strip_suffixes
from fairlead.slurm.client import JobOn, NodeState, NodeTimes
from tests.slurm.monitor import RULES, Clock, Monitor, Violation, World

MUNGE_SECONDS = 300.0  # munged(8), ttl


class Wire:
    """The client of one agent: what it reads and writes is told to the monitor; ``fate`` of the next write: ``""`` answered,
    ``lost`` (done, no answer), ``late`` (no answer, done some time later), ``never``."""

    def __init__(self, world: World, monitor: Monitor, agent: Agent) -> None:
        self.world = world
        self.client = world.client
        self.monitor = monitor
        self.agent = agent
        self.fate = ""
        self.read_at = 0
        self.by_hand = False
        self.texts: set[str] = set()
        self.late: list[tuple[float, Callable[[], None]]] = []

    def _answer(self) -> None:
        if self.world.away:
            raise SlurmUnavailable("sinfo: Unable to contact slurm controller (connect failure)")

    def node(self, name: str) -> NodeState:
        self._answer()
        found = self.client.node(name)
        self.read_at = self.monitor.time
        self.monitor.counts["calls"] += 1
        return found

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        self._answer()
        found = self.client.nodes(names)
        self.read_at = self.monitor.time
        self.monitor.counts["calls"] += 1
        return found

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        return self.client.jobs_on(name)

    def began(self) -> float:
        self._answer()
        self.monitor.counts["calls"] += 1
        began = self.client.began()
        entry = self.agent.protocol().ledger.load()
        if entry is not None and 0 < entry.written <= began:  # lost or lifted: that cannot be told, and is taken for lost
            self.monitor.counts["perhaps lost"] += 1
            self.agent.lift = None
        return began

    def node_times(self) -> tuple[NodeTimes, ...]:
        return tuple(NodeTimes(name=n.name, reason_time=n.reason_time) for n in self.nodes())

    def drain(self, name: str, reason: str) -> None:
        self.texts.add(reason)
        self._write("drain", reason, lambda: self.client.drain(name, reason))

    def update_reason(self, name: str, reason: str) -> None:
        self._write("drain", reason, lambda: self.client.update_reason(name, reason))

    def resume(self, name: str) -> None:
        self._write("resume", "", lambda: self.client.resume(name))

    def _write(self, kind: str, text: str, act: Callable[[], None]) -> None:
        self._answer()
        fate, self.fate = self.fate, ""
        read, by_hand, monitor, agent = self.read_at, self.by_hand, self.monitor, self.agent
        issued = agent.well_when_ordered

        def arrive() -> None:
            monitor.tell(f"{agent.name} {kind} {text!r} arrives (read at {read}){' by hand' if by_hand else ''}")
            monitor.write(agent, kind, read, text, by_hand=by_hand, issued=issued)
            try:
                act()
            except SlurmUnavailable:  # a restart: done or not, the node shows it
                node = monitor.now(changed=True)
                if node.drained == (kind == "drain") and (kind == "resume" or strip_suffixes(node.reason) == text):
                    monitor.wrote(agent, kind, by_hand=by_hand)
                raise
            monitor.wrote(agent, kind, by_hand=by_hand)
            if kind == "resume" and by_hand:
                agent.lifted(monitor.time)

        monitor.counts["calls"] += 1
        if fate and kind == "resume":
            agent.unsure, agent.lift = agent.clock.now, None
        if fate == "late":
            monitor.tell(f"{agent.name} {kind} {text!r} is on its way, unanswered")
            self.late.append((agent.clock.now, arrive))
        elif fate == "never":
            monitor.tell(f"{agent.name} {kind} {text!r} is lost")
        else:
            arrive()
        if fate:
            monitor.counts[f"answer {fate}"] += 1
            raise SlurmUnavailable(f"scontrol: gave no answer ({fate})")

    def deliver(self, until: float = 1e18) -> None:
        """What was sent before ``until`` arrives."""
        while self.late and self.late[0][0] <= until:
            try:
                self.late.pop(0)[1]()
            except SlurmError as e:
                self.monitor.lines[-1] += f" refused: {e}"


class Agent:
    """``machine``: a stale one after a re-image has another. ``evidence``: how many faults there have been; ``broken``: they
    stand; ``known``: how many a person's resume has acknowledged."""

    def __init__(self, name: str, world: World, folder: Path, clock: Clock, monitor: Monitor) -> None:
        self.name = name
        self.world = world
        self.node = world.node
        self.folder = folder
        self.clock = clock
        self.wire = Wire(world, monitor, self)
        self.evidence = self.known = self.boots = 0
        self.broken = self.record = self.knew_refusal = self.booted = False
        self.was_lifted = True  # since slurmctld was last killed and forgot a drain
        self.covered: int | None = None
        self.lift: tuple[int, int] | None = None
        self.unsure = -1e9
        self.well_when_ordered = True
        self.turn: Generator[str, None, None] | None = None
        for sub in ("state", "run"):
            (folder / name / sub).mkdir(parents=True, exist_ok=True)
        self.start()

    def protocol(self) -> DrainProtocol:
        ledger = Ledger(
            str(self.folder / self.name / "state"), str(self.folder / self.name / "run"), node=self.node, machine=self.name
        )
        made = DrainProtocol(NodeDrainState(self.wire, ledger, self.node, RULES, wall=self.clock.wall, clock=self.clock.mono))
        made.state.boot_id = f"boot {self.boots}"
        return made

    def start(self) -> None:
        self.courier = Courier(self.protocol(), reconcile_seconds=30, clock=self.clock.mono)
        self.state: SlurmState = self.courier.take()
        self.covered = None
        if self.record:
            self.courier.refused()
        self.decide()

    def stop(self) -> None:
        self.end_turn()
        self.courier.close()

    def boot(self) -> None:
        """The node has booted, and with it the agent."""
        self.boots += 1
        self.lift, self.booted = None, True
        self.kill()

    def end_turn(self) -> None:
        if self.turn is not None:
            self.turn.close()
            self.turn = None

    def kill(self) -> None:
        self.stop()
        self.start()

    @property
    def order(self) -> bool:
        """Something stands that nobody has acknowledged."""
        return self.broken and self.evidence > self.known

    def sure(self) -> bool:
        """No resume of its own may still be on its way: then what was lifted was lifted by a person."""
        return self.clock.now - self.unsure >= LATE_SECONDS

    def lifted(self, at: int) -> None:
        """A person has lifted this agent's drain, or their own that stood in its place; and the agent had seen its own."""
        self.was_lifted = True
        entry = self.protocol().ledger.load()
        if entry is None or entry.phase not in (Phase.DRAINED, Phase.TAKEN) or not self.sure():
            return
        if entry.written and self.world.watch.began() >= entry.written:
            return  # a slurmctld that began anew may have lost it, too
        if entry.late_lift(self.clock.wall()):
            return  # it may have sent a resume of its own just before: to its mind that has arrived now
        if self.booted:
            return  # the reboot may have lifted it, too
        self.lift = (at, self.evidence if self.covered is None else self.covered)

    def decide(self) -> None:
        """As the agent's loop does with news of the courier and policy.decide with findings."""
        before, self.state = self.state, self.courier.take()
        self.booted = self.booted and self.state.confirmed == before.confirmed
        if self.state.drained and self.state.confirmed > before.confirmed:
            self.covered = self.evidence
        if self.state.acknowledged > before.acknowledged:
            # A node whose clock is more than 300 s off gets no word to slurmctld: munge refuses its credentials.
            if not self.was_lifted and abs(self.clock.jump) <= MUNGE_SECONDS:
                raise Violation(f"{self.name} takes for a person's resume what slurmctld has lost")
            self.known = max(self.known, self.evidence if self.covered is None else self.covered)
            self.covered = None
        if not self.courier.refusal_pending:
            self.record = False
        if self.state.drained:
            self.courier.want(CourierOrder() if self.order else CourierOrder(kind="resume"))
        elif self.order and not self.state.over_budget:
            check = ("xid", "gpu_count", "ecc")[self.evidence % 3]
            self.courier.want(CourierOrder(kind="drain", check=check, summary=f"fault {self.evidence}"))
        else:
            self.courier.want(CourierOrder(fit=not self.order))

    def step(self) -> None:
        """One step of what is under way, or the start of what is due."""
        if self.turn is None:
            self.decide()
            if self.courier.due() > self.clock.now:
                return
            self.well_when_ordered = not self.order
            self.knew_refusal = self.courier.refusal_pending
            self.turn = self.courier.turn()
        if next(self.turn, None) is None:
            self.turn = None
            self.decide()

    def hand(self, steps: Callable[[DrainProtocol], Steps]) -> None:
        """`fairlead drain` or `resume`, which wait for what is under way and tell the agent."""
        while self.turn is not None:
            self.step()
        self.wire.by_hand = self.was_lifted = True
        try:
            finish(steps(self.protocol()))
        except SlurmError:
            pass
        finally:
            self.wire.by_hand = False
        self.courier.reconcile()


def sequence(world: World, folder: Path, chance: random.Random, counts: Counter[str], *, length: int, stale: bool) -> Monitor:
    """One random sequence, then rest, with every property checked; raises AssertionError with its story."""
    clock, monitor = Clock(), Monitor(world, counts)
    agents = [Agent("a", world, folder, clock, monitor)]
    if stale:
        agents.append(Agent("b", world, folder, clock, monitor))
    try:
        for _ in range(length):
            _random(world, monitor, clock, agents, chance)
        with world.rest():
            _rest(world, monitor, clock, agents)
    except (Exception, Violation) as e:
        raise AssertionError(f"{type(e).__name__}: {e}\n" + "\n".join(monitor.lines)) from e
    finally:
        for agent in agents:
            agent.stop()
    counts["sequences"] += 1
    return monitor


def _random(world: World, monitor: Monitor, clock: Clock, agents: list[Agent], chance: random.Random) -> None:
    agent = agents[-1] if len(agents) > 1 and chance.random() < 0.4 else agents[0]
    what = chance.choices(*_ACTIONS)[0]
    monitor.counts[what.partition(" ")[0]] += 1
    if what == "step":
        for _ in range(chance.randint(1, 4)):
            agent.step()
    elif what == "time":
        step = chance.choice((0.5, 3.0, 40.0, 40.0, 150.0))
        for each in agents:  # what slurmctld still does for a client that gave up, it does within that time
            each.wire.deliver(until=clock.now + step - LATE_SECONDS + SAVED_SECONDS + 1.0)
        clock.now += step
        world.passed(step)
    elif what == "clock":
        for each in agents:
            each.wire.deliver()
        clock.jump += chance.choice((-7200.0, -30.0, 30.0, 7200.0))
    elif what == "kill":
        monitor.tell(f"{agent.name} is killed and starts again")
        agent.kill()
    elif what == "fault":
        agent.evidence, agent.broken = agent.evidence + 1, True
        monitor.tell(f"{agent.name} fault {agent.evidence}")
        if agent.turn is None:
            agent.decide()
    elif what == "repair":
        agent.broken = False
        monitor.tell(f"{agent.name} is repaired")
    elif what.startswith("answer "):
        agent.wire.fate = what.removeprefix("answer ")
    elif what == "arrival":
        agent.wire.deliver()
    elif what == "refusal":
        agent.record = True
        agent.courier.refused()
        if "mark" in world.events and chance.random() < 0.7:
            monitor.change("mark", lambda: world.event("mark"), agents, person=False)
    elif what == "hand drain":
        monitor.tell(f"fairlead drain on {agent.name}")
        agent.hand(lambda d: d.drain(MANUAL, "by hand"))
        agent.lift = None  # whoever lifted it before, now it is asked for
    elif what == "hand resume":
        monitor.tell(f"fairlead resume on {agent.name}")
        agent.hand(lambda d: d.resume(by_hand=True))
    elif what.startswith("person "):
        state = what.removeprefix("person ").replace("reason", "")
        words = chance.choice(("ann: riser swap", "bob keeps it", "fairlead: by hand", "{} ann looks"))
        words = words.format(monitor.now().reason).strip() if "{" in words else words
        reason = words if state in ("DRAIN", "DOWN", "FAIL", "") else ""
        monitor.change(f"person {state or 'reason'} {reason!r}", lambda: world.update(state, reason), agents, person=True)
    else:
        event = chance.choice(world.events)
        if event == "booted":
            _boot(agents)
        monitor.change(event, lambda: world.event(event), agents, person=event.split()[0] == "reboot")


def _boot(agents: list[Agent]) -> None:
    for agent in agents:
        agent.boot()


_WEIGHTS = {
    "step": 30, "time": 7, "clock": 0.5, "kill": 2, "fault": 5, "repair": 4,
    "answer lost": 0.7, "answer late": 1.0, "answer never": 0.5, "arrival": 1, "refusal": 1,
    "hand drain": 0.5, "hand resume": 0.7,
    "person DRAIN": 2, "person UNDRAIN": 2, "person RESUME": 2, "person DOWN": 0.4, "person FAIL": 0.4, "person reason": 1.2,
    "event": 4,
}  # fmt: skip
_ACTIONS = (list(_WEIGHTS), list(_WEIGHTS.values()))


def _rest(world: World, monitor: Monitor, clock: Clock, agents: list[Agent]) -> None:
    """Everything under way comes to its end and nobody does anything new: the agents must come to rest, and rightly."""
    for agent in agents:
        agent.wire.fate = ""
        agent.wire.deliver()
    world.away = False
    if any("REBOOT" in word for word in monitor.now().states):
        _boot(agents)
    monitor.change("settle", world.settle, agents, person=False)
    for at in range(8):
        monitor.tell(f"-- {40 * at} s of rest")
        written = monitor.counts["drain written"] + monitor.counts["resume written"]
        for agent in (*agents, *agents):
            agent.step()
            while agent.turn is not None:
                agent.step()
        clock.now += 40.0
        world.passed(40.0)
    if monitor.counts["drain written"] + monitor.counts["resume written"] != written:
        raise Violation("still writing after minutes of rest")
    node = monitor.now()
    free = not node.states - {"IDLE", "ALLOCATED", "MIXED", "NOT_RESPONDING", "PLANNED", "RESERVED"}
    for agent in agents:
        entry = agent.protocol().ledger.load()
        if (
            node.drained
            and monitor.holder == agent.name
            and not monitor.covered
            and (entry is None or not (entry.ours or entry.phase is Phase.TAKEN))
        ):
            raise Violation(f"{agent.name} has forgotten its own drain: {node.reason!r}")
        lifts = node.states - {"IDLE", "ALLOCATED", "MIXED", "DRAIN", "NOT_RESPONDING", "PLANNED", "RESERVED"} == set()
        mine = monitor.holder == agent.name and not monitor.by_hand and not monitor.covered
        if (
            node.drained
            and mine
            and not agent.order
            and lifts
            and not (entry is None or entry.phase is Phase.TAKEN or entry.manual)
        ):
            raise Violation(f"{agent.name} is well and its drain still stands: {node.reason!r}")
        if free and agent.order:
            raise Violation(f"{agent.name} is broken and its node in service")
