"""Describes the node and the agent at one time, as the input of status.json and the metrics."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from fairlead.config import Document
from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.model.facts import Node
from fairlead.model.finding import Finding
from fairlead.model.verdict import Verdict
from fairlead.policy import Decision


class SweepFacts(Struct, frozen=True, kw_only=True):
    """Describes the last sweep.

    node: the facts that the sweep read, or None before the first sweep. count: the number of sweeps since the agent started.
    seconds: the sweep's duration, from its start to its last finding. ended: the sweep's end in CLOCK_BOOTTIME seconds.
    """

    node: Node | None = None
    count: int = 0
    seconds: float = 0.0
    ended: float = 0.0


class AgentState(Struct, frozen=True, kw_only=True):
    """Describes the agent.

    modes: the mode of each enabled check (observe or enforce). verdict: the last published verdict, or None before the first
    verdict. jobs: the number of running jobs. records: the number of kernel records that have woken checks.
    """

    document: Document
    modes: Mapping[str, str]
    sweep: SweepFacts
    findings: tuple[Finding, ...]
    decision: Decision
    slurm: SlurmState
    verdict: Verdict | None
    jobs: int
    records: int
