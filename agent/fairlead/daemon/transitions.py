"""Log what findings came and went: transitions, never polls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.daemon import log
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
