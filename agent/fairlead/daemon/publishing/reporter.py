"""Reports what the agent does in the log, and in the history for `fairlead why`. This module also decides when status.json is
written again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from fairlead.daemon.publishing import transitions
from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.history.memory import History
from fairlead.host import log
from fairlead.model.finding import Finding
from fairlead.model.verdict import State, Verdict
from fairlead.policy import Decision

STATUS_SECONDS = 10.0


class Reporter:
    """Remembers what was reported, so that each change is reported once."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._reported: dict[str, str] = {}
        self._troubles: tuple[str, ...] = ()
        self._listed: set[tuple[str, int]] = set()  # the findings that status.json lists, by key and level
        self._status_at = 0.0

    def report_verdict(self, verdict: Verdict, decision: Decision, findings: Sequence[Finding]) -> None:
        """Log a new verdict, and the findings that have begun or ended with it."""
        loud = log.WARNING if verdict.state in (State.DRAIN, State.UNKNOWN) or decision.counted else log.NOTICE
        log.line(loud, "verdict", state=verdict.state.value, order=decision.order.value, text=verdict.text)
        self._history.event(f"verdict {verdict.state.value}", verdict.text)
        self._reported = transitions.findings(self._reported, findings)

    def report_slurm(self, before: SlurmState, after: SlurmState) -> None:
        """Report whether a person has lifted fairlead's drain, and whether that drain was set or is gone."""
        if after.acknowledged > before.acknowledged:
            self._history.event("acknowledged", f"a person resumed our drain: {transitions.covers(after)}")
            log.line(log.NOTICE, "evidence acknowledged", by="resume in Slurm")
        if after.drained != before.drained:
            self._history.event("drained" if after.drained else "not drained by us", after.reason or before.reason)

    def report_troubles(self, troubles: tuple[str, ...]) -> bool:
        """Log what prevents the agent from writing. Return whether that has changed."""
        if troubles == self._troubles:
            return False
        transitions.troubles(self._troubles, troubles)
        self._troubles = troubles
        return True

    def status_now(self) -> None:
        """Make status.json due, so that it is written with the next decision."""
        self._status_at = 0.0

    def status_due(self, findings: Sequence[Finding], *, news: bool) -> bool:
        """Return whether status.json must be written: if there is ``news``, if it lists other findings than there are now, or if
        it is old."""
        now = time.monotonic()
        listed = {(f.key, f.level.value) for f in findings}
        if not news and listed == self._listed and now < self._status_at:
            return False
        self._listed = listed
        self._status_at = now + STATUS_SECONDS
        return True
