"""The arithmetic of docs/explanation/scale.md: what nodes and the controller do, how often, and what that is at 10,000 nodes.

Periods and limits come from the code. What they cost was measured (``MEASURED``). `make docs` writes the tables of the page.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.config.document import AgentOptions, SlurmOptions
from fairlead.controller.fleet_collection import EACH_SECONDS as COLLECT_SECONDS
from fairlead.daemon.slurmctld.courier import BACKOFF_MAX_SECONDS, BUDGET_BACKOFF_MAX_SECONDS
from fairlead.daemon.slurmctld.pace import ASKS_PER_SECOND, SPREAD_MAX_SECONDS, WATCHED
from fairlead.drains.cluster_limits import CROWD_UNKNOWN
from fairlead.policy.decision_rules import Rules
from fairlead.provision.ssh_fetch import deadline_seconds

SIZES = (128, 1000, 10_000)
AGENT, SLURM, RULES = AgentOptions(), SlurmOptions(), Rules()
LISTING_RPCS, LOOK_RPCS, DRAIN_RPCS = 2, 2, 5
HELD_SECONDS = BUDGET_BACKOFF_MAX_SECONDS * (0.3 + 1.0) / 2
LOOK_SECONDS = SLURM.reconcile_seconds * WATCHED
CORES = 16
"""Cores of the admin host and of the controller in the computed figures."""


@dataclass(frozen=True)
class Measured:
    """What tests/scale measured on Slurm 24.11 on 2026-11-28, at a load of 3 to 43 (the page says which)."""

    listing_fixed_bytes: float
    listing_node_bytes: float
    listing_fixed_ms: float
    listing_node_ms: float
    look_bytes: float
    look_ms: float
    update_bytes: float
    update_ms: float
    topology_bytes: float
    agent_cpu_percent: float
    agent_pss_mib: float
    series: int
    metrics_bytes: int
    ssh_cpu_seconds: float

    def listing_bytes(self, nodes: int) -> float:
        return self.listing_fixed_bytes + self.listing_node_bytes * nodes

    def listing_ms(self, nodes: int) -> float:
        """Milliseconds of a core of slurmctld."""
        return self.listing_fixed_ms + self.listing_node_ms * nodes
