"""What fairlead asks of slurmctld: one small protocol, whatever carries it.

States are Slurm's own words in upper case, base state and flags alike: ``IDLE``, ``DRAIN``, ``NOT_RESPONDING``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

#: States in which a node runs no new job, whoever made it so. They count against a drain budget. NOT_RESPONDING does
#: not: every node that was just resumed has it until slurmctld's next ping, and a node that stays silent becomes DOWN.
UNAVAILABLE = frozenset(
    (
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "MAINT", "MAINTENANCE"),
        *("REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"),
        "POWER_DRAIN",
    )
)


class NodeState(Struct, frozen=True, kw_only=True):
    """A node as slurmctld has it. ``reason`` is exact, "" for none; ``reason_time`` is whole seconds of Unix time, 0 for none."""

    name: str
    states: frozenset[str]
    reason: str = ""
    reason_user: str = ""
    reason_time: int = 0
    hostname: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def drained(self) -> bool:
        return not self.states.isdisjoint({"DRAIN", "DRAINED", "DRAINING"})

    @property
    def available(self) -> bool:
        return self.states.isdisjoint(UNAVAILABLE)


class JobOn(Struct, frozen=True, kw_only=True):
    """A job that has this node. ``state`` is Slurm's compact word: R, CG, S, ..."""

    id: str
    state: str
    nodes: int


class NodeTimes(Struct, frozen=True, kw_only=True):
    """Times of a node, whole seconds of Unix time, 0 where slurmctld has none: of its reason, and since when its slurmd runs."""

    name: str
    reason_time: int = 0
    slurmd_began: int = 0


class SlurmClient(Protocol):
    """Every call may raise SlurmUnavailable (no answer: try again) or SlurmError (slurmctld said no)."""

    def node(self, name: str) -> NodeState:
        """One node; raises SlurmError when slurmctld has no such node.

        Its ALLOCATED or MIXED may be old: slurmctld counts what is allocated when somebody lists all nodes, and not for one
        (src/slurmctld/proc_req.c, _slurm_rpc_dump_node_single; seen on 22.05, 24.11 and 26.05).
        """

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        """The named nodes, or all of them."""

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        """Jobs that have this node now, completing ones included."""

    def began(self) -> float:
        """Since when this slurmctld has had its state in memory, Unix time by its own clock; inf where that is not known."""

    def node_times(self) -> tuple[NodeTimes, ...]:
        """The times of all nodes. Two RPCs."""

    def drain(self, name: str, reason: str) -> None:
        """Set DRAIN and the reason. This replaces whatever reason there is: read first."""

    def update_reason(self, name: str, reason: str) -> None:
        """Set the reason and leave the state."""

    def resume(self, name: str) -> None:
        """Clear DRAIN, nothing else: a node that is also DOWN stays so."""
