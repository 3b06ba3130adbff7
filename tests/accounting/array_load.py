"""Measures the collection of a large array that has ended at once, on a real slurmctld with slurmdbd: how long it takes, how fast
it writes, and what slurmctld's other clients feel.

The collector is stopped and continued in turn (SIGSTOP, SIGCONT), so that whatever else the machine does falls on both halves.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.jobs.usage_record import encoded
from tests.jobs.job_reports import record_of
from tests.lab.accounting import query, wait_in_database
from tests.lab.cluster import Cluster
from tests.slurm.crowd import Probe, rpcs

ROOT = Path(__file__).resolve().parents[2]
TURN_SECONDS = 15.0  # a turn with the collector, then one without it
RUN_SECONDS = 600  # of each task, by the database
#: Called as PROGRAM [options] HOST COMMAND: a node whose agent keeps its records in the folder of its name.
SSH = """#!/bin/sh
for word; do command=$host host=$node node=$word; done
host=$host command=$node
[ -d {folder}/$host ] || {{ echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; }}
exec env PYTHONPATH={agent} {python} -m fairlead usage-records --state-dir {folder}/$host ${{command##* }}
"""


@dataclass
class Half:
    """What was seen in the turns with the collector, or in those without it. rpcs: microseconds of slurmctld by message type."""

    seconds: float = 0.0
    milliseconds: dict[str, list[float]] = field(default_factory=lambda: {"squeue": [], "ping": []})
    counts: dict[str, int] = field(default_factory=dict)
    microseconds: dict[str, float] = field(default_factory=dict)

    def add(self, seconds: float, probe: Probe, served: dict[str, tuple[int, int]]) -> None:
        self.seconds += seconds
        for name, values in probe.took.items():
            self.milliseconds[name] += values
        for name, (count, mean) in served.items():
            self.counts[name] = self.counts.get(name, 0) + count
            self.microseconds[name] = self.microseconds.get(name, 0.0) + count * mean

    def median(self, tool: str) -> float:
        return statistics.median(self.milliseconds[tool])

    def mean_microseconds(self, name: str = "REQUEST_JOB_INFO") -> float:
        return self.microseconds.get(name, 0.0) / max(1, self.counts.get(name, 0))


@dataclass
class Collected:
    """The result. written: how many comments. most_per_second: the most writes in any five to twelve seconds, per second."""

    tasks: int
    written: int
    with_it: Half
    without: Half
    most_per_second: float

    def ratio(self, tool: str) -> float:
        return self.with_it.median(tool) / self.without.median(tool)


def ended_array(slurm: Cluster, folder: Path, tasks: int) -> int:
    """Run an array to its end, have its nodes keep a record of each task, and return its job id."""
    array = slurm.submit("#!/bin/sh\n:\n", f"--array=1-{tasks}")
    wait_in_database(slurm, array, records=tasks, seconds=1500)
    words = ["/usr/bin/sacct", "-n", "-P", "-X", "-o", "jobidraw,nodelist,start,end", "-j", str(array)]
    rows = slurm.run(words, env={"SLURM_TIME_FORMAT": "%s"}).stdout.split()
    query(slurm, f"UPDATE lab_job_table SET time_start=time_end-{RUN_SECONDS} WHERE id_array_job={array}")
    for row in rows:
        job, node, _, end = row.split("|")
        begin = float(end) - RUN_SECONDS
        kept = folder / node / "usage"
        kept.mkdir(parents=True, exist_ok=True)
        times = {"begin_unix": begin, "end_unix": float(end), "written_unix": float(end)}
        made = record_of(node, float(RUN_SECONDS), 1, job=int(job), uid=None, **times)
        (kept / f"{job}-{int(begin)}.json").write_bytes(encoded(made))
    return array


def collected(slurm: Cluster, folder: Path, tasks: int) -> Collected:
    """Collect in turns until the round has ended, and return what was measured."""
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(folder=folder, agent=ROOT / "agent", python=sys.executable))
    ssh.chmod(0o755)
    words = ["nice", "-n10", sys.executable, "-m", "fairlead", "collect", "--json", "--store", str(folder / "store")]
    words += ["--bin-dir", str(slurm.bin), "--ssh", str(ssh)]
    halves = (Half(), Half())
    writes: list[tuple[float, int]] = []
    with subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT / "agent")}, stdout=subprocess.PIPE) as process:
        turn = 0
        while process.poll() is None:
            runs = turn % 2 == 0
            process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
            slurm.run(["/usr/bin/sdiag", "--reset"])
            began = time.monotonic()
            with Probe(slurm) as probe:
                while process.poll() is None and time.monotonic() - began < TURN_SECONDS:
                    time.sleep(2)
                    writes.append((time.monotonic(), written(slurm)))
            halves[turn % 2].add(time.monotonic() - began, probe, rpcs(slurm))
            turn += 1
        assert process.stdout is not None
        counted = json.loads(process.stdout.read())
    # In any time T, at most T x rate + 1 writes begin: the one at its beginning counts for the time before.
    most = max(((n - m - 1) / (b - a) for a, m in writes for b, n in writes if 5 <= b - a < 12), default=0.0)
    return Collected(tasks, counted["written"], *halves, most)


def written(slurm: Cluster) -> int:
    """How many jobs have an AdminComment by now."""
    return int(query(slurm, "SELECT COUNT(*) FROM lab_job_table WHERE admin_comment LIKE 'JS1:%'")[0][0])
