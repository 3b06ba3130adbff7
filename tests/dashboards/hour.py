"""One scripted hour of four simulated nodes with real agents and a real slurmctld, as a scrape every minute would have stored it.

The nodes' clocks run 40 times as fast as ours (tests/scorecard/clock.c), so that the hour takes 90 s.

| from minute | gpu1 | gpu2 | gpu3 | gpu4 |
|---|---|---|---|---|
| 0 | job 11 on GPUs 0-7, all busy | job 12 on GPUs 0-3, none busy | job 13 on GPUs 0-1, a loop that only looks busy | no job |
| 10 | | Xid 79 on GPU 1: drained | | |
| 20 | | | a PCIe link of 8 lanes, a setting that drifted | a row remap failed on GPU 2: drained; two uncorrected ECC errors |
| 30 | | | NVLink errors on GPU 5, PCIe replays on GPU 6, GPU 7 was slowed for 900 s | |
| 40 | the agent ends | | | |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tests.dashboards.prometheus import labelled
from tests.scorecard.entry import Document, File, Job, Kernel, Nvml
from tests.scorecard.faults.gpu import link
from tests.scorecard.play import nodes_up
from tests.scorecard.running import INSIDE
from tests.scorecard.score_node import ScoreNode

SCRAPE_SECONDS, HOUR_SECONDS = 60.0, 3600.0
PORT = 9477
DRIFTED = "/proc/sys/kernel/numa_balancing"
#: Minute, number of the node, and what happens to it.
Step = Callable[[ScoreNode], object]
SCRIPT: tuple[tuple[int, int, Step], ...] = (
    (10, 2, lambda node: node.take(Kernel("NVRM: Xid (PCI:{gpu1:bus}): 79, GPU has fallen off the bus."))),
    (20, 3, lambda node: [node.take(step) for step in link(6, width=8)]),
    (20, 3, lambda node: node.take(File(DRIFTED, "1\n"))),
    (20, 4, lambda node: node.take(Nvml(2, "ecc.volatile_uncorrected", 2))),
    (20, 4, lambda node: node.take(Nvml(2, "remap.failed", 1))),
    (20, 4, lambda node: node.take(Nvml(2, "remap.uncorrected", 3))),
    (20, 4, lambda node: node.take(Nvml(2, "remap.histogram.4", 2))),
    (30, 3, lambda node: node.faults.step(5, "nvlink.3.crc_errors", 500)),
    (30, 3, lambda node: node.faults.step(6, "pcie.replays", 40)),
    (30, 3, lambda node: node.take(Nvml(7, "clock_events.thermal_nanoseconds", 900_000_000_000))),
    (40, 1, lambda node: node.stop()),
)


class Recorded(NamedTuple):
    """The samples of the hour, and its times."""

    samples: list[str]
    begin_unix: float
    end_unix: float


def record() -> Recorded:
    """Play the hour. Raises LabError if a node does not come up."""
    with nodes_up(4) as nodes:
        with ThreadPoolExecutor(len(nodes)) as pool:
            list(pool.map(_begin, nodes))
        begin = max(_swept(node) for node in nodes)  # the nodes' clocks begin together, and run equally fast
        return _play(nodes, begin)


def _begin(node: ScoreNode) -> None:
    node.strict = False  # the checks and settings have their own default modes, as on a site
    node.write_document()
    node.heal(fresh=True, seconds=120)
    node.take(Document({"agent": {"metrics_textfile": f"{INSIDE}/run/metrics.prom"}}))
    number = int(node.name[-1])
    for gpu in range(8):
        node.faults.work(gpu, "busy" if number == 1 else "fake" if number == 3 and gpu < 2 else "idle")
    for job, of_node, gpus in ((11, 1, "0-7"), (12, 2, "0-3"), (13, 3, "0-1")):
        if of_node == number:
            node.take(Job(job, gpus=gpus))
    node.until((node.run_dir / "metrics.prom").exists, "metrics")
    node.sweeps(2, thorough=True)


def _swept(node: ScoreNode) -> float:
    text = (node.run_dir / "metrics.prom").read_text()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("fairlead_sweep_timestamp_seconds "))


def _play(nodes: list[ScoreNode], begin: float) -> Recorded:
    samples: list[str] = []
    started = time.monotonic()
    done = 0
    at = begin
    while at <= begin + HOUR_SECONDS + SCRAPE_SECONDS:  # a rule over an hour is computed after a whole hour, not at its edge
        at = begin + (time.monotonic() - started) * nodes[0].speed
        while done < len(SCRIPT) and at >= begin + 60 * SCRIPT[done][0]:
            _, number, step = SCRIPT[done]
            step(nodes[number - 1])
            done += 1
        for node in nodes:
            instance = f"{node.name}:{PORT}"
            samples += labelled((node.run_dir / "metrics.prom").read_text(), instance, at)
        for name in (*(node.name for node in nodes), "gpu9"):  # gpu9 should have an agent, and has none
            samples.append(f'up{{fairlead="expected",instance="{name}:{PORT}",job="gpu-nodes"}} 1 {at:.3f}')
        time.sleep(max(0.0, started + (at - begin + SCRAPE_SECONDS) / nodes[0].speed - time.monotonic()))
    return Recorded(samples, begin, at)
