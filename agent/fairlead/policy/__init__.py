"""Turns findings, the saved state and the present time into a decision and the next state.

This package only computes. Other packages read slurmctld and write to it.
"""

from fairlead.policy.decide import Decision, decide
from fairlead.policy.decision_rules import CheckPolicy, Rules
from fairlead.policy.decision_text import Order
from fairlead.policy.policy_state import Now, PolicyState, Proof, Track, acknowledge, acknowledge_evidence, identity

__all__ = [
    "CheckPolicy",
    "Decision",
    "Now",
    "Order",
    "PolicyState",
    "Proof",
    "Rules",
    "Track",
    "acknowledge",
    "acknowledge_evidence",
    "decide",
    "identity",
]
