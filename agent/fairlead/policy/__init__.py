"""Policy: findings and state and this moment in, a decision and the next state out. Pure; Slurm is told by others."""

from fairlead.policy.decide import Decision, decide
from fairlead.policy.rules import CheckPolicy, Rules
from fairlead.policy.state import Now, PolicyState, Proof, Track, acknowledge, acknowledge_evidence, identity
from fairlead.policy.words import Order

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
