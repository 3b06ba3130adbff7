"""`fairlead report` over a year of 1,024 nodes: from recorded inputs and from the store, with the memory of the whole process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fairlead.controller.fleet_folder import from_folder
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.jobs.job_run import JobRun
from tests.bench.rows import Row
from tests.fleet.recorded import write_folder
from tests.fleet.simulated_year import BEGIN, DAYS, Planted, Year, jobs, year

NODES = 1024
HOURS = 6.0  # the mean length of a job
SECONDS, MEGABYTES = 10.0, 200.0
DAY = 86400
#: Runs a command and prints its seconds of processor time and its largest memory in MiB.
CHILD = """
import resource, sys
from fairlead.cli import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, file=sys.stderr)
sys.exit(code)
"""


def rows(nodes: int = NODES) -> list[Row]:
    """Make the year, then report its last quarter from the folder and from the store."""
    made = year(nodes, (Planted("a", (3,), 20, 60, 2),), driver_day=200)
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_folder(Path(temporary) / "recorded", made, hours=HOURS)
        runs = sum(1 for _ in (folder / "jobs.psv").open()) - 1
        store = fill_store(Path(temporary) / "store", folder, made)
        period = _period()
        beside = f"{nodes:,} nodes, {runs:,} runs of jobs, {len(made.incidents):,} incidents, load {os.getloadavg()[0]:.0f}"
        found = []
        for name, source in (("recorded inputs", ("--from", str(folder))), ("the store", ("--store", str(store)))):
            cpu, memory, wall = _run("report", period, *source, "--html", f"{temporary}/{name[:3]}.html")
            found.append(
                Row(f"fleet report of a quarter, a year of {name}", cpu, SECONDS, "s CPU", f"{wall:.1f} s on the clock", beside)
            )
            found.append(Row(f"... memory, {name}", memory, MEGABYTES, "MiB"))
    return found


def fill_store(at: Path, folder: Path, made: Year) -> Path:
    """Put the same year into a store, as a year of rounds would have."""
    with FleetStore(str(at), write=True) as store:
        store.add(from_folder(str(folder)).records, 0.0)
        store.keep({"nodes": [made.name(node) for node in range(made.nodes)]})
    with JobStore(str(at), write=True) as runs:
        block: list[JobRun] = []
        for job in jobs(made, hours=HOURS):
            values = {"label": str(job.job), "account": "lab", "partition": "gpu", "cpus": 8}
            times = {"begin_unix": int(job.begin_unix), "end_unix": int(job.end_unix or 0)}
            block.append(JobRun(job=job.job, user=job.user, state=job.state, nodes=job.nodes, gpus=job.gpus, **values, **times))
            if len(block) == 5000:
                runs.add_runs(block, 0)
                block = []
        runs.add_runs(block, 0)
    return at


def _period() -> str:
    """The last 90 days of the year."""
    begin, end = (time.strftime("%Y-%m-%d", time.localtime(BEGIN + day * DAY)) for day in (DAYS - 90, DAYS))
    return f"{begin}/{end}"


def _run(*words: str) -> tuple[float, float, float]:
    agent = Path(__file__).resolve().parents[2] / "agent"
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *words],
        env={**os.environ, "PYTHONPATH": str(agent)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )
    cpu, memory = done.stderr.splitlines()[-1].split()
    return float(cpu), float(memory), time.monotonic() - began
