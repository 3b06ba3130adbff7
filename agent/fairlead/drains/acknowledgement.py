"""Names the evidence that a person acknowledges by a resume: what was known before our last reading of the drain, nothing
newer.

Every decision brings these names. Each reading that shows our drain puts the names that were known before it into the ledger.
A resume acknowledges the list in the ledger, also after a restart of the agent. Evidence that came after that reading drains
again.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Level
from fairlead.policy import PolicyState
from fairlead.policy.policy_state import ACKNOWLEDGED_MAX, identity


class KnownEvidence(Struct, frozen=True, kw_only=True):
    """Holds the names of the evidence that is known now. ``names``: all of it. ``drains``: the evidence that would drain and
    that nobody has acknowledged."""

    names: tuple[str, ...] = ()
    drains: frozenset[str] = frozenset()


def known_evidence(state: PolicyState) -> KnownEvidence:
    """Return the names of the evidence of all findings that the policy remembers. Findings at DRAIN come first."""
    found = [f for track in state.tracks.values() for f in (*track.bad, *track.found)]
    names = dict.fromkeys(identity(f) for f in sorted(found, key=lambda f: f.level is not Level.DRAIN))
    drains = frozenset(identity(f) for f in found if f.level is Level.DRAIN) - frozenset(state.acknowledged)
    return KnownEvidence(names=tuple(names)[:ACKNOWLEDGED_MAX], drains=drains)
