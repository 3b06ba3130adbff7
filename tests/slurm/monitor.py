"""What must hold whatever the interleaving: a world to act in, its clock, and a monitor that sees every RPC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from fairlead.errors import SlurmError
from fairlead.policy.decision_rules import Rules
from fairlead.policy.ownership import PROLOG_ERROR, parse, strip_suffixes
from fairlead.slurm.client import NodeState, SlurmClient

if TYPE_CHECKING:
    from tests.slurm.interleave import Agent

RULES = Rules(budget_percent=100, common_cause_nodes=0, suspect_job_nodes=0)
STOPPED = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL"})


class World(Protocol):
    """One node of a slurmctld. ``update`` is a person's `scontrol update`, ``event`` anything else of ``events``: True when it
    could happen. ``passed``: so many seconds have gone by for the agents. ``rest``: nothing is to disturb what is done in it.
    ``settle``: what is under way in slurmctld comes to its end; the node is up and registered. ``watch``: the monitor's
    client, which waits for an answer. ``away``: the agents get none. ``steady``: nothing changes by itself."""

    client: SlurmClient
    watch: SlurmClient
    away: bool
    steady: bool
    node: str
    events: tuple[str, ...]

    def update(self, state: str, reason: str) -> None: ...

    def event(self, what: str) -> bool: ...

    def settle(self) -> None: ...

    def passed(self, seconds: float) -> None: ...

    def rest(self) -> AbstractContextManager[None]: ...


class Violation(BaseException):
    """A property that does not hold. No Exception: the courier would take it for a failure of its own and go on."""


class Clock:
    """``jump`` moves only the wall clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.jump = 1_800_000_000.0

    def mono(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.jump


class Monitor:
    """Who holds the node: "", an agent's name, "person" or "slurm"; ``since`` when, as a count of events. ``replaced``: the
    agent whose drain a person has put their words over."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self.world = world
        self.counts = counts
        self.holder = self.replaced = ""
        self.by_hand = self.covered = False
        self.since = self.time = 0
        self.lines: list[str] = []
        self._seen: NodeState | None = None

    def now(self, *, changed: bool = False) -> NodeState:
        """The node as it is; ``changed`` since it was last asked for. A steady world changes by nothing else."""
        if changed or self._seen is None or not self.world.steady:
            self._seen = self.world.watch.node(self.world.node)
        return self._seen

    def tell(self, text: str) -> None:
        self.time += 1
        self.lines.append(f"{self.time:3} {text}")

    def hold(self, by: str, *, by_hand: bool = False) -> None:
        self.replaced = "" if by != "person" else self.holder if self.holder not in ("", "person", "slurm") else self.replaced
        self.holder, self.since, self.by_hand, self.covered = by, self.time, by_hand, False

    def free(self) -> None:
        self.holder = self.replaced = ""
        self.since, self.by_hand, self.covered = self.time, False, False

    def change(self, what: str, act: Callable[[], object], agents: Sequence[Agent], *, person: bool) -> None:
        """Something that no agent does."""
        before = self.now()
        self.tell(what)
        try:
            act()
        except SlurmError as e:
            self.lines[-1] += f" refused: {e}"
        after = self.now(changed=True)
        self.lines[-1] += f" -> {'+'.join(sorted(after.states))} {after.reason!r}"
        was, stops = bool(before.states & STOPPED), bool(after.states & STOPPED)
        if what == "killed":
            self._forgotten(before, after, agents)
            return
        if before.drained and not after.drained and (not stops or person):
            for agent in agents:
                agent.was_lifted = person  # a reboot lifts it, and is nobody's resume
                if person and agent.name in (self.holder, self.replaced):
                    agent.lifted(self.time)
        if was and not stops:
            self.free()
        elif stops and person and (after.reason != before.reason or not was):
            self.hold("person")
        elif stops and (not was or (before.drained and not after.drained and self.holder in ("", "person", "slurm"))):
            self.hold("slurm")
        elif stops and not person and after.reason != before.reason and not after.reason.startswith(before.reason):
            self.covered = True
            self.since = self.time if self.holder == "slurm" else self.since

    def _forgotten(self, before: NodeState, after: NodeState, agents: Sequence[Agent]) -> None:
        """slurmctld was killed and has the state that it had saved. Words that stand again are nobody's; who lifted them or
        wrote others does not know."""
        for agent in agents:
            agent.lift = None
            agent.was_lifted = agent.was_lifted and not (before.drained and not after.drained)
        drained = (before.drained, before.reason) == (after.drained, after.reason)
        if not after.states & STOPPED:
            self.free()
        elif not drained or not before.states & STOPPED:
            self.hold("slurm")

    def write(self, agent: Agent, kind: str, read: int, text: str, *, by_hand: bool, issued: bool) -> None:
        """Before an agent's write reaches slurmctld. ``read``: when it last read. ``issued``: it was well when it was ordered."""
        node = self.now()
        stopped = bool(node.states & STOPPED)
        mark = self.holder == "slurm" and strip_suffixes(node.reason) == PROLOG_ERROR and agent.knew_refusal
        if stopped and self.holder not in ("", agent.name) and not mark:
            if self.holder == "slurm" and strip_suffixes(node.reason) in agent.wire.texts:
                self.counts["slurm's mark under our old text"] += 1  # 24.11 without slurmdbd keeps the text of a lifted drain
            elif self.since <= read:
                raise Violation(f"{agent.name} {kind}s what {self.holder} holds: {node.reason!r}")
            else:
                self.counts["in the window"] += 1
        if stopped and kind == "resume" and self.holder == agent.name and self.by_hand and not by_hand and self.since <= read:
            raise Violation(f"{agent.name} lifts what a person drained by hand")
        if kind == "resume" and not by_hand and not issued:
            raise Violation(f"{agent.name} resumes a broken node")
        if kind == "drain" and parse(text) is not None and not by_hand and agent.lift is not None:  # else: put back
            at, level = agent.lift
            if read > at and agent.evidence <= level:
                raise Violation(f"{agent.name} drains again what a person has lifted")

    def wrote(self, agent: Agent, kind: str, *, by_hand: bool) -> None:
        """After it."""
        node = self.now(changed=True)
        self.counts[f"{kind} written"] += 1
        if node.states & STOPPED:
            put_back = kind == "drain" and parse(node.reason) is None
            self.hold("person" if put_back else agent.name if kind == "drain" else "slurm", by_hand=by_hand)
        else:
            self.free()
