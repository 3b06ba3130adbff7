"""Names the evidence that a person acknowledges who resumes the node: what was known at our last reading, and nothing newer.

The names come with every decision. Each reading that shows our drain puts those that were known before it into the ledger, and a
resume acknowledges that list, also after a restart of the agent. What has come since that reading drains again.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Level
from fairlead.policy import PolicyState
from fairlead.policy.policy_state import ACKNOWLEDGED_MAX, identity


class KnownEvidence(Struct, frozen=True, kw_only=True):
    """Holds the evidence that is known now. ``names``: of all that is known; ``drains``: of what would drain and that nobody has
    acknowledged."""

    names: tuple[str, ...] = ()
    drains: frozenset[str] = frozenset()


def known_evidence(state: PolicyState) -> KnownEvidence:
    """Name the evidence of the findings that the policy remembers, those that drain first."""
    found = [f for track in state.tracks.values() for f in (*track.bad, *track.found)]
    names = dict.fromkeys(identity(f) for f in sorted(found, key=lambda f: f.level is not Level.DRAIN))
    drains = frozenset(identity(f) for f in found if f.level is Level.DRAIN) - frozenset(state.acknowledged)
    return KnownEvidence(names=tuple(names)[:ACKNOWLEDGED_MAX], drains=drains)
