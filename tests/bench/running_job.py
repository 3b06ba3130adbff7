"""``fairlead job`` of a job that runs on many nodes: a cold process, Slurm's own step on each node, the merge of all answers.

All slurmds share this machine's cores, and each of them starts a slurmstepd. On a cluster these starts go on at the same time. So
the table shows beside the whole time how much of it is work of the asking host: CPU time of ``fairlead job`` with its commands.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.cli.job import PROGRAM
from fairlead.controller.running_report import in_lines, step_options
from fairlead.jobs.usage_record import encoded
from tests.bench.rows import Row, median
from tests.jobs.job_reports import record_of
from tests.lab.cluster import Cluster
from tests.lab.enter import enter_command
from tests.lab.roots import USER

SUITE = "trixie"
NODES = tuple(int(word) for word in os.environ.get("FAIRLEAD_JOB_NODES", "8,32,128").split(","))
ASKED = 5
ROOT = Path(__file__).resolve().parents[2]
#: What the agent's host would print; Python is not installed in the lab's bare roots.
STEP = '#!/bin/sh\nexec cat "/run/lab-lines/$SLURMD_NODENAME"\n'


def rows(say: Callable[[str], None] = lambda text: print(f"bench:   {text}", file=sys.stderr, flush=True)) -> list[Row]:
    """Bring a cluster up, run a job on some of its nodes, ask for it, take the cluster down."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        lines.mkdir()
        lines.chmod(0o755)
        binds = {str(lines): "/run/lab-lines"}
        with Cluster(SUITE, nodes=max(NODES), cores=1, files={PROGRAM: STEP}, binds=binds) as slurm:
            bin_dir = _clients(slurm, Path(folder))
            for count in NODES:
                job = slurm.submit("#!/bin/sh\nsleep 1000\n", f"-N{count}", "--gres=gpu:8", "--time=60")
                slurm.wait_job(job, "RUNNING")
                begin = time.time()
                for name in slurm.node_names:
                    times = {"begin_unix": begin, "written_unix": begin + 60, "end_unix": None, "end_boot": None}
                    record = record_of(name, 60.0, 8, job=job, uid=None, ended_by="", **times)
                    (lines / name).write_text("\n".join(in_lines(name, encoded(record))) + "\n")
                say(f"asking for a job on {count} nodes")
                asked, plain, same = [], [], []
                for _ in range(ASKED):  # in turn, so that other load falls on all
                    asked.append(_ask(slurm, bin_dir, job, count))
                    plain.append(_step(bin_dir, job, count, "/bin/true"))
                    same.append(_step(bin_dir, job, count, PROGRAM))
                slurm.run(["/usr/bin/scancel", str(job)])
                slurm.wait_idle()
                took, cpu = (median([each[at] for each in asked]) for at in (0, 1))
                beside = (
                    f"{cpu:.2f} s of CPU in fairlead, squeue and srun; the rest is {count} slurmstepds on {os.cpu_count()} CPUs"
                )
                budget = 2.0 if count == 128 else None
                load = (
                    f"in turn, a step of srun that does nothing takes {median(plain):.2f} s, one that prints the same records"
                    f" {median(same):.2f} s; load {os.getloadavg()[0]:.0f}"
                )
                made.append(Row(f"fairlead job of a job that runs on {count} nodes", took, budget, "s", beside, load))
    return made


def _clients(slurm: Cluster, folder: Path) -> Path:
    """Slurm's commands, and srun as the job's user: Slurm lets nobody else start a step in the job."""
    bin_dir = folder / "bin"
    bin_dir.mkdir()
    for client in slurm.bin.iterdir():
        (bin_dir / client.name).symlink_to(client)
    become = ["/usr/bin/setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "/usr/bin/srun", "--chdir=/tmp"]
    srun = bin_dir / "srun"
    srun.unlink(missing_ok=True)
    srun.write_text(f'#!/bin/sh\nexec {shlex.join([*enter_command(slurm.pid), *become])} "$@"\n')
    srun.chmod(0o755)
    return bin_dir


def _step(bin_dir: Path, job: int, count: int, program: str) -> float:
    """Return the seconds of a step alone, on the same nodes with the same options."""
    words = [f"{bin_dir}/srun", *step_options(job, count), program]
    env = {"PATH": "/usr/bin:/bin", "SLURM_CONF": "/etc/slurm/slurm.conf"}
    began = time.monotonic()
    subprocess.run(words, env=env, stdout=subprocess.PIPE, timeout=180, check=True)
    return time.monotonic() - began


def _ask(slurm: Cluster, bin_dir: Path, job: int, count: int) -> tuple[float, float]:
    """Ask once; return the seconds that it took, and the CPU seconds of the process and its children."""
    words = [sys.executable, "-m", "fairlead", "job", str(job), "--controller=127.0.0.1:1", f"--bin-dir={bin_dir}"]
    words += ["--slurm-conf=/etc/slurm/slurm.conf", "--json", "--timeout=120"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=180, check=False)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.count('"boot_id"') == count, done.stdout[-3000:] + done.stderr
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
