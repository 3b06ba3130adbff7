"""An array of 1,000 tasks that ends at once, on Slurm 24.11 with slurmdbd and MariaDB: how long its collection takes, how fast it
writes, and what the other clients of slurmctld feel meanwhile."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.accounting.array_load import collected, ended_array
from tests.bench.rows import Row
from tests.lab.cluster import Cluster

SUITE = "trixie"
TASKS = int(os.environ.get("FAIRLEAD_ARRAY_TASKS", "1000"))
QUICK = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=1000,bf_interval=1\n"


def rows(say: Callable[[str], None] = lambda text: print(f"bench:   {text}", file=sys.stderr, flush=True)) -> list[Row]:
    """Bring the cluster up, run the array, collect it, take the cluster down."""
    with Cluster(SUITE, nodes=2, cores=16, accounting=True, extra_conf=QUICK) as slurm, tempfile.TemporaryDirectory() as folder:
        say(f"running an array of {TASKS} tasks")
        ended_array(slurm, Path(folder), TASKS)
        say("collecting it")
        found = collected(slurm, Path(folder), TASKS)
    on, off = found.with_it, found.without
    made = [
        Row(f"{TASKS} array tasks end at once: collected", on.seconds, 240, "s", "jobstats: 7,000 queries, 1,000 sacctmgr",
            f"{found.written} written"),
        Row("... writes of AdminComment, most in 5 to 12 s", found.most_per_second, 5, "/s"),
    ]  # fmt: skip
    for tool in ("squeue", "ping"):
        beside = f"{on.median(tool):.0f} ms with, {off.median(tool):.0f} ms without, in turn; {len(on.milliseconds[tool])} asked"
        made.append(Row(f"... {tool}, median, with collection over without", found.ratio(tool), 1.1, "", beside))
    for name in ("REQUEST_JOB_INFO", "REQUEST_PING"):
        with_it, without = on.mean_microseconds(name), off.mean_microseconds(name)
        beside = f"{with_it:.0f} us with, {without:.0f} us without, by sdiag; {on.counts.get(name, 0)} served"
        made.append(Row(f"... {name} in slurmctld, mean, with over without", with_it / max(1e-9, without), 1.1, "", beside))
    return made
