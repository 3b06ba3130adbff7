"""`fairlead fleet` over 128 real slurmds and 128 real sshds: the whole command, from its start to its end, with Python's start.

Both ends of every ssh connection share these cores here, which they do not on a cluster. A first look opens the connections:
most of its time is their key exchange (58 of 72 ms of the client's CPU time in OpenSSH 9.2, whose first choice is sntrup761).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.rows import Row, median
from tests.lab import roots
from tests.lab.cluster import Cluster
from tests.provision.test_agent_accounts import STATUS

SUITE = "trixie"
NODES = 128
TRIALS = 7
CLASSIC = "-o KexAlgorithms=^curve25519-sha256"
SSH_CONFIG = """\
IdentityFile {key}
IdentitiesOnly yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
ControlPath {folder}/%C
"""


def rows() -> list[Row]:
    """Bring the cluster up, measure, take it down."""
    with Cluster(SUITE, nodes=NODES, cores=4) as cluster, tempfile.TemporaryDirectory() as place:
        for size in range(1, 9):
            cluster.submit("#!/bin/sh\nsleep 600\n", f"-N{size}")
        cluster.scontrol("update", "nodename=n[100-110]", "state=drain", "reason=riser swap")
        start_sshds(cluster)
        folder = Path(place)
        (folder / "ssh_config").write_text(SSH_CONFIG.format(key=roots.ssh_key(), folder=folder))
        alone = [_seconds(cluster, "--no-agents") for _ in range(TRIALS)]
        first = [_seconds(cluster, "--site", site(cluster, folder, "-o ControlMaster=no")) for _ in range(2)]
        classic = [_seconds(cluster, "--site", site(cluster, folder, f"-o ControlMaster=no {CLASSIC}")) for _ in range(2)]
        kept = site(cluster, folder, "-o ControlMaster=auto -o ControlPersist=60")
        agents = [_seconds(cluster, "--site", kept) for _ in range(TRIALS + 1)][1:]
        for connection in folder.glob("[0-9a-f]*[0-9a-f]"):
            subprocess.run(["ssh", "-O", "exit", "-o", f"ControlPath={connection}", "n"], capture_output=True, check=False)
    return [
        Row(f"fleet, {NODES} slurmds, Slurm alone, median", median(alone), 2, "s", f"longest of {TRIALS}: {max(alone):.2f} s"),
        Row(f"... and the agents' accounts by {NODES} sshds", median(agents), 2, "s", f"longest of {TRIALS}: {max(agents):.2f} s",
            "connections that are kept"),
        Row("... first look: every connection is new", median(first), None, "s", f"{median(classic):.1f} s with {CLASSIC}"),
    ]  # fmt: skip


def start_sshds(cluster: Cluster) -> None:
    """One sshd for each node, on an address of its own, which sees that node's /run/fairlead."""
    script = "mkdir -p /run/sshd\n"
    for number, name in enumerate(cluster.node_names, 1):
        status = {**STATUS, "slurm_node": name, "findings": [], "sweep": {"boot_seconds": 1.0}}
        run = cluster.node_dirs(name).run
        (run / "verdict").write_text("1\tok\t99999999\t7\t-\n")
        (run / "status.json").write_text(json.dumps(status))
        sshd = f"/usr/sbin/sshd -o ListenAddress=127.1.0.{number} -o PidFile=none"
        inner = f"mount --bind /run/lab-nodes/{name}/run /run/fairlead; exec {sshd}"
        script += f"unshare --mount --propagation private /bin/sh -ec {shlex.quote(inner)} || exit\n"
    cluster.run(["/bin/sh", "-c", script])


def site(cluster: Cluster, folder: Path, options: str) -> str:
    """A site file whose ssh takes ``options``."""
    hosts = "".join(f'{name} = "127.1.0.{number}"\n' for number, name in enumerate(cluster.node_names, 1))
    path = folder / "site.toml"
    path.write_text(f'schema = 1\n[ansible]\nssh_args = "-F {folder}/ssh_config {options}"\n[ansible.hosts]\n{hosts}')
    return str(path)


def _seconds(cluster: Cluster, *more: str) -> float:
    agent = Path(__file__).resolve().parents[2] / "agent"
    where = ["--slurm-conf", "/etc/slurm/slurm.conf", "--bin-dir", str(cluster.bin), "--timeout", "120"]
    command = ["nsenter", f"--net=/proc/{cluster.pid}/ns/net", sys.executable, "-m", "fairlead", "fleet", *where, *more]
    env = {**os.environ, "PYTHONPATH": str(agent)}
    begin = time.monotonic()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    took = time.monotonic() - begin
    assert f"{NODES} nodes: " in done.stdout and "11 out of service" in done.stdout, done.stdout
    assert "--no-agents" in more or f"{NODES} ok" in done.stdout, done.stdout
    return took
