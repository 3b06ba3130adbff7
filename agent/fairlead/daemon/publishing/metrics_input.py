"""Collects the input of the metrics. The agent imports this module only when it writes metrics, because the module imports the
metrics library."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fairlead import __version__
from fairlead.daemon.publishing.agent_state import AgentState
from fairlead.daemon.publishing.metrics import MetricsInput
from fairlead.history.memory import History
from fairlead.host.boot_clock import boottime
from fairlead.host.nvml import Worker
from fairlead.model.node_jobs import GpuOfJob
from fairlead.model.verdict import State


def metrics_input(
    state: AgentState,
    *,
    sources: Mapping[str, float],
    worker: Worker | None,
    history: History,
    proofs: Mapping[str, int],
    job_gpus: tuple[GpuOfJob, ...],
) -> MetricsInput:
    """Return the values that a scrape of this agent shows now.

    ``sources``: the time of each source's last answer in CLOCK_BOOTTIME seconds, by the source's name. ``proofs``: the number
    of runs of the return command by outcome. ``job_gpus``: the running jobs with their GPUs (``MetricsInput``).
    """
    sweep, verdict, decision = state.sweep, state.verdict, state.decision
    remembered = decision.state
    born = time.time() - boottime()  # the boot's Unix time by the present clock, so a step of the clock moves all times alike
    return MetricsInput(
        version=__version__,
        slurm_node=state.document.slurm_node,
        generation=state.document.generation,
        profile=state.document.profile,
        state=verdict.state if verdict else State.UNKNOWN,
        sequence=verdict.sequence if verdict else 0,
        sweep_unix=born + sweep.ended,
        sources=tuple((name, born + at) for name, at in sorted(sources.items())),
        sweep_seconds=sweep.seconds,
        expires_unix=born + (verdict.expires if verdict else boottime()),
        checks=tuple(sorted(state.modes.items())),
        findings=state.findings,
        suppressed=decision.suppressed,
        drained=state.slurm.drained,
        limit=state.slurm.limit,
        slurm_up=not state.slurm.error if state.slurm.asked else None,
        sweeps=sweep.count,
        records=state.records,
        overruns=history.overrun,
        worker_crashes=worker.crashes if worker else 0,
        worker_stuck=bool(sweep.node and sweep.node.stuck),
        nvml_released=bool(worker and worker.released),
        history_ok=not history.trouble,
        jobs=state.jobs,
        job_gpus=job_gpus,
        node=sweep.node,
        ladder=tuple((name, rung.step.value) for name, rung in sorted(remembered.ladder.items())),
        strikes=tuple((card, len(times)) for card, times in sorted(remembered.strikes.items())),
        reboots=len(remembered.reboots),
        proofs=tuple(sorted(proofs.items())),
        gpu_labels=dict(history.gpu_labels),
        xids=tuple((*code, number) for code, number in sorted(history.xids.counts.items())),
        nvlink_links=state.document.agent.metrics_nvlink_links,
    )
