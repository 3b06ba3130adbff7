"""Decides by the list of all nodes whether one more node may be drained: budgets, the common cause, the suspect job.

Each agent decides by itself, at the same time as others, and slurmctld offers no lock. So an agent reads the list of nodes
before it drains (``room``) and again after it has drained (``overshoot``). It keeps its drain only if the list that it read
*after* the drain is within every limit. Of all agents that keep a drain, the agent that read its list last has seen the drains
of all others. So in the end the drains are within every limit, whatever their order was.

If more nodes are drained than a limit allows, the order of (reason time, name) decides which agents undo their drains. An agent
whose drain has no room in this order undoes it at once. An agent whose drain has room waits once for the others and reads the
list again. Reason times are whole seconds of slurmctld's clock.

docs/explanation/many-nodes-at-once.md says which limit covers which drain. Budgets cover every drain. Common cause and suspect
job cover neither a person's drain nor a device that is certainly gone (``CERTAIN``). No limit counts drains by
``fairlead maintain``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding
from fairlead.policy.decision_rules import Rules
from fairlead.policy.drain_budget import allowed, seats
from fairlead.policy.ownership import MAINTAIN, MANUAL, parse

#: Pairs of check and action. In findings with these pairs the driver itself reports that no job can use the device, whoever
#: broke it: NVIDIA's RESTART_BM and CHECK_MECHANICALS (Xid catalogue), a failed row remap and too many retired pages (GPU
#: Memory Error Management, RMA), and NVML's RESET_REQUIRED.
CERTAIN = frozenset(
    {
        ("xid", Action.REBOOT_NODE),
        ("xid", Action.CHECK_HARDWARE),
        ("row_remap", Action.CONTACT_SUPPORT),
        ("retired_pages", Action.CONTACT_SUPPORT),
        ("gpu_readings", Action.RESET_GPU),
    }
)
#: Pairs of check and fault that are not certain although ``CERTAIN`` has their action. Here the driver reports no broken
#: device: jobs of several users have failed on the same GPU.
ONLY_LIKELY = frozenset({("xid", "users")})
_JOB = re.compile(r"(?:^| )job=([0-9]{1,19})\Z")


class LimitKind(StrEnum):
    """Names the kind of a drain limit. Common cause and suspect job are suspicions. They do not delay a drain that is certain."""

    PARTITION = "partition"
    SWITCH = "switch"
    BLOCK = "block"
    COMMON_CAUSE = "common_cause"
    SUSPECT_JOB = "suspect_job"

    @property
    def suspicion(self) -> bool:
        return self in (LimitKind.COMMON_CAUSE, LimitKind.SUSPECT_JOB)


class ListedNode(Struct, frozen=True, kw_only=True):
    """Describes a node as slurmctld lists it. ``time`` is the time of the reason (Unix seconds). ``available`` says whether new
    jobs may start on the node."""

    name: str
    available: bool = True
    drained: bool = False
    reason: str = ""
    time: float = 0.0
    partitions: tuple[str, ...] = ()


class Group(Struct, frozen=True):
    """Holds a group of nodes in slurmctld's topology: the nodes under one leaf switch, or in one block."""

    kind: LimitKind
    name: str
    nodes: frozenset[str]


class NodeList(Struct, frozen=True, kw_only=True):
    """Holds all nodes as slurmctld lists them at one time, with the groups of its topology. ``me`` is the name of this node."""

    me: str
    nodes: tuple[ListedNode, ...]
    groups: tuple[Group, ...] = ()

    @property
    def mine(self) -> ListedNode | None:
        return next((n for n in self.nodes if n.name == self.me), None)


class DrainCause(Struct, frozen=True, kw_only=True):
    """Describes why a node is to be drained. check: the check that found the fault. job: the job to blame, or None. certain: no
    job can use the device (``CERTAIN``). waited: for how many seconds common cause or suspect job have already delayed this
    drain."""

    check: str
    job: int | None = None
    certain: bool = False
    waited: float = 0.0


class LimitUse(Struct, frozen=True, kw_only=True):
    """Describes how far one limit is used up. allowed: how many nodes may be unavailable. total: the number of nodes that the
    limit covers. ours: (reason time, name) of the nodes that fairlead drained. others: the names of the other unavailable
    nodes."""

    kind: LimitKind
    name: str
    allowed: int
    total: int = 0
    ours: frozenset[tuple[float, str]] = frozenset()
    others: frozenset[str] = frozenset()

    def out(self, but: str) -> frozenset[str]:
        """Return the names of the unavailable nodes, without the node ``but``."""
        return (self.others | {name for _, name in self.ours}) - {but}


class DrainLimit(Struct, frozen=True, kw_only=True):
    """Describes the limit because of which a drain is forbidden or undone. ``text`` is one line for the verdict. ``wait`` says
    that the agent must read the list of nodes again before it undoes the drain."""

    kind: LimitKind
    name: str
    text: str
    wait: bool = False


def certain(finding: Finding) -> bool:
    """Return whether no job can use the device any more, or not before the next boot or reset, whoever caused this."""
    return (finding.check, finding.action) in CERTAIN and (finding.check, finding.fault) not in ONLY_LIKELY


def job_of(summary: str) -> int | None:
    """Return the job that the summary of fairlead's reason blames (``job=ID`` at its end), or None."""
    match = _JOB.search(summary)
    return int(match[1]) if match else None


def room(listed: NodeList, fault: DrainCause, rules: Rules, now: float) -> DrainLimit | None:
    """Return the first limit that leaves no room for one more drain, or None. An agent calls this before it drains. ``now`` is in
    Unix seconds."""
    for limit in limits(listed, fault, rules, now):
        out = limit.out(listed.me)
        if len(out) >= limit.allowed:
            return _drain_limit(limit, out, rules)
    return None


def overshoot(listed: NodeList, fault: DrainCause, rules: Rules, *, waited: bool = False) -> DrainLimit | None:
    """Return the limit that this node's drain exceeds, or None if the drain may stay. An agent calls this after it has drained
    the node. If the result has ``wait``, the agent reads the list of nodes once more and calls this again with ``waited``. If the
    result has no ``wait``, the agent undoes the drain."""
    mine = listed.mine
    if mine is None:
        return None
    waits: DrainLimit | None = None
    for limit in limits(listed, fault, rules, mine.time):
        out = limit.out(listed.me)
        if len(out) < limit.allowed:
            continue
        ahead = sum(each < (mine.time, listed.me) for each in limit.ours)
        if waited or ahead >= seats(limit.allowed, len(limit.others - {listed.me})):
            return _drain_limit(limit, out, rules)
        waits = waits or replace(_drain_limit(limit, out, rules), wait=True)
    return waits


def limits(listed: NodeList, fault: DrainCause, rules: Rules, drain_time: float) -> Iterator[LimitUse]:
    """Yield every limit that applies to this node's drain. The window of common cause ends at ``drain_time`` (Unix seconds of
    slurmctld's clock, or of this node's before the drain). Drains that are later than that by more than a window are of no
    importance: this node's clock is wrong, and after the drain slurmctld's own times count."""
    counted = [n for n in listed.nodes if not (n.drained and n.reason.startswith(MAINTAIN))]
    for partition in listed.mine.partitions if listed.mine else ():
        members = [n for n in counted if partition in n.partitions]
        total = sum(partition in n.partitions for n in listed.nodes)
        yield _budget(LimitKind.PARTITION, partition, members, total, allowed(rules.budget_percent, rules.budget_nodes, total))
    for group in listed.groups:
        if listed.me in group.nodes:
            members = [n for n in counted if n.name in group.nodes]
            total = sum(n.name in group.nodes for n in listed.nodes)
            yield _budget(group.kind, group.name, members, total, allowed(rules.budget_group_percent, 0, total))
    if fault.certain or fault.check == MANUAL:
        return
    drains = [(n, t) for n in counted if n.drained and n.name != listed.me and (t := parse(n.reason)) and t.check != MANUAL]
    if rules.suspect_job_nodes and fault.job is not None and not _over(fault.waited, rules.suspect_job_hold_seconds):
        named = frozenset((n.time, n.name) for n, token in drains if job_of(token.summary) == fault.job)
        yield LimitUse(kind=LimitKind.SUSPECT_JOB, name=str(fault.job), allowed=rules.suspect_job_nodes, ours=named)
    if rules.common_cause_nodes and not _over(fault.waited, rules.common_cause_hold_seconds):
        since = drain_time - fault.waited - rules.common_cause_window_seconds
        until = drain_time + rules.common_cause_window_seconds
        alike = frozenset((n.time, n.name) for n, token in drains if token.check == fault.check and since <= n.time <= until)
        yield LimitUse(kind=LimitKind.COMMON_CAUSE, name=fault.check, allowed=rules.common_cause_nodes, ours=alike)


def _over(waited: float, limit: int) -> bool:
    return bool(limit) and waited >= limit


def _budget(kind: LimitKind, name: str, members: Sequence[ListedNode], total: int, may: int) -> LimitUse:
    out = [n for n in members if not n.available]
    ours = frozenset((n.time, n.name) for n in out if n.drained and parse(n.reason))
    others = frozenset(n.name for n in out) - {name for _, name in ours}
    return LimitUse(kind=kind, name=name, allowed=may, total=total, ours=ours, others=others)


def _drain_limit(limit: LimitUse, out: frozenset[str], rules: Rules) -> DrainLimit:
    where = ", ".join(sorted(out)[:3]) + (", ..." if len(out) > 3 else "")
    if limit.kind is LimitKind.COMMON_CAUSE:
        text = f"common cause: {limit.name} drained {len(out)} other nodes within {rules.common_cause_window_seconds} s"
        text += f" ({where}), {_for(rules.common_cause_hold_seconds)}"
    elif limit.kind is LimitKind.SUSPECT_JOB:
        text = f"job {limit.name} is the suspect: drains of {len(out)} other nodes blame it ({where})"
        text += f", {_for(rules.suspect_job_hold_seconds)}"
    else:
        text = f"drain budget of {limit.kind.value} {limit.name} is used up: {len(out)} of {limit.total} nodes are out"
        text += f", {limit.allowed} may be"
    return DrainLimit(kind=limit.kind, name=limit.name, text=text)


def _for(seconds: int) -> str:
    return f"held for {seconds} s at most" if seconds else "held until a person acts"
