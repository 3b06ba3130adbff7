"""Policy: findings and state and this moment in, a decision and the next state out. Pure; Slurm is told by others."""

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
