"""The admin host of a provisioned rack: a site file, and the commands that are run there."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab import roots
from tests.lab.host import Host
from tests.lab.pause import pause
from tests.lab.rack import Rack

PROJECT = Path(__file__).resolve().parents[2]
NUMA = "/proc/sys/kernel/numa_balancing"


class Admin:
    """The admin host of the rack: a site file and the command."""

    def __init__(self, rack: Rack, folder: Path) -> None:
        self.rack = rack
        self.site = folder / "site.toml"
        self.pids: list[int] = []
        self.write_site()

    def write_site(self, key: str = "", more: str = "") -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        capable = int(Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0], 16) >> 24 & 1
        limit = "infinity" if capable or hard == resource.RLIM_INFINITY else str(hard)
        hosts = "\n".join(f'{h.name} = "{h.address}"' for h in self.rack.nodes)
        self.site.write_text(f"""\
schema = 1
generation = 3
[classes.h100]
nodes = "gpu[1-{len(self.rack.nodes)}]"
profile = "hgx-h100"
fabric = "infiniband"
[classes.h100.settings.nccl]
socket_interface = "{self.rack.nodes[0].address}/8"
[classes.h100.settings.memlock]
limit = "{limit}"
{more}
[ansible]
private_key = "{key or roots.ssh_key()}"
ssh_args = "-F {self.rack.ssh_config} -o ControlMaster=no -o ControlPath=none"
[ansible.hosts]
{hosts}
""")

    def command(self, *words: str) -> list[str]:
        return [*self.rack.enter, sys.executable, "-m", "fairlead", *words]

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
        command = self.command(*words)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as run:
            self.pids.append(run.pid)
            done = subprocess.CompletedProcess(words, 0, *run.communicate(timeout=280))
        done.returncode = run.returncode
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def provision(self, *words: str, code: int = 0) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self.run("provision", "--site", str(self.site), "--json", *words, code=code).stdout)
        return {n["node"]: n for n in report["nodes"]}


def node(admin: Admin, name: str) -> Host:
    return next(h for h in admin.rack.nodes if h.name == name)


def states(results: dict[str, Any]) -> dict[str, str]:
    return {name: n["state"] for name, n in results.items()}


def daemons(host: Host) -> str:
    return host.run("systemctl show -p MainPID --value slurmd fairlead-agent").stdout


def wait(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < end, "waited in vain"
        pause(began, 0.2)
