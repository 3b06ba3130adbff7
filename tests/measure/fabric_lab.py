"""A cluster under real Slurm whose nodes have a small fabric of their own: veth links in network namespaces, shaped by tbf.

Each rail has bridges of its own. On it, each node has a link to its leaf's bridge, and each leaf has an uplink to the spine's
bridge. If rails shared a bridge, the kernel would answer ARP for both addresses of a node on either link. Every end has its own
rate, so that a node, one direction of a node, or an uplink can be made slow. All namespaces belong to the cluster's box and end
with it. The traffic stays in them, and two cores carry all of it. Slurm itself uses the loopback of the box.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.cli import main
from fairlead.measure.results_store import ResultStore
from tests.lab.cluster import Cluster
from tests.lab.pause import pause

ROOT = Path(__file__).resolve().parents[2]
LEAVES, PER_LEAF = 3, 4
NODES = tuple(f"n{i}" for i in range(1, LEAVES * PER_LEAF + 1))
RATE_KBIT = 16_000  # of each direction of a node's link
UPLINK_KBIT = PER_LEAF * RATE_KBIT  # of each rail
RAILS = 2  # each node has so many links; only the test of a rail uses more than the first
GPUS = 2  # each node says that it has so many; there is none
HOLDER = "unshare --net sleep infinity >/dev/null 2>&1 </dev/null & echo $!"


def port(name: str, rail: int) -> str:
    """The upper end of the link of a node or a leaf."""
    return f"{name}r{rail}"


def leaf_of(node: str) -> str:
    return f"leaf{(int(node[1:]) - 1) // PER_LEAF + 1}"


@dataclass
class FabricLab:
    """``pids``: a process in the network namespace of each node, leaf and of the spine, as the box numbers them."""

    slurm: Cluster
    folder: Path
    pids: dict[str, str] = field(default_factory=dict)

    def run(self, script: str) -> str:
        return self.slurm.run(["/bin/sh", "-ec", script]).stdout

    def build(self) -> None:
        """Make the namespaces, the links and the bridges, all at full rate."""
        names = [*NODES, *(f"leaf{i}" for i in range(1, LEAVES + 1)), "spine"]
        made = self.run("".join(f"{HOLDER}\n" for _ in names)).split()
        self.pids = dict(zip(names, made, strict=True))
        lines = [
            f"until [ $(readlink /proc/{pid}/ns/net) != $(readlink /proc/self/ns/net) ]; do sleep 0.01; done" for pid in made
        ]
        switches = [name for name in names if name not in NODES]
        bridges = "; ".join(f"ip link add br{rail} type bridge; ip link set br{rail} up" for rail in range(RAILS))
        lines += [self.within(name, bridges) for name in switches]
        for rail in range(RAILS):
            for number, node in enumerate(NODES, 1):
                lines.append(self.link(node, f"eth{rail}", leaf_of(node), port(node, rail)))
                up = f"ip addr add 10.99.{rail}.{number}/24 dev eth{rail}; ip link set eth{rail} up"
                lines += [self.within(node, up), self.join(leaf_of(node), port(node, rail), rail)]
            for leaf in switches[:-1]:
                lines.append(self.link(leaf, f"uplink{rail}", "spine", port(leaf, rail)))
                lines += [self.join(leaf, f"uplink{rail}", rail), self.join("spine", port(leaf, rail), rail)]
        self.run("\n".join(lines))
        self.heal()

    def join(self, switch: str, device: str, rail: int) -> str:
        return self.within(switch, f"ip link set {device} master br{rail}; ip link set {device} up")

    def within(self, name: str, script: str) -> str:
        return f"nsenter --net=/proc/{self.pids[name]}/ns/net /bin/sh -ec '{script}'"

    def link(self, one: str, device: str, other: str, end: str) -> str:
        return f"ip link add name {device} netns {self.pids[one]} type veth peer name {end} netns {self.pids[other]}"

    def shape(self, name: str, device: str, kbit: int) -> str:
        tbf = f"tc qdisc replace dev {device} root tbf rate {kbit}kbit burst 12kb limit 60kb"
        return self.within(name, tbf)

    def rates(self, node: str, *, sends: int = RATE_KBIT, receives: int = RATE_KBIT, rail: int = 0) -> None:
        """Set what a node's link carries in each direction."""
        self.run(f"{self.shape(node, f'eth{rail}', sends)}\n{self.shape(leaf_of(node), port(node, rail), receives)}")

    def uplink(self, leaf: str, kbit: int, rail: int = 0) -> None:
        """Set what a leaf's uplink carries in each direction."""
        self.run(f"{self.shape(leaf, f'uplink{rail}', kbit)}\n{self.shape('spine', port(leaf, rail), kbit)}")

    def heal(self, kbit: int = RATE_KBIT) -> None:
        """All links at their full rate. kbit: of each direction of a node's link; an uplink has as much as its nodes."""
        lines = []
        for rail in range(RAILS):
            for node in NODES:
                lines += [self.shape(node, f"eth{rail}", kbit), self.shape(leaf_of(node), port(node, rail), kbit)]
            for leaf in sorted({leaf_of(n) for n in NODES}):
                up = PER_LEAF * kbit
                lines += [self.shape(leaf, f"uplink{rail}", up), self.shape("spine", port(leaf, rail), up)]
        self.run("\n".join(lines))

    # -- fairlead ---------------------------------------------------------------------------------

    def write(self, tool: str = "", *, rails: int = 1, seconds: int = 40) -> None:
        """The site, the topology, and for each node a fresh pass alone. rails: how many rails each node uses."""
        for sub in ("ns", "address", "bin"):
            (self.folder / sub).mkdir(exist_ok=True)
        for number, node in enumerate(NODES, 1):
            (self.folder / "ns" / node).write_text(self.pids[node])
            (self.folder / "address" / node).write_text("".join(f"10.99.{rail}.{number}\n" for rail in range(rails)))
        shutil.copy(ROOT / "tests/measure/fabric_tcp.py", self.folder / "bin/sendrecv_perf")
        (self.folder / "bin/sendrecv_perf").chmod(0o755)
        (self.folder / "gpus").write_text(str(GPUS))
        enter = f"exec nsenter --net=/proc/$(cat {self.folder}/ns/$SLURMD_NODENAME)/ns/net"
        command = tool or f"{enter} {self.folder}/bin/sendrecv_perf"
        site = ["schema = 1", "[accept]", f"pair_command = '{command}'", f"rail_command = '{command}'"]
        site += [f"pair_seconds = {seconds}", f"pair_rails = {rails}", "pair_srun = ['--mpi=none']"]
        site += [f"topology = '{self.folder}/topology'"]
        (self.folder / "site.toml").write_text("".join(f"{line}\n" for line in site))
        leaves = sorted({leaf_of(node) for node in NODES})
        lines = [f"{leaf}: {','.join(n for n in NODES if leaf_of(n) == leaf)}\n" for leaf in leaves]
        (self.folder / "topology").write_text("".join(lines))
        passes(self.store, NODES)

    @property
    def store(self) -> Path:
        return self.folder / "accept.sqlite"

    def command(self, *words: str) -> list[str]:
        given = ["--fabric", "--site", str(self.folder / "site.toml"), "--store", str(self.store)]
        given += ["--bin-dir", str(self.slurm.bin), "--slurm-conf", "/etc/slurm/slurm.conf"]
        return [sys.executable, "-m", "fairlead", "accept", *given, *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
        return subprocess.Popen(
            self.command(*words), env=env, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def accept(self, *words: str) -> tuple[int, str, str]:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            code = main(self.command(*words)[3:])
        return code, out.getvalue(), err.getvalue()

    def guilty(self, *words: str) -> tuple[set[tuple[str, str]], dict[str, Any]]:
        """(kind, name) of each guilty part, and all of --json."""
        code, out, err = self.accept(*words, "--json")
        assert out, f"{code} {err}"
        data = json.loads(out)
        return {(part["kind"], part["name"]) for part in data["guilty"]}, data

    def jobs(self) -> list[str]:
        return self.slurm.run(["/usr/bin/squeue", "-h", "-o", "%A"]).stdout.split()


def passes(path: Path, nodes: Sequence[str], *, outcome: str = "pass", age_seconds: float = 0, kind: str = "") -> None:
    """Write that each node passed alone. kind: the node's GPUs."""
    with closing(ResultStore(str(path))):
        pass
    with closing(sqlite3.connect(path)) as db:
        run = f"alone-{time.monotonic_ns()}"
        at = time.time() - age_seconds
        rows = [(run, node, 1, "", kind, outcome, "", at, "") for node in nodes]
        db.executemany("INSERT INTO node VALUES (?,?,?,?,?,?,?,?,?)", rows)
        gpus = [(run, node, k, f"GPU-{node}-{k}", "", f"0000:{27 + k:02x}:00.0", "none") for node in nodes for k in range(GPUS)]
        db.executemany("INSERT INTO gpu VALUES (?,?,?,?,?,?,?)", gpus)
        db.commit()


@contextmanager
def fabric_lab(suite: str, name: str, folder: Path) -> Iterator[FabricLab]:
    cluster = Cluster(suite, nodes=len(NODES), cores=4, shared=[folder], name=name, extra_conf="MessageTimeout=15\n")
    with cluster as slurm:
        hold = slurm._hold
        lab = FabricLab(slurm, folder)
        lab.build()
        yield lab
    if hold is not None and hold.stdout is not None:
        hold.stdout.close()


def pair_rows(data: dict[str, Any]) -> str:
    """The table of pairs of --json: the round, its stage, the nodes, and the figure as a fraction of what is expected."""
    lines = []
    for pair in data["pairs"]:
        part = f"{pair['gbps'] / data['expected_gbps']:.3f}" if pair["gbps"] is not None else f"- {pair['why']}"
        lines.append(f"{pair['round']} {pair['stage']} {pair['node_a']} {pair['node_b']} {pair['rail'] or ''} {part}")
    return "\n".join(lines)


def reported(data: dict[str, Any]) -> str:
    """What a failed test prints: the guilty parts in words, and the table that they were judged from."""
    return "\n".join([*(f"{part['kind']} {part['name']}: {part['why']}" for part in data["guilty"]), pair_rows(data)])


def until(true: Any, what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if true():
            return
        assert began < deadline, what
        pause(began)
