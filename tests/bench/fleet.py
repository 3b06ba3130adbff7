"""`fairlead fleet` over 128 real slurmds: the whole command, from its start to its end, with Python's start.

The agents' accounts come by a program in place of ssh that prints what a node would: a process for each node, without the cost
of 128 ssh connections, whose two ends would share these cores here and do not on a cluster.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.rows import Row, median
from tests.lab.cluster import Cluster
from tests.provision.test_accounts import STATUS, answer

SUITE = "trixie"
NODES = 128
TRIALS = 7


def rows() -> list[Row]:
    """Bring the cluster up, measure, take it down."""
    with Cluster(SUITE, nodes=NODES, cores=4) as cluster, tempfile.TemporaryDirectory() as folder:
        for size in range(1, 9):
            cluster.submit("#!/bin/sh\nsleep 600\n", f"-N{size}")
        cluster.scontrol("update", "nodename=n[100-110]", "state=drain", "reason=riser swap")
        program = Path(folder, "ssh")
        program.write_text(f'#!/bin/sh\nfor word; do host=$command; command=$word; done\nexec cat "{folder}/$host"\n')
        program.chmod(0o755)
        for name in cluster.node_names:
            Path(folder, name).write_bytes(answer(status={**STATUS, "slurm_node": name}))
        alone = [_seconds(cluster, "--no-agents") for _ in range(TRIALS)]
        agents = [_seconds(cluster, "--ssh", str(program)) for _ in range(TRIALS)]
    return [
        Row(f"fleet, {NODES} slurmds, Slurm alone, median", median(alone), 2, "s", f"longest of {TRIALS}: {max(alone):.2f} s"),
        Row("... and the agents' accounts", median(agents), 2, "s", f"longest of {TRIALS}: {max(agents):.2f} s",
            "by a program in place of ssh"),
    ]  # fmt: skip


def _seconds(cluster: Cluster, *more: str) -> float:
    agent = Path(__file__).resolve().parents[2] / "agent"
    command = [
        sys.executable,
        "-m",
        "fairlead",
        "fleet",
        "--slurm-conf",
        "/etc/slurm/slurm.conf",
        "--bin-dir",
        str(cluster.bin),
        *more,
    ]
    env = {**os.environ, "PYTHONPATH": str(agent)}
    begin = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    took = time.monotonic() - begin
    assert f"{NODES} nodes: " in done.stdout and "11 out of service" in done.stdout, done.stdout
    assert "--no-agents" in more or f"{NODES} ok" in done.stdout, done.stdout
    return took
