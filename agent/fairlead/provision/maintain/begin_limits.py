"""Decides which queued nodes may begin now. The limits are batch, failures, floors, drain budget and window. The code is pure.

Drains of maintenance are counted separately (docs/decisions/0011). They do not use up an agent's drain budget. Maintenance
begins no node in a partition whose drain budget is used up by broken nodes. The batch and the floors limit how many nodes
maintenance itself drains. "Our drain" is the drain that this run has set on a node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.policy.drain_budget import allowed
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork

#: How long other runs may take to undo their drains, and how long a node whose drain was undone may take to answer slurmctld.
CONTEST_SECONDS = 3.0
ANSWER_SECONDS = 15.0


class NodeAvailability(Struct, frozen=True, kw_only=True):
    """Describes a node in a listing. usable: new jobs start on the node now. out: the node is drained, down or otherwise
    unavailable. A node that only does not answer now is neither usable nor out (as in the agents' drain budget).

    maintained: a run of `fairlead maintain` has drained the node. reserved: a maintenance reservation is running, so the node
    would be out without a drain too. since: the time of the node's reason, by slurmctld's clock.
    jobs: how many jobs the node has. jobs_end: when the last job must end by its time limit, in Unix seconds; inf if a job has
    no time limit, 0 without jobs.
    """

    name: str
    partitions: tuple[str, ...] = ()
    usable: bool = True
    out: bool = False
    maintained: bool = False
    reserved: bool = False
    since: float = 0.0
    jobs: int = 0
    jobs_end: float = 0.0


class Budget(Struct, frozen=True):
    """Holds how many nodes of a partition may be out, from a node's document (policy.budget_percent, policy.budget_nodes)."""

    percent: int = 100
    nodes: int = 0


class BrokenFloor(Struct, frozen=True, kw_only=True):
    """Describes a floor that our drain has broken together with the drains of other runs. wait: our drain may stay for now,
    because other runs are expected to undo their drains first."""

    why: str
    wait: bool = False


class BeginChoice(Struct, frozen=True, kw_only=True):
    """Says which nodes begin now. begin: their Slurm names, in order. over: why no further node begins in this run. closed: why
    no further node begins in this window (the run can go on in the next window). waits_because: why no node begins now. Each
    reason is "" if it does not apply."""

    begin: tuple[str, ...] = ()
    over: str = ""
    closed: str = ""
    waits_because: str = ""


def choose(
    works: Sequence[NodeWork],
    availability: Mapping[str, NodeAvailability],
    plan: MaintenancePlan,
    now: float,
    *,
    budgets: Mapping[str, Budget],
    expected_seconds: float,
) -> BeginChoice:
    """Return the nodes that may begin now. ``works``: all nodes of the run. ``availability``: all nodes of the cluster."""
    queue = [w for w in works if w.step is MaintenanceStep.QUEUED]
    if not queue:
        return BeginChoice()
    failed = sum(w.step in (MaintenanceStep.FAILED, MaintenanceStep.MARKING) for w in works)
    if failed >= plan.max_failed:
        return BeginChoice(over=f"{failed} failed, --max-failed is {plan.max_failed}")
    if now < plan.opens:
        return BeginChoice(waits_because="the window has not begun")
    if plan.window and now >= plan.window:
        return BeginChoice(closed="the window has ended")
    if plan.window and now + expected_seconds > plan.window:
        return BeginChoice(closed=f"the window ends before another node would be done ({expected_seconds:.0f} s)")
    active = sum(in_work(w) for w in works)
    if active >= plan.batch:
        return BeginChoice()
    order = sorted(range(len(queue)), key=lambda i: (bool(jobs(availability, queue[i])), i))  # idle nodes first
    unavailable = {w.slurm for w in works if in_work(w)}
    chosen: list[str] = []
    waits_because = ""
    late = 0
    for work in (queue[i] for i in order):
        if len(chosen) + active >= plan.batch:
            break
        node = availability.get(work.slurm)
        if node is not None and plan.window and node.jobs and node.jobs_end + expected_seconds > plan.window:
            late += 1
            waits_because = waits_because or f"{work.node}: its jobs may run past the window"
            continue
        why = bound(node, availability, unavailable, plan, budgets.get(work.slurm, Budget())) if node is not None else ""
        if why:
            waits_because = waits_because or why
            continue
        chosen.append(work.slurm)
        unavailable.add(work.slurm)
    if late == len(queue) and not active:
        return BeginChoice(closed="the jobs of the nodes that are left may run past the window")
    return BeginChoice(begin=tuple(chosen), waits_because="" if chosen else waits_because)


def in_work(work: NodeWork) -> bool:
    """Say whether the node counts against the batch."""
    return work.step not in (MaintenanceStep.QUEUED,) and not work.ended


def jobs(availability: Mapping[str, NodeAvailability], work: NodeWork) -> int:
    node = availability.get(work.slurm)
    return node.jobs if node is not None else 0


def bound(
    node: NodeAvailability,
    availability: Mapping[str, NodeAvailability],
    unavailable: set[str],
    plan: MaintenancePlan,
    budget: Budget,
) -> str:
    """Return the first limit that would be broken if this node were drained too, or "" if none would be. ``unavailable``: the
    nodes that are in work or chosen already."""
    if node.out:
        return ""  # an earlier run has left the node drained, so our drain makes no usable node unavailable
    for partition in node.partitions:
        members = [p for p in availability.values() if partition in p.partitions]
        usable = sum(p.usable and p.name not in unavailable for p in members)
        floor = plan.floors.get(partition, 0)
        if usable - node.usable < floor:
            return below(partition, usable, floor)
        broken = sum(p.out and not p.maintained and p.name not in unavailable for p in members)
        may = allowed(budget.percent, budget.nodes, len(members))
        if broken >= may:
            return f"drain budget of partition {partition} is used up by others: {broken} of {len(members)} nodes are out"
    return ""


def below(partition: str, usable: int, floor: int) -> str:
    return f"floor of partition {partition}: {usable} nodes are usable, {floor} must stay usable"


def overshoot(
    name: str, availability: Mapping[str, NodeAvailability], plan: MaintenancePlan, *, waited: float
) -> BrokenFloor | None:
    """Return the floor of this run that our drain of ``name`` has broken, or None if the drain may stay. ``availability``: the
    nodes as listed after that drain. ``waited``: the seconds since the floor was first seen broken.

    Two runs that list the nodes at the same time may both find that a floor allows one more drain. As with the agents' budget
    (docs/decisions/0011), the drains of all runs are sorted by (time, name). A run undoes its drain at once if the earlier
    drains have used up what the floor allows. The other runs wait for this and list the nodes again. A node whose drain was just
    undone does not answer slurmctld yet, so the other runs wait longer in that case.
    """
    node, waits = availability[name], None
    if node.reserved:
        return None  # the reservation has made the node unavailable, and not our drain
    for partition in node.partitions:
        members = [p for p in availability.values() if partition in p.partitions]
        usable, floor = sum(p.usable for p in members), plan.floors.get(partition, 0)
        if usable >= floor:
            continue
        soon = sum(not p.out for p in members)
        drains = [(p.since, p.name) for p in members if p.maintained and not p.reserved]
        ahead = sum(each < (node.since, name) for each in drains)
        if ahead >= soon + len(drains) - floor or waited >= (CONTEST_SECONDS if soon < floor else ANSWER_SECONDS):
            return BrokenFloor(why=below(partition, usable, floor))
        waits = BrokenFloor(why=below(partition, usable, floor), wait=True)
    return waits


def floor_of(text: str, total: int) -> int:
    """Return the number of nodes that ``4`` or ``50%`` means. A percentage of ``total`` is rounded up. Raises ValueError."""
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit()) or (text.endswith("%") and int(digits) > 100):
        raise ValueError(f"{text!r} is neither a number of nodes nor a percentage")
    return math.ceil(total * int(digits) / 100) if text.endswith("%") else int(digits)


def batch_of(text: str, total: int) -> int:
    """Return the number of nodes that ``4`` or ``10%`` means. A percentage of ``total`` is rounded down, to at least one
    node. Raises ValueError."""
    digits = text.removesuffix("%")
    if not (digits.isascii() and digits.isdigit()) or not int(digits) > 0 or (text.endswith("%") and int(digits) > 100):
        raise ValueError(f"{text!r} is neither a number of nodes nor a percentage")
    return max(1, total * int(digits) // 100 if text.endswith("%") else int(digits))
