"""Makes a run from the nodes and limits that an admin asks for. Wrong ones raise an error before any node is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from fairlead.config import Site
from fairlead.errors import UsageError
from fairlead.policy.drain_budget import allowed
from fairlead.policy.ownership import parse, strip_suffixes
from fairlead.provision.inventory import Target, fold, targets
from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.begin_limits import Budget, NodeAvailability, batch_of, floor_of
from fairlead.provision.maintain.controller import Controller, Listing
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork

TOO_FEW = "--max-failed: at least 1: no further nodes are started after so many failures"


class MaintenanceRequest(Struct, frozen=True, kw_only=True):
    """Holds the options of the command line. batch: ``4`` or ``10%``. floors: ``PARTITION=4`` or ``PARTITION=50%``. take_over:
    replace drains of other maintenance runs. The times are as in MaintenancePlan."""

    nodelist: str
    reason: str
    batch: str = "1"
    max_failed: int = 1
    floors: Sequence[str] = ()
    reboot: bool = False
    opens: float = 0.0
    window: float = 0.0
    max_wait: float = 0.0
    reboot_seconds: float = 1800.0
    verify_seconds: float = 300.0
    take_over: bool = False


class Prepared(Struct, frozen=True, kw_only=True):
    """Holds a run that may begin. targets: by the node's name in the site. budgets: the drain budgets, by Slurm name."""

    plan: MaintenancePlan
    works: tuple[NodeWork, ...]
    targets: Mapping[str, Target]
    budgets: Mapping[str, Budget]


def prepare(site: Site, asked: MaintenanceRequest, listing: Listing) -> Prepared:
    """Return the run that ``asked`` describes. Raises UsageError, ConfigError or InputMissing if the request is wrong. No node
    is touched here."""
    chosen = targets(site, asked.nodelist)
    missing = [t.node for t in chosen if t.document.slurm_node not in listing.nodes]
    if missing:
        raise UsageError(
            f"{fold(missing)}: slurmctld has no such node in any partition", hint="correct the nodelist; no node was touched"
        )
    if not asked.reason.strip():
        raise UsageError("--reason: say why, for `sinfo -R`")
    if asked.max_failed < 1:
        raise UsageError(TOO_FEW)
    plan = MaintenancePlan(
        reason=" ".join(asked.reason.split()),
        batch=batch(asked.batch, len(chosen)),
        max_failed=asked.max_failed,
        floors=floors(asked.floors, listing.availability),
        reboot=asked.reboot,
        opens=asked.opens,
        window=asked.window,
        max_wait=asked.max_wait,
        reboot_seconds=asked.reboot_seconds,
        verify_seconds=asked.verify_seconds,
    )
    works = tuple(
        NodeWork(
            node=t.node,
            slurm=t.document.slurm_node,
            replaced_reason=maintenance_reason(t.document.slurm_node, listing) if asked.take_over else "",
        )
        for t in chosen
    )
    return Prepared(plan=plan, works=works, targets=by_name(chosen), budgets=budgets(chosen))


def maintenance_reason(slurm: str, listing: Listing) -> str:
    """Return the reason of a maintenance run that the node has, even if another admin host wrote it, or "" if it has none."""
    reason = strip_suffixes(listing.nodes[slurm].reason)
    return reason if listing.availability[slurm].maintained and parse(reason) else ""


def by_name(chosen: Sequence[Target]) -> dict[str, Target]:
    return {t.node: t for t in chosen}


def budgets(chosen: Sequence[Target]) -> dict[str, Budget]:
    """Return the agents' drain budget of each node's document, by Slurm name."""
    return {t.document.slurm_node: Budget(t.document.policy.budget_percent, t.document.policy.budget_nodes) for t in chosen}


def replanned(
    plan: MaintenancePlan, changed: Mapping[str, Any], nodes: int, availability: Callable[[], Mapping[str, NodeAvailability]]
) -> MaintenancePlan:
    """Return the plan changed by the options of --resume. ``changed``: these options, by their names in MaintenanceRequest.
    ``availability``: reads all nodes from slurmctld, and is called only for a floor. Raises UsageError."""
    new = dict(changed)
    if "batch" in new:
        new["batch"] = batch(new["batch"], nodes)
    if "floors" in new:
        new["floors"] = {**plan.floors, **floors(new["floors"], availability())}
    if new.get("max_failed", 1) < 1:
        raise UsageError(TOO_FEW)
    return replace(plan, **new)


def batch(word: str, nodes: int) -> int:
    try:
        return batch_of(word, nodes)
    except ValueError as e:
        raise UsageError(f"--batch {e}") from None


def floors(words: Sequence[str], availability: Mapping[str, NodeAvailability]) -> dict[str, int]:
    """Return by partition the number of nodes that ``main=4`` or ``main=50%`` means. Raises UsageError."""
    found: dict[str, int] = {}
    for word in words:
        partition, equals, number = word.partition("=")
        total = sum(partition in p.partitions for p in availability.values())
        if not equals or not total:
            raise UsageError(f"--floor {word}: no such partition" if equals else f"--floor {word}: PARTITION=N or PARTITION=P%")
        try:
            found[partition] = floor_of(number, total)
        except ValueError as e:
            raise UsageError(f"--floor {word}: {e}") from None
        if found[partition] >= total:
            raise UsageError(f"--floor {word}: {partition} has {total} nodes: no node could ever be started")
    return found


def outlook(
    prepared: Prepared, controller: Controller, listing: Listing, earlier_reasons: Mapping[str, frozenset[str]]
) -> list[str]:
    """Return lines that say what the run would do now: the nodes in their order, the nodes it would not touch, and the limits."""
    plan = prepared.plan
    idle: list[str] = []
    busy: list[str] = []
    not_touched: list[str] = []
    for work in prepared.works:
        texts = earlier_reasons.get(work.slurm, frozenset()) | frozenset({work.replaced_reason} - {""})
        adopt = bool(texts and controller.left_by(listing.nodes[work.slurm], texts))
        move = maintenance_steps.before_drain(work, controller.seen(work, listing), adopt=adopt)
        if move is not None and move.step is MaintenanceStep.SKIPPED:
            not_touched.append(f"{work.node}: {move.why}")
        else:
            (busy if listing.availability[work.slurm].jobs else idle).append(work.node)
    lines = [f"{fold(idle)}: idle, first"] if idle else []
    lines += [f"{fold(busy)}: the run waits until their jobs have ended"] if busy else []
    lines += not_touched
    failures = "1 failure" if plan.max_failed == 1 else f"{plan.max_failed} failures"
    lines.append(f"batch size {plan.batch}; no further nodes are started after {failures}")
    for partition in sorted({p for w in prepared.works for p in listing.availability[w.slurm].partitions}):
        members = [p for p in listing.availability.values() if partition in p.partitions]
        usable, floor = sum(p.usable for p in members), plan.floors.get(partition, 0)
        limits = {allowed(b.percent, b.nodes, len(members)) for n, b in prepared.budgets.items() if n in listing.availability}
        broken = sum(p.out and not p.maintained for p in members)
        said = f"partition {partition}: {usable} of {len(members)} nodes usable, floor {floor}; {broken} down for other reasons"
        lines.append(f"{said} (maintenance pauses when {min(limits, default=0)} or more are down)")
    if plan.window:
        opens = f"from {datetime.fromtimestamp(plan.opens):%Y-%m-%d %H:%M} " if plan.opens else ""
        until = f"until {datetime.fromtimestamp(plan.window):%Y-%m-%d %H:%M}"
        lines.append(f"window: {opens}{until}; no node is started that would not be done by then")
    lines.append(
        "each node is rebooted" if plan.reboot else "no node is rebooted: what waits for a reboot is reported (--reboot)"
    )
    return lines
