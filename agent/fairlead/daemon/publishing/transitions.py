"""Logs the findings that begin or end, and records changes of this node in Slurm in the audit trail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.host import log
from fairlead.model.finding import Finding, Level

SHOWN = 3  # at most this number of log lines per check and level, because drift of one setting may be on each of 112 CPUs


def findings(reported: Mapping[str, str], now: Sequence[Finding]) -> dict[str, str]:
    """Log each finding that is new, has changed its level, or is gone since the last call.

    ``reported``: what the last call returned. Return the level of each present finding by its key.
    """
    present: dict[str, str] = {}
    shown: Counter[tuple[str, str]] = Counter()
    for finding in now:
        if finding.level is Level.OK:
            continue
        key = f"{finding.key} {finding.evidence_id or finding.summary}"
        present[key] = finding.level.word
        kind = (finding.check, finding.level.word)
        shown[kind] += reported.get(key) != finding.level.word
        if reported.get(key) != finding.level.word and shown[kind] <= SHOWN:
            log.line(
                log.WARNING if finding.level is Level.DRAIN else log.NOTICE,
                "finding",
                check=finding.check,
                level=finding.level.word,
                device=finding.device,
                summary=finding.summary,
                evidence=finding.evidence[0] if finding.evidence else "",
            )
    for (check, level), count in shown.items():
        if count > SHOWN:
            log.line(log.NOTICE, "more findings", check=check, level=level, count=count - SHOWN)
    gone = sorted(reported.keys() - present.keys())
    for key in gone[:SHOWN]:
        log.line(log.NOTICE, "finding gone", finding=key)
    if len(gone) > SHOWN:
        log.line(log.NOTICE, "more findings gone", count=len(gone) - SHOWN)
    return present


def troubles(reported: Sequence[str], now: Sequence[str]) -> None:
    """Log each new trouble that prevents the agent from writing, and each trouble that has ended."""
    for trouble in now:
        if trouble not in reported:
            log.line(log.ERROR, "cannot write", error=trouble)
    for trouble in reported:
        if trouble not in now:
            log.line(log.NOTICE, "can write again", after=trouble)


def slurm(trail: Trail, before: SlurmState, after: SlurmState, details: Mapping[str, str]) -> None:
    """Record in the audit trail that fairlead's drain was set or has ended, or that somebody else has drained the node.
    ``details``: what a drain is for (``drain_details``)."""
    if after.drained and after.reason != before.reason:
        trail.agent("drained", args={"reason": after.reason, **details})
    elif before.drained and not after.drained:
        if after.acknowledged > before.acknowledged:
            what, detail = "resumed by a person", covers(after)
        elif after.lost > before.lost:
            what, detail = "drain lost", gone(after)
        elif after.taken or after.foreign or after.blocked_because:
            what, detail = "drain given up", after.taken or after.blocked_because
        else:
            what, detail = "resumed", ""
        trail.agent(what, detail=detail, args={"reason": before.reason})
    elif after.acknowledged > before.acknowledged:
        trail.agent("resumed by a person", detail=covers(after))
    elif after.lost > before.lost:
        trail.agent("drain lost", detail=gone(after))
    elif after.foreign and not before.foreign:
        trail.agent("left alone", detail=after.blocked_because)


def gone(state: SlurmState) -> str:
    """Return one line: why fairlead's drain may have disappeared although no person resumed the node, and what follows."""
    what = f"only past events are {covers(state)}; " if state.known else "nothing is acknowledged; "
    return f"{state.why_lost}: {what}what is still wrong drains again"


def covers(state: SlurmState) -> str:
    """Return one line: the evidence that the last resume by a person acknowledges."""
    names = ", ".join(state.known[:SHOWN]) + (", ..." if len(state.known) > SHOWN else "")
    return f"acknowledged: {names}" if names else "no evidence was known to acknowledge"


def catch_up(trail: Trail, state: SlurmState) -> None:
    """Record a drain that is set when the agent starts, if the audit trail does not have it. An earlier agent may have been
    killed before it recorded the drain."""
    if state.drained and not any(e.args.get("reason") == state.reason for e in trail.read()):
        trail.agent("drained", detail="recorded at the start of the agent", args={"reason": state.reason})
