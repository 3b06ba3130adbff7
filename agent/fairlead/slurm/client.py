"""Defines the calls to slurmctld that fairlead makes, as one protocol for all adapters (scontrol, pyslurm).

States are Slurm's own words in upper case, base states and flags alike: ``IDLE``, ``DRAIN``, ``NOT_RESPONDING``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

#: slurmctld switches such a node off or on. It starts the node again when a job needs it (slurm.conf(5), ResumeProgram).
POWER = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP", "POWER_UP"))
#: A node in one of these states starts no new job, whoever has set the state. NOT_RESPONDING is not among them. Every node that
#: was just resumed has it until slurmctld's next ping, and a node that stays silent becomes DOWN.
UNAVAILABLE = POWER | frozenset(
    (
        *("DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "MAINT", "MAINTENANCE"),
        *("REBOOT_ISSUED", "REBOOT_REQUESTED", "POWER_DRAIN"),
    )
)
_LOST = UNAVAILABLE - POWER


class NodeState(Struct, frozen=True, kw_only=True):
    """Describes a node as slurmctld has it. ``reason``: the exact text, or "" for none. ``reason_time``: when the reason was set,
    in whole seconds of Unix time, or 0 for none."""

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
        """Return whether the node can take jobs: now, or after slurmctld has switched it on. Drain limits and floors count this.
        A node that is off to save power is not lost to jobs, so it must not use up the drain budget (decision 60)."""
        return self.states.isdisjoint(_LOST)


def switched_off(states: Collection[str]) -> bool:
    """Return whether slurmctld has switched the node off, or is doing so, and nothing is wrong with it. Nobody answers there.
    A node that did not come back in time is DOWN too, and that is a fault."""
    words = set(states)
    return bool(words & {"POWERED_DOWN", "POWERING_DOWN"}) and not words & {"DOWN", "FAIL"}


class JobOn(Struct, frozen=True, kw_only=True):
    """Describes a job that has a certain node. ``state``: Slurm's compact word (R, CG, ...). ``nodes``: the job's node count."""

    id: str
    state: str
    nodes: int


class NodeTimes(Struct, frozen=True, kw_only=True):
    """Holds times of a node in whole seconds of Unix time, or 0 if slurmctld has none: when its reason was set, and when its
    slurmd began."""

    name: str
    reason_time: int = 0
    slurmd_began: int = 0


class SlurmClient(Protocol):
    """Speaks to slurmctld. Every call may raise SlurmUnavailable (no answer: try again) or SlurmError (slurmctld refused)."""

    def node(self, name: str) -> NodeState:
        """Return one node. Raises SlurmError when slurmctld has no such node.

        Its ALLOCATED or MIXED may be old: slurmctld counts what is allocated when somebody lists all nodes, but not when
        somebody asks for one (src/slurmctld/proc_req.c, _slurm_rpc_dump_node_single; seen on 22.05, 24.11 and 26.05).
        """

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        """Return the named nodes, or all nodes."""

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        """Return the jobs that have this node now, completing ones included."""

    def began(self) -> float:
        """Return since when this slurmctld has had its state in memory, in Unix time by slurmctld's clock. Return inf if that
        is not known."""

    def node_times(self) -> tuple[NodeTimes, ...]:
        """Return the times of all nodes. This takes two RPCs."""

    def drain(self, name: str, reason: str) -> None:
        """Set DRAIN and the reason. This replaces any reason that is there, so read first."""

    def update_reason(self, name: str, reason: str) -> None:
        """Set the reason and leave the state as it is."""

    def resume(self, name: str) -> None:
        """Clear DRAIN and nothing else: a node that is also DOWN stays DOWN."""
