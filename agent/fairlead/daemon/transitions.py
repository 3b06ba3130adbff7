"""Tell what came and went: findings to the log, Slurm's word on this node to the audit trail. Transitions, never polls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.daemon.audit import Trail
from fairlead.daemon.courier import Standing
from fairlead.host import log
from fairlead.model.finding import Finding, Level

SHOWN = 3  # drift of one setting on 112 CPUs is one story


def findings(told: Mapping[str, str], now: Sequence[Finding]) -> dict[str, str]:
    """Log each finding that is new or changed its level since ``told``, and each that is gone; gives the next ``told``."""
    standing: dict[str, str] = {}
    shown: Counter[tuple[str, str]] = Counter()
    for finding in now:
        if finding.level is Level.OK:
            continue
        key = f"{finding.key} {finding.evidence_id or finding.summary}"
        standing[key] = finding.level.word
        kind = (finding.check, finding.level.word)
        shown[kind] += told.get(key) != finding.level.word
        if told.get(key) != finding.level.word and shown[kind] <= SHOWN:
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
    gone = sorted(told.keys() - standing.keys())
    for key in gone[:SHOWN]:
        log.line(log.NOTICE, "finding gone", finding=key)
    if len(gone) > SHOWN:
        log.line(log.NOTICE, "more findings gone", count=len(gone) - SHOWN)
    return standing


def troubles(told: Sequence[str], now: Sequence[str]) -> None:
    """Log what has begun to keep the agent from writing, and what no longer does."""
    for trouble in now:
        if trouble not in told:
            log.line(log.ERROR, "cannot write", error=trouble)
    for trouble in told:
        if trouble not in now:
            log.line(log.NOTICE, "can write again", after=trouble)


def slurm(trail: Trail, before: Standing, after: Standing) -> None:
    """Note in the trail what became of our drain, and that the node is somebody else's."""
    if after.drained and after.reason != before.reason:
        trail.agent("drained", args={"reason": after.reason})
    elif before.drained and not after.drained:
        if after.acknowledged > before.acknowledged:
            what, detail = "resumed by a person", covers(after)
        elif after.lost > before.lost:
            what, detail = "drain lost", gone(after)
        elif after.taken or after.foreign or after.held:
            what, detail = "drain given up", after.taken or after.held
        else:
            what, detail = "resumed", ""
        trail.agent(what, detail=detail, args={"reason": before.reason})
    elif after.acknowledged > before.acknowledged:
        trail.agent("resumed by a person", detail=covers(after))
    elif after.lost > before.lost:
        trail.agent("drain lost", detail=gone(after))
    elif after.foreign and not before.foreign:
        trail.agent("left alone", detail=after.held)


def gone(standing: Standing) -> str:
    """Why a drain need not have been lifted by a person, and what follows, in one line."""
    what = f"of the past {covers(standing)}; " if standing.known else "nothing is acknowledged, "
    return f"{standing.why_lost}: {what}what is still wrong drains again"


def covers(standing: Standing) -> str:
    """What the last resume by a person acknowledges, in one line."""
    names = ", ".join(standing.known[:SHOWN]) + (", ..." if len(standing.known) > SHOWN else "")
    return f"acknowledged: {names}" if names else "nothing was known that it could acknowledge"


def catch_up(trail: Trail, standing: Standing) -> None:
    """At a start: the drain that stands, if the agent was killed between making it and noting it."""
    if standing.drained and not any(e.args.get("reason") == standing.reason for e in trail.read()):
        trail.agent("drained", detail="noted at the start of the agent", args={"reason": standing.reason})
