"""The agent's CPU time and memory with counters and job records: eight GPUs, two jobs, a sweep each second, no rack around it.

FAIRLEAD_BENCH_AGAINST=CHECKOUT measures the agent of another checkout beside this one, at the same time, so that other load falls
on both. CPU time grows with the load all the same: other programs take the processor's caches.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fairlead import config
from tests.bench.rows import Row
from tests.daemon.conftest import PROJECT, Agent
from tests.gpu.agent_process import cpu_seconds, pss_kib
from tests.lab.faults import Faults
from tests.lab.hardware import simulated_nvml
from tests.lab.nvml.library import NAME, write_conf
from tests.lab.trees import MACHINES

SECONDS = 100.0
WARM_UP_SECONDS = 20.0
JOBS = {7: "0-3", 8: "4-7"}


class Measured(Agent):
    """The agent of a checkout, with every check and setting of the profile, on GPUs of which every second one works."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        folder.mkdir()
        super().__init__(folder, MACHINES / "hgx-h100.tuned")
        self.faults = Faults(folder / "control")
        self.faults.control.touch()
        self.environment = {
            "PYTHONPATH": str(checkout / "agent"),
            "LD_LIBRARY_PATH": os.fspath((simulated_nvml() / NAME).parent),
            "FAIRLEAD_SIM_NVML": os.fspath(write_conf(self.tree, folder / "nvml.conf")),
            "FAIRLEAD_SIM_CONTROL": os.fspath(self.faults.control),
        }

    def write_document(self, **options: object) -> None:
        data = config.to_data(config.profile_document("n1", "hgx-h100"))
        data["agent"] |= {"run_dir": str(self.run_dir), "state_dir": str(self.state_dir), "kmsg_path": str(self.fifo)}
        data["agent"] |= {"metrics_textfile": str(self.run_dir / "metrics.prom"), "gpustat_dir": str(self.folder / "gpustat")}
        data["agent"] |= {"interval_seconds": 1.0, "nvml_deadline_seconds": 20.0}
        data["slurm"] |= {"bin_dir": str(self.folder / "no-slurm-here")}
        del data["hash"]
        self.document.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "bench")))

    def command(self) -> list[str]:
        return [*super().command(), "--ask-nvml"]

    def work(self) -> None:
        """Let the GPUs work, and begin the jobs as the prolog does."""
        for gpu in range(8):
            self.faults.work(gpu, "busy" if gpu % 2 else "idle")
        begin = Path("/proc/uptime").read_text().split()[0]
        for job, gpus in JOBS.items():
            (self.run_dir / "jobs" / str(job)).write_text(f"1\trunning\t1000\t{gpus}\t{begin}\t-\t-\t.\n")

    def pids(self) -> list[int]:
        assert self.process is not None
        pid = self.process.pid
        return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids()))


def rows(say: Callable[[str], None] = lambda text: print(f"bench:   {text}", file=sys.stderr, flush=True)) -> list[Row]:
    """Start the agents, measure them over the same time, end them."""
    against = os.environ.get("FAIRLEAD_BENCH_AGAINST", "")
    checkouts = [PROJECT, *([Path(against).resolve()] if against else [])]
    agents: list[Measured] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # as /run is
        try:
            for number, checkout in enumerate(checkouts):
                agents.append(Measured(Path(folder, str(number)), checkout))
                agents[-1].start()
                agents[-1].work()
            time.sleep(WARM_UP_SECONDS)
            say(f"{len(agents)} agents for {SECONDS:g} s")
            began, before = time.monotonic(), [agent.cpu() for agent in agents]
            time.sleep(SECONDS)
            took = time.monotonic() - began
            shares = [100 * (agent.cpu() - was) / took for agent, was in zip(agents, before, strict=True)]
            pss = sum(map(pss_kib, agents[0].pids())) / 1024
        finally:
            for agent in agents:
                if agent.process is not None:
                    agent.end()
    beside = f"{shares[1]:.3f} % in {checkouts[1].name}, at the same time" if against else ""
    load = f"load {os.getloadavg()[0]:.0f}"
    return [
        Row("agent with counters and job records, 1 s sweep", shares[0], 0.5, "% of a core", beside, load),
        Row("... with its worker, PSS", pss, 48, "MiB"),
    ]
