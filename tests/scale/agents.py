"""One agent process for each node of a ``ManyNodes``, with the options that a site has by default."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fairlead import config
from fairlead.model.verdict import State
from tests.daemon.conftest import XID79, Agent
from tests.lab import linux
from tests.lab.pause import pause
from tests.lab.trees import MACHINES
from tests.scale.many_nodes import ManyNodes

TREE = MACHINES / "hgx-h100"
TICK = os.sysconf("SC_CLK_TCK")
PORTS = "sys/class/infiniband/mlx5_*/ports/1"


class NodeAgent(Agent):
    """The agent of one node. Its folders are those that the node's own processes see as /run/fairlead and so on."""

    def __init__(self, many: ManyNodes, name: str, tree: Path = TREE) -> None:
        self.many, self.name = many, name
        folder = many.folder / "nodes" / name
        self.calls = folder / "calls"
        self.bin = many.clients(name, folder / "bin", self.calls)
        super().__init__(folder, tree)
        dirs = many.node_dirs(name)
        self.run_dir, self.state_dir = dirs.run, dirs.var
        self.document = dirs.etc / "node.json"
        self.write_document()
        self.records = 0

    def write_document(self, **options: dict[str, Any]) -> None:
        """The document of the profile: only the folders and Slurm's commands are the lab's own."""
        dirs = self.many.node_dirs(self.name)
        data = config.to_data(config.profile_document(self.name, "hgx-h100"))
        data["agent"] |= {"run_dir": str(dirs.run), "state_dir": str(dirs.var), "kmsg_path": str(self.fifo)}
        data["agent"] |= {"metrics_textfile": str(dirs.run / "metrics.prom")}
        data["slurm"] |= {"conf": "/etc/slurm/slurm.conf", "bin_dir": str(self.bin)}
        data["checks"]["rdma_ports"]["mode"] = "enforce"
        data["settings"] = {}
        for section, changes in options.items():
            data[section] |= changes
        del data["hash"]
        (dirs.etc / "node.json").write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), self.name)))

    def command(self) -> list[str]:
        proc = f"/proc/{self.many.inits[self.name]}/root/proc"
        return [sys.executable, "-m", "tests.slurm.watching_agent", str(self.document), str(self.tree), proc]

    def begin(self) -> None:
        """Start it, without waiting. It ends with this process, however that ends."""
        root = Path(__file__).resolve().parents[2]
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                self.command(),
                cwd=root,
                env={**os.environ, "PYTHONPATH": str(root / "agent")},
                stdout=out,
                stderr=out,
                preexec_fn=linux.die_with_parent,
            )
        self.many.ledger.process("process", self.process.pid)

    def gpu_lost(self) -> None:
        """Xid 79: a drain that no suspicion delays."""
        self.records += 1
        self.kernel(XID79.format(n=self.records, us=int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)))

    def ports_down(self, *, down: bool = True) -> None:
        """What a node sees of a switch that has no power. Its tree has to be its own."""
        assert self.tree != TREE
        for port in self.tree.glob(PORTS):
            (port / "state").write_text("1: DOWN\n" if down else "4: ACTIVE\n")
            (port / "phys_state").write_text("2: Polling\n" if down else "5: LinkUp\n")

    @property
    def state(self) -> State:
        return self.verdict().state

    def cpu_seconds(self) -> float:
        """CPU time of the agent and of all commands that it has waited for."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICK

    def asked(self) -> int:
        """How many of Slurm's commands it has called."""
        return self.calls.read_text().count("\n") if self.calls.exists() else 0

    def pss_mib(self) -> float:
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
        return 0.0


class Agents(dict[str, NodeAgent]):
    """All agents, by node."""

    def of(self, names: Iterable[str]) -> list[NodeAgent]:
        return [self[name] for name in names]

    def in_state(self, state: State) -> set[str]:
        return {name for name, agent in self.items() if agent.state is state}

    def cpu_seconds(self) -> float:
        return sum(agent.cpu_seconds() for agent in self.values())

    def asked(self) -> dict[str, int]:
        return {name: agent.asked() for name, agent in self.items()}

    def limits(self) -> dict[str, str]:
        """The limit that each held node names."""
        found = {name: agent.status()["slurm"]["limit"] for name, agent in self.items()}
        return {name: f"{limit['kind']} {limit['name']}" for name, limit in found.items() if limit}

    def until(self, met: Callable[[], bool], what: str, seconds: float, *, every_seconds: float = 0.1) -> float:
        """Wait for something to become true. Returns how many seconds that took."""
        start = time.monotonic()
        while not met():
            began = time.monotonic()
            ended = [name for name, agent in self.items() if agent.process is not None and agent.process.poll() is not None]
            assert not ended, f"agents have ended: {ended}"
            assert began < start + seconds, f"no {what} in {seconds:g} s"
            pause(began, every_seconds)
        return time.monotonic() - start


@contextmanager
def running(many: ManyNodes, memory: Path, own: Iterable[str] = ()) -> Iterator[Agents]:
    """The agents while they run. ``own``: the nodes that have a copy of the machine tree for themselves, below ``memory``."""
    agents = Agents()
    try:
        for name in many.node_names:
            tree = TREE
            if name in own:
                tree = memory / name
                shutil.copytree(TREE, tree, symlinks=True)
            agents[name] = NodeAgent(many, name, tree)
            agents[name].begin()
        agents.until(lambda: all(agent.sequence() for agent in agents.values()), "first verdict of each", 400)
        yield agents
    finally:
        for agent in agents.values():
            if agent.process is not None:
                agent.process.kill()
        for agent in agents.values():
            if agent.process is not None:
                agent.process.wait(60)
