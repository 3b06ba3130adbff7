"""Makes the input of a decision: the time, the jobs, what people have ordered (such as a hold), and the node's state in Slurm."""

from __future__ import annotations

import time

from fairlead.daemon.jobs.job_watch import JobWatch
from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.host.boot_clock import boottime
from fairlead.host.kernel import uptime_seconds
from fairlead.host.root import Root
from fairlead.model.facts import Missing, Node
from fairlead.policy import Now, PolicyState, Proof, acknowledge_evidence
from fairlead.policy.tracks import of_this_boot


def uptime_of(node: Node | None, root: Root) -> float:
    """Return the seconds since the node's boot, from the node's own facts."""
    said = node.uptime_seconds if node is not None else uptime_seconds(root)
    return said if isinstance(said, float) else boottime()


def policy_input(
    node: Node | None,
    jobs: JobWatch,
    slurm: SlurmState,
    *,
    boot_id: str,
    proof: Proof,
    applying: bool,
    hold: bool,
    disabled: bool,
    returned: bool,
    first: bool,
    full_sweep: bool,
) -> Now:
    """Return the input of a decision that is made now.

    ``returned``: True if the node has gone back into service since the last decision. ``first``: True if the agent has not
    decided yet. The agent's first findings are never attributed to a job, because it is not known when they began.
    ``full_sweep``: True if the facts were just read.
    """
    gpus = () if node is None or isinstance(node.gpus, Missing) else node.gpus
    return Now(
        boot_seconds=boottime(),
        wall_seconds=time.time(),
        boot_id=boot_id,
        job_running=bool(jobs.running),
        jobs=jobs.running,
        applying=applying,
        drained=slurm.drained,
        returned=returned,
        hold=hold,
        disabled=disabled,
        over_budget="" if slurm.suspicion else slurm.over_budget,
        suspicion=slurm.suspicion,
        full_sweep=full_sweep,
        serials={g.pci: g.serial for g in gpus if isinstance(g.serial, str)},
        gpus=frozenset(g.pci for g in gpus),
        job=None if first else jobs.only_job,
        drain_check=slurm.check,
        drain_since_seconds=slurm.since,
        proof=proof,
    )


def after_slurm(state: PolicyState, before: SlurmState, after: SlurmState, boot_id: str) -> PolicyState:
    """Return the policy's state after fairlead's drain in Slurm has changed. A resume by a person acknowledges the evidence that
    was known. After the end or the loss of the drain, kernel records of earlier boots do not drain the node any more."""
    acknowledged, lost = after.acknowledged > before.acknowledged, after.lost > before.lost
    if acknowledged or lost:
        state = acknowledge_evidence(state, after.known)
    if lost or (before.drained and not after.drained):
        state = of_this_boot(state, boot_id)
    return state
