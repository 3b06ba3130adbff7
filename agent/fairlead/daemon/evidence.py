"""What a person's resume acknowledges: the evidence that stood when our drain was last seen standing, and nothing newer.

A resume is noticed up to a look later. What came in between is new: it drains again.
"""

from __future__ import annotations

import time

from fairlead.model.finding import Finding, Level
from fairlead.policy import PolicyState, acknowledge
from fairlead.policy.state import identity

LOOK_AGAIN_SECONDS = 5.0  # a flood of new evidence asks slurmctld no more often


class Evidence:
    """``stands()`` when the drain was seen standing, ``acknowledge()`` when it was found lifted.

    ``state``, ``drained``: as an earlier run of the agent left them. What came since may have come after the resume.
    """

    def __init__(self, state: PolicyState | None = None, *, drained: bool = False) -> None:
        self._covered: tuple[Finding, ...] | None = _all(state) if drained and state and state.boot_id else None
        self._not_before = 0.0

    def stands(self, state: PolicyState) -> None:
        """Our drain stands in slurmctld while this is known."""
        self._covered = _all(state)

    def is_new(self, state: PolicyState) -> bool:
        """Whether something has come that drains, since the drain was last seen: then it is worth a look."""
        if self._covered is None or time.monotonic() < self._not_before:
            return False
        covered = {identity(f) for f in self._covered}
        if all(f.level is not Level.DRAIN or identity(f) in covered for f in _all(state)):
            return False
        self._not_before = time.monotonic() + LOOK_AGAIN_SECONDS
        return True

    def acknowledge(self, state: PolicyState) -> PolicyState:
        """The state after a person resumed our drain. Where it was never seen standing (the history was lost): all that is
        known."""
        covered, self._covered = self._covered, None
        return acknowledge(state, covered)


def _all(state: PolicyState) -> tuple[Finding, ...]:
    return tuple(f for track in state.tracks.values() for f in (*track.bad, *track.found))
