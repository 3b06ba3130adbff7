"""The evidence that is known by name: what a person's resume acknowledges is the names known before it, and nothing newer.

The names go to slurmctld's reader with every decision (``courier.Courier.want``). Each reading that shows the drain standing
puts those that were known before it into the ledger, and a resume acknowledges that list: also over a restart of the agent,
and whatever has come since the reading.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Level
from fairlead.policy import PolicyState
from fairlead.policy.policy_state import ACKNOWLEDGED_MAX, identity


class Known(Struct, frozen=True, kw_only=True):
    """``names``: of all that is known; ``drains``: of what would drain and that nobody has acknowledged."""

    names: tuple[str, ...] = ()
    drains: frozenset[str] = frozenset()


def evidence_of(state: PolicyState) -> Known:
    """What the policy remembers as standing, what drains first."""
    found = [f for track in state.tracks.values() for f in (*track.bad, *track.found)]
    names = dict.fromkeys(identity(f) for f in sorted(found, key=lambda f: f.level is not Level.DRAIN))
    drains = frozenset(identity(f) for f in found if f.level is Level.DRAIN) - frozenset(state.acknowledged)
    return Known(names=tuple(names)[:ACKNOWLEDGED_MAX], drains=drains)
