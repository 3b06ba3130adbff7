"""Many nodes that go bad in the same moment: real couriers and drain protocols, each with a ledger of its own, on one real
slurmctld; and what slurmctld did meanwhile, from its own log and counters."""

from __future__ import annotations

import re
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.daemon.slurmctld.courier import Courier
from fairlead.daemon.slurmctld.slurm_state import CourierOrder
from fairlead.drains.cluster_limits import ClusterLimits
from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import NodeDrainState
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.scontrol import Scontrol
from tests.lab.cluster import Cluster
from tests.lab.roots import LabError

WANT = CourierOrder(
    kind="drain", check="xid", summary="Xid 79 on GPU 0000:1b:00.0 (fallen off the bus): reboot_node", certain=True
)
PROBE_SECONDS = 0.25
#: What fairlead's own questions and writes are, by message type; the probe's are REQUEST_PING and REQUEST_JOB_INFO.
OURS = ("REQUEST_NODE_INFO", "REQUEST_NODE_INFO_SINGLE", "REQUEST_PARTITION_INFO", "REQUEST_UPDATE_NODE", "REQUEST_TOPO_INFO")
_COUNT = re.compile(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)", re.MULTILINE)
_UPDATE = re.compile(r"^\[([\d:T.-]+)\] update_node: node (\S+) state set to (\S+)", re.MULTILINE)


def rpcs(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """Count and mean microseconds that slurmctld took, by message type, since `sdiag --reset`."""
    text = cluster.run(["/usr/bin/sdiag"]).stdout.partition("by message type")[2].partition("by user")[0]
    return {name: (int(count), int(mean)) for name, count, mean in _COUNT.findall(text)}


def ours(counts: dict[str, tuple[int, int]]) -> int:
    """RPCs of fairlead: all of its kinds, without the probe's squeue (one REQUEST_JOB_INFO and one REQUEST_PARTITION_INFO)."""
    return sum(counts.get(name, (0, 0))[0] for name in OURS) - counts.get("REQUEST_JOB_INFO", (0, 0))[0]


@dataclass
class Probe:
    """Asks slurmctld what a user would, over and over, and keeps the milliseconds: `squeue` and `scontrol ping`."""

    cluster: Cluster
    took: dict[str, list[float]] = field(default_factory=lambda: {"squeue": [], "ping": []})

    def __enter__(self) -> Probe:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        asked = {"squeue": ["squeue", "-h"], "ping": ["scontrol", "ping"]}
        while not self._end.wait(PROBE_SECONDS):
            for name, (tool, word) in asked.items():
                start = time.perf_counter()
                subprocess.run([self.cluster.bin / tool, word], capture_output=True, check=False, timeout=60)
                self.took[name].append((time.perf_counter() - start) * 1000)

    def summary(self, name: str) -> str:
        """Median and worst in words."""
        took = self.took[name]
        return f"{name} median {statistics.median(took):.0f} ms, max {max(took):.0f} ms" if took else f"{name}: not asked"


@dataclass(frozen=True)
class Overshoot:
    """nodes: the most that were drained at once, past the budget. seconds: the longest time past it. times: how often.
    drains, undone: how many drains slurmctld took and how many were undone."""

    nodes: int
    seconds: float
    times: int
    drains: int
    undone: int


def overshoot(log: str, budget: int) -> Overshoot:
    """What slurmctld's log says about drains and their undoing (lines of ``update_node``, src/slurmctld/node_mgr.c)."""
    out: set[str] = set()
    most, drains, undone = 0, 0, 0
    began = longest = 0.0
    times = 0
    for stamp, name, state in _UPDATE.findall(log):
        second, _, fraction = stamp.partition(".")
        at = time.mktime(time.strptime(second, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{fraction or 0}")
        if "DRAIN" in state and state != "UNDRAIN":
            out.add(name)
            drains += 1
        else:
            undone += name in out
            out.discard(name)
        most = max(most, len(out))
        if len(out) > budget and not began:
            began, times = at, times + 1
        elif len(out) <= budget and began:
            longest, began = max(longest, at - began), 0.0
    return Overshoot(max(0, most - budget), longest, times, drains, undone)


@dataclass
class Rate:
    """Asks slurmctld over and over how many RPCs of fairlead's kinds it has had (sdiag): seconds since its start, how many."""

    cluster: Cluster
    seen: list[tuple[float, int]] = field(default_factory=lambda: [(0.0, 0)])

    def __enter__(self) -> Rate:
        self._end, self._began = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(PROBE_SECONDS):
            with suppress(LabError, subprocess.TimeoutExpired):
                counts = rpcs(self.cluster)
                self.seen.append((time.monotonic() - self._began, sum(counts.get(name, (0, 0))[0] for name in OURS)))

    def worst(self, seconds: float) -> float:
        """RPCs a second in the worst stretch of at least so many seconds."""
        pairs = [(a, b) for i, a in enumerate(self.seen) for b in self.seen[i + 1 :] if b[0] - a[0] >= seconds]
        return max(((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs), default=0.0)


def cost(command: Sequence[str]) -> int:
    """RPCs of a call, as sdiag counts: who shows nodes or jobs asks for the partitions too, `scontrol show config` pings."""
    return 0 if "--version" in command else 1 if command[0] == "scontrol" and {"update", "topology"} & {*command} else 2


class Crowd:
    """One courier for each node of a cluster, or for those named. Use ``with``; ``go`` orders all in the same moment."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        rules: Rules,
        nodes: Sequence[str] = (),
        *,
        reconcile_seconds: float = 600,
        deadline_seconds: float = 60,
    ) -> None:
        self.couriers: dict[str, Courier] = {}
        self.since: dict[str, float] = {}  # when a node was first seen drained (CLOCK_MONOTONIC)
        self.client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(cluster.bin), deadline_seconds=deadline_seconds)
        for name in nodes or cluster.node_names:
            for sub in ("state", "run"):
                (folder / name / sub).mkdir(parents=True, exist_ok=True)
            ledger = Ledger(str(folder / name / "state"), str(folder / name / "run"), node=name, machine="m1")
            drain = DrainProtocol(
                NodeDrainState(self.client, ledger, name, rules, limits=ClusterLimits(rules, self.client.topology))
            )
            self.couriers[name] = Courier(drain, splay_seconds=0.05, reconcile_seconds=reconcile_seconds)

    def __enter__(self) -> Crowd:
        for courier in self.couriers.values():
            courier.start()
        self.until(lambda: not any(c.topology.startswith("unknown") for c in self.couriers.values()), "every topology")
        return self

    def __exit__(self, *error: object) -> None:
        for courier in self.couriers.values():
            courier.stop()
        for thread in threading.enumerate():
            if thread.name == "slurm":  # an attempt under way could drain a node that the next test takes for free
                thread.join(120)

    def go(self, want: CourierOrder = WANT) -> None:
        for courier in self.couriers.values():
            courier.want(want)

    @property
    def drained(self) -> set[str]:
        found = {name for name, courier in self.couriers.items() if courier.take().drained}
        for name in found:
            self.since.setdefault(name, time.monotonic())
        return found

    @property
    def errors(self) -> set[str]:
        """The nodes whose agents had no answer at last."""
        return {name for name, courier in self.couriers.items() if courier.take().error}

    @property
    def confirmed(self) -> dict[str, int]:
        """How often each agent has seen its drain standing."""
        return {name: courier.take().confirmed for name, courier in self.couriers.items()}

    @property
    def pending(self) -> set[str]:
        return {name for name, courier in self.couriers.items() if courier.take().over_budget}

    def summary(self) -> str:
        """Return what the couriers of nodes say that are neither drained nor held, a line each."""
        done = self.drained | self.pending
        return "\n".join(f"{name}: {courier.take()}" for name, courier in self.couriers.items() if name not in done)

    def settled(self, budget: int) -> float:
        """Seconds until ``budget`` nodes were drained and every other one held; raises AssertionError when they never are."""
        return self.until(
            lambda: len(self.drained) == budget == len(self.couriers) - len(self.pending), f"{budget} nodes drained"
        )

    def until(self, met: Callable[[], bool], what: str, seconds: float = 240) -> float:
        """Seconds until it was so; raises AssertionError past ``seconds``."""
        start = time.monotonic()
        while not met():
            assert time.monotonic() - start < seconds, (
                f"{what}: drained {len(self.drained)}, held {len(self.pending)}\n{self.summary()}"
            )
            time.sleep(0.02)
        return time.monotonic() - start
