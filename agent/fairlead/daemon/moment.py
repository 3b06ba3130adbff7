"""This moment, as the policy sees it: of the agent, its node, and what stands in Slurm."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlead.daemon.rules import applying, nvml_released
from fairlead.drains.admin_hold import DISABLED
from fairlead.host.clock import boottime
from fairlead.host.kernel import uptime_seconds
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Node
from fairlead.policy import Now

if TYPE_CHECKING:
    from fairlead.daemon.loop import Loop


def uptime_of(node: Node | None, root: Root) -> float:
    """Seconds since the node's boot, as it says itself."""
    said = node.uptime_seconds if node is not None else uptime_seconds(root)
    return said if isinstance(said, float) else boottime()


def now_of(loop: Loop, *, full_sweep: bool) -> Now:
    """``full_sweep``: on facts just read. What the first look of an agent finds has come nobody knows when: no job's."""
    gpus = () if loop.node is None or isinstance(loop.node.gpus, Missing) else loop.node.gpus
    agent, standing = loop.document.agent, loop.standing
    return Now(
        boot_seconds=boottime(),
        wall_seconds=time.time(),
        boot_id=loop.senses.boot_id,
        job_running=bool(loop.jobs.running),
        jobs=loop.jobs.running,
        applying=applying(agent.run_dir) or nvml_released(agent.run_dir) or loop.reapply.under_way,
        drained=standing.drained,
        returned=loop.returned,
        hold=loop.hold.read(agent.state_dir, agent.run_dir) is not None,
        disabled=loop.root.exists(DISABLED),
        over_budget="" if standing.suspicion else standing.over_budget,
        suspicion=standing.suspicion,
        full_sweep=full_sweep,
        serials={g.pci: g.serial for g in gpus if isinstance(g.serial, str)},
        gpus=frozenset(g.pci for g in gpus),
        job=next(iter(loop.jobs.running)) if len(loop.jobs.running) == 1 and loop.decision is not None else None,
        drain_check=standing.check,
        drain_since_seconds=standing.since,
        proof=loop.proving.state,
    )
