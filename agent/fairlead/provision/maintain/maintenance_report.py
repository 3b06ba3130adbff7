"""Reports the result of a maintenance run as JSON, as text and as an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.errors import ExitCode
from fairlead.provision.inventory import fold
from fairlead.provision.maintain.maintenance_display import summary
from fairlead.provision.maintain.maintenance_journal import MaintenanceRun
from fairlead.provision.maintain.maintenance_steps import RESUMED, DrainOwner, MaintenanceStep, NodeService, NodeWork


class NodeReport(Struct, frozen=True, kw_only=True):
    """Describes one node. condition: the node's condition now, in words.

    in_service: whether slurmctld starts new jobs on the node now, or None if slurmctld was not asked. slurm: the node's state,
    reason and user in slurmctld, or "". seconds: from the drain to the end of the node's maintenance. busy_seconds: from the
    drain until the node was idle.
    """

    node: str
    step: str
    detail: str
    condition: str
    reason: str
    seconds: float
    busy_seconds: float
    rebooted: bool
    changed: tuple[str, ...]
    pending: tuple[str, ...]
    in_service: bool | None = None
    slurm: str = ""


class MaintenanceReport(Struct, frozen=True, kw_only=True):
    schema: int = 1
    run: str
    state: str
    reason: str
    began: float
    ended: float
    nodes: tuple[NodeReport, ...]

    @property
    def exit_code(self) -> ExitCode:
        """Return 0 if all nodes are done and in service, 69 if a node failed. Return 75 if a node was not done, is not known
        to be in service now, or waits for a reboot."""
        steps = {n.step for n in self.nodes}
        if MaintenanceStep.FAILED.value in steps:
            return ExitCode.UNAVAILABLE
        well = all(n.step == MaintenanceStep.DONE.value and n.in_service and not n.pending for n in self.nodes)
        return ExitCode.OK if well else ExitCode.TRY_AGAIN


def report(run: MaintenanceRun, now: Mapping[str, NodeService] | None = None) -> MaintenanceReport:
    """Return the report of a run. ``now``: by node name, whether the node is in service now. Without ``now`` the report has
    only what the journal says."""
    return MaintenanceReport(
        run=run.id,
        state=run.state,
        reason=run.plan.reason,
        began=run.began,
        ended=run.ended,
        nodes=tuple(node_report(w, (now or {}).get(w.node)) for w in run.works),
    )


def node_report(work: NodeWork, now: NodeService | None = None) -> NodeReport:
    lifted = work.step is MaintenanceStep.FAILED and work.detail.startswith(RESUMED)
    drained = not lifted and work.step not in (
        MaintenanceStep.QUEUED,
        MaintenanceStep.DONE,
        MaintenanceStep.SKIPPED,
        MaintenanceStep.TAKEN,
        MaintenanceStep.RELEASED,
        MaintenanceStep.NOT_BEGUN,
    )
    return NodeReport(
        node=work.node,
        step=work.step.value,
        detail=work.detail,
        condition=condition(work, now),
        reason=(work.mark or work.text) if drained else "",
        seconds=round(work.ended - work.began, 3) if work.ended and work.began else 0.0,
        busy_seconds=round(work.idle - work.began, 3) if work.idle and work.began else 0.0,
        rebooted=bool(work.boot_after),
        changed=work.changed,
        pending=work.pending,
        in_service=now.serving if now is not None else None,
        slurm=now.who if now is not None else "",
    )


def condition(work: NodeWork, now: NodeService | None) -> str:
    """Return the node's condition in a few words: from slurmctld (``now``) if slurmctld was asked, else from the journal."""
    if now is None:
        return "in service when it was done" if work.step is MaintenanceStep.DONE else by_journal(work)
    if work.step in (MaintenanceStep.DONE, MaintenanceStep.RELEASED) and not now.serving:
        return f"not in service now: {now.who}"
    if work.step is MaintenanceStep.TAKEN:
        return "left as somebody else has set it: " + ("in service now" if now.serving else now.who)
    if work.step is MaintenanceStep.FAILED and now.serving:
        return "in service now: somebody has resumed it"
    if work.step is MaintenanceStep.FAILED and now.hand is not DrainOwner.OURS:
        return f"not in service: {now.who}"
    return by_journal(work)


def by_journal(work: NodeWork) -> str:
    """Return the node's condition according to the journal."""
    if work.step is MaintenanceStep.FAILED and work.detail.startswith(RESUMED):
        return "not drained any more, and not in service"
    words = {
        MaintenanceStep.QUEUED: "not begun, untouched",
        MaintenanceStep.DONE: "in service",
        MaintenanceStep.FAILED: "drained, and stays so",
        MaintenanceStep.TAKEN: "left as somebody else has set it",
        MaintenanceStep.SKIPPED: "untouched",
        MaintenanceStep.RELEASED: "given back as it was",
        MaintenanceStep.NOT_BEGUN: "untouched",
        MaintenanceStep.DRAINING: "being drained, or not yet",
        MaintenanceStep.RESUMING: "well, being resumed",
        MaintenanceStep.LIFTING: "being given back",
        MaintenanceStep.UNDOING: "being given back, to be begun later",
    }
    return words.get(work.step, "drained by this run")


def text(report: MaintenanceReport, works: Sequence[NodeWork]) -> str:
    """Return the report as text: one line for all nodes with the same outcome, and the totals in the last line."""
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for n in report.nodes:
        groups.setdefault((n.step, n.condition, n.detail, n.pending), []).append(n.node)
    lines = []
    for (step, condition, detail, pending), nodes in groups.items():
        said = f": {detail}" if detail and step != MaintenanceStep.DONE.value else ""
        lines.append(f"{fold(nodes)}: {step.replace('_', ' ')}, {condition}{said}")
        lines += [f"  waits for a reboot (--reboot): {what}" for what in pending]
    lines.append(f"run {report.run}: {summary(works)}")
    return "\n".join(lines)


def unended(run: str, *, full: str, closed: str) -> str:
    """Return why a run has stopped before all its nodes were begun, and how to go on with it. full: why the journal cannot be
    written, or "". closed: why the window allows no further node, or ""."""
    why = f"{full}: no further node was started; make room there" if full else closed or "stopped"
    return f"{why}; go on with --resume {run}{' --window [BEGIN/]END' if closed else ''}, or --abort {run}"
