"""A first provisioning of all nodes of a rack, and runs with nothing to do: python -m tests.scale.provisioning 32.

Each node is a host with systemd, sshd and slurmd of its own, so memory and the boots bound their number. Needs root and the lab's
roots. Prints one line of JSON for each run.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bench.provision import Timed, environment, site_text
from tests.lab.ledger import own_name
from tests.lab.pause import until
from tests.lab.rack import Rack
from tests.slurm.crowd import OURS

RUNS = ("first", "nothing to do", "nothing to do, one node")


def main(nodes: int) -> int:
    rack = Rack(nodes, suite="trixie", name=own_name("provisioning"))
    began = time.monotonic()
    rack.up(wait=False)
    try:
        rack.wait_ssh(300)
        rack.wait_idle(300)
        say(nodes, "boot", seconds=time.monotonic() - began, cpu_nodes=cpu(rack))
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder) / "site.toml"
            site.write_text(site_text(rack))
            command = [sys.executable, "-m", "fairlead", "provision", "--site", str(site), "-q", "--json"]
            for name in RUNS:
                rack.ctl("sdiag --reset")
                limit = ["-l", "gpu1"] if name.endswith("one node") else []
                done = Timed(rack, [*command, *limit], environment())
                found = json.loads(done.out)["nodes"]
                figures = {"seconds": done.wall, "cpu_here": done.cpu, "cpu_nodes": done.nodes, "rpcs": rpcs(rack)}
                say(nodes, name, changed=sum(bool(node["changed"]) for node in found), of=len(found), **figures)
        verdicts = [host.path("/run/fairlead/verdict") for host in rack.nodes]
        until(lambda: all(path.exists() for path in verdicts), "verdict of each", 60)
        words = Counter(path.read_text().split("\t")[1] for path in verdicts)
        say(nodes, "agents", verdicts=words, pss_mib_each=memory(rack) / nodes)
    finally:
        rack.down()
    return 0


def say(nodes: int, what: str, **figures: Any) -> None:
    rounded = {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"nodes": nodes, "what": what, **rounded, "load": round(os.getloadavg()[0], 1)}), flush=True)


def cpu(rack: Rack) -> float:
    text = (rack.cgroup / "hosts" / "cpu.stat").read_text()
    return int(text.split("usage_usec ")[1].split()[0]) / 1e6


def memory(rack: Rack) -> float:
    """MiB of the agents with the processes that read NVML (PSS)."""
    found = 0.0
    for group in rack.cgroup.rglob("fairlead-agent.service"):
        for pid in (group / "cgroup.procs").read_text().split():
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            found += int(match[1]) / 1024 if match else 0.0
    return found


def rpcs(rack: Rack) -> dict[str, int]:
    """What slurmctld was asked since `sdiag --reset` of the kinds that fairlead asks."""
    text = rack.ctl("sdiag")
    return {name: int(n) for name, n in re.findall(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)", text, re.M) if name in OURS}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
