"""The agent as its metrics see it. Imported when there is something to show: it brings the metrics library."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fairlead import __version__
from fairlead.daemon.metrics import View
from fairlead.host.clock import boottime
from fairlead.model.verdict import State
from fairlead.policy import Decision

if TYPE_CHECKING:
    from fairlead.daemon.loop import Loop


def view_of(loop: Loop, decision: Decision) -> View:
    """What a scrape sees of this agent now."""
    worker, verdict = loop.senses.worker, loop.board.verdict
    born = time.time() - boottime()  # by the clock as it is set now: a step of it moves every moment alike
    return View(
        version=__version__,
        generation=loop.document.generation,
        profile=loop.document.profile,
        state=verdict.state if verdict else State.UNKNOWN,
        sequence=verdict.sequence if verdict else 0,
        sweep_unix=born + loop.sweep_boot,
        sources=tuple(
            (name, born + at) for name, at in sorted({**loop.senses.answered, "state_dir": loop.disk.answered}.items())
        ),
        sweep_seconds=loop.sweep_seconds,
        expires_unix=born + (verdict.expires if verdict else boottime()),
        checks=tuple((name, policy.mode.value) for name, policy in sorted(loop.policies.items())),
        findings=loop.findings,
        held=decision.suppressed,
        drained=loop.standing.drained,
        limit=loop.standing.limit,
        slurm_up=not loop.standing.error,
        sweeps=loop.sweeps,
        records=loop.woken,
        overruns=loop.history.overrun,
        worker_crashes=worker.crashes if worker else 0,
        worker_stuck=bool(loop.node and loop.node.stuck),
        nvml_released=bool(worker and worker.released),
        history_ok=not loop.history.trouble,
        jobs=len(loop.jobs.running),
        node=loop.node,
        ladder=tuple((name, rung.step.value) for name, rung in sorted(loop.state.ladder.items())),
        strikes=tuple((board, len(times)) for board, times in sorted(loop.state.strikes.items())),
        reboots=len(loop.state.reboots),
        proofs=tuple(sorted(loop.proving.outcomes.items())),
    )
