"""Many nodes at once: 64 couriers, each with the drain protocol and the ledger of its own node, drain on one real slurmctld in
the same moment. How long until the drain budget is full and held, how far and how long it was overshot, and what slurmctld
and its users felt meanwhile.

Couriers and not whole agents: 64 agents on this machine's two cores would measure their own Python, which 64 nodes do not
share. The commands (sinfo, scontrol) of all 64 do share these cores with slurmctld and 64 slurmds here.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fairlead.policy.decision_rules import Rules
from tests.bench.rows import Row, median
from tests.lab.cluster import Cluster
from tests.slurm.crowd import OURS, Crowd, Probe, ours, overshoot, rpcs

SUITE = "trixie"
NODES = 64
STEADY_SECONDS = 20.0


def rows(say: Callable[[str], None] = lambda text: print(f"bench:   {text}", file=sys.stderr, flush=True)) -> list[Row]:
    """Bring the cluster up, measure, take it down."""
    rules = Rules()
    budget = NODES * rules.budget_percent // 100
    with Cluster(SUITE, nodes=NODES, cores=4) as cluster, tempfile.TemporaryDirectory() as folder:
        log = cluster.log / "slurmctld.log"
        with Crowd(cluster, Path(folder), rules) as crowd:
            with Probe(cluster) as idle:
                cluster.run(["/usr/bin/sdiag", "--reset"])
                time.sleep(STEADY_SECONDS)
            steady = ours(rpcs(cluster))
            begin = log.stat().st_size
            cluster.run(["/usr/bin/sdiag", "--reset"])
            say(f"{NODES} drains at once")
            with Probe(cluster) as busy:
                start = time.monotonic()
                crowd.go()
                took = crowd.settled(budget)
            when = sorted(moment - start for name, moment in crowd.since.items() if name in crowd.drained)
            counts = rpcs(cluster)
            seen = overshoot(log.read_text()[begin:], budget)
    total = ours(counts)
    most = f"by {seen.nodes} nodes at most, {seen.times} times"
    longest = max(OURS, key=lambda name: counts.get(name, (0, 0))[1])
    return [
        Row(f"{NODES} nodes at once: past a budget of {budget}", seen.seconds, 5, "s", "", most),
        Row(f"... {budget} drained, the rest held: settled", took, None, "s", "", f"{seen.undone} drains undone"),
        Row("... order to DRAIN of those that stay, median", median(when), None, "s", "", f"max {when[-1]:.2f} s"),
        Row("... slurmctld RPCs of all", total, None, "", f"{total / NODES:.1f} a node, with retries and undoings;",
            f"{longest} took slurmctld {counts[longest][1]} us on average"),
        *(Row(f"... {tool} meanwhile, median", median(busy.took[tool]), None, "ms", f"before: {idle.summary(tool)};",
              f"meanwhile: {busy.summary(tool)}") for tool in ("squeue", "ping")),
        Row(f"slurmctld RPCs in steady state, {NODES} couriers", steady, 0, "", "", f"in {STEADY_SECONDS:.0f} s"),
    ]  # fmt: skip
