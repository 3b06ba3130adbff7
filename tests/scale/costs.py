"""What one question of an agent's costs slurmctld and the network, by the number of nodes: python -m tests.scale.costs 16 64 128.

Each question is asked from a node, by the commands that the agent calls. Needs root and the lab's roots.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.slurm.scontrol import Scontrol
from tests.lab.ledger import own_name
from tests.scale.many_nodes import ManyNodes
from tests.slurm.crowd import rpcs

TIMES = 20
TICK = os.sysconf("SC_CLK_TCK")


def main(sizes: list[int]) -> int:
    for nodes in sizes:
        with (
            tempfile.TemporaryDirectory() as folder,
            ManyNodes("trixie", nodes=nodes, cores=4, accounting=True, name=own_name("costs")) as many,
        ):
            print(json.dumps({"nodes": nodes, **costs(many, Path(folder)), "load": round(os.getloadavg()[0], 1)}), flush=True)
            if nodes == min(sizes):
                print(json.dumps({"rate_limit": rate_limit(many)}), flush=True)
    return 0


def costs(many: ManyNodes, folder: Path) -> dict[str, Any]:
    bin_dir = many.clients("n1", folder / "bin", folder / "calls")
    client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(bin_dir), deadline_seconds=60)
    asks: dict[str, Callable[[], object]] = {
        "all nodes": client.nodes,
        "one node": lambda: client.node("n2"),
        "update": lambda: client.drain("n2", "fairlead:xid:0123456789ab Xid 79 on GPU 0000:1b:00.0 (fallen off the bus)"),
        "topology": client.topology,
    }
    return {name: _cost(many, ask) for name, ask in asks.items()}


def _cost(many: ManyNodes, ask: Callable[[], object]) -> dict[str, Any]:
    """Of one call: bytes on the network in both directions, RPCs, milliseconds of CPU in slurmctld and in the client."""
    (slurmctld,) = many.pids("slurmctld")
    ask()
    many.run(["/usr/bin/sdiag", "--reset"])
    before = many.network_bytes(), _cpu(slurmctld), _children()
    for _ in range(TIMES):
        ask()
    after = many.network_bytes(), _cpu(slurmctld), _children()
    counted = {name: (count, mean) for name, (count, mean) in rpcs(many).items() if name != "REQUEST_STATS_INFO"}
    moved, server, client = (b - a for a, b in zip(before, after, strict=True))
    return {
        "bytes": round(moved / TIMES),
        "rpcs": {name: count / TIMES for name, (count, _) in counted.items() if count >= TIMES},
        "slurmctld_us": {name: mean for name, (count, mean) in counted.items() if count >= TIMES},
        "slurmctld_cpu_ms": round(1000 * server / TIMES, 2),
        "client_cpu_ms": round(1000 * client / TIMES, 1),
    }


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rate_limit(many: ManyNodes) -> dict[str, float]:
    """Seconds that 30 questions take after each other, as root (an agent) and as a user, where slurmctld answers two a second."""
    many.write_conf(extra_conf=many.extra_conf + "SlurmctldParameters=rl_enable,rl_bucket_size=5,rl_refill_rate=2\n")
    many.scontrol("update", "nodename=n2", "state=resume")
    many.stop_slurmctld()
    many.start_slurmctld()
    many.wait_idle()
    found: dict[str, float] = {}
    for user in ("", "alice"):
        began = time.monotonic()
        many.run(["/bin/sh", "-c", "for n in $(seq 30); do sinfo -h >/dev/null; done"], user=user, timeout=300)
        found[user or "root"] = round(time.monotonic() - began, 1)
    return found


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or [16, 64, 128]))
