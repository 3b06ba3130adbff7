"""Names the evidence that a person acknowledges by a resume. It is the evidence that fairlead knew before its last reading of
the drain.

Every decision provides these names. Each reading that shows fairlead's drain saves in the ledger the names that were known
before that reading. A resume acknowledges the names in the ledger, also after a restart of the agent. Evidence that came after
that reading drains the node again.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Level
from fairlead.policy import PolicyState
from fairlead.policy.policy_state import ACKNOWLEDGED_MAX, identity


class KnownEvidence(Struct, frozen=True, kw_only=True):
    """Holds the names of the evidence that is known now. ``names``: the names of all evidence. ``drains``: the names of the
    evidence that would drain the node and that nobody has acknowledged."""

    names: tuple[str, ...] = ()
    drains: frozenset[str] = frozenset()


def known_evidence(state: PolicyState) -> KnownEvidence:
    """Return the names of the evidence of all findings that the policy remembers. Findings at DRAIN come first."""
    found = [f for track in state.tracks.values() for f in (*track.bad, *track.found)]
    names = dict.fromkeys(identity(f) for f in sorted(found, key=lambda f: f.level is not Level.DRAIN))
    drains = frozenset(identity(f) for f in found if f.level is Level.DRAIN) - frozenset(state.acknowledged)
    return KnownEvidence(names=tuple(names)[:ACKNOWLEDGED_MAX], drains=drains)
