"""The read-to-write window of a drain and of a resume, per Slurm release: in it a person's change could be overwritten."""

from __future__ import annotations

import tempfile

from fairlead.drains.ledger import Ledger
from fairlead.drains.node_state import STALE_SECONDS, NodeDrainState
from fairlead.drains.outcome import Outcome, finish
from fairlead.drains.protocol import DrainProtocol
from fairlead.policy.decision_rules import Rules
from fairlead.slurm.scontrol import Scontrol
from tests.bench.rows import Row, median
from tests.lab.cluster import Cluster
from tests.lab.roots import SUITES

TRIALS = 20


def rows() -> list[Row]:
    """Two rows for each release: from asking for a reading to the end of the write that follows, which the window is at most."""
    made = []
    for suite, release in SUITES.items():
        with tempfile.TemporaryDirectory() as folder, Cluster(suite, nodes=8, cores=4) as cluster:
            client = Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=str(cluster.bin))
            drain = DrainProtocol(NodeDrainState(client, Ledger(folder, folder, node="n1"), "n1", Rules(budget_percent=100)))
            drains, resumes = [], []
            for _ in range(TRIALS):
                result = finish(drain.drain("xid", "GPU 0000:1b:00.0 Xid 79"))
                assert result.outcome is Outcome.DRAINED, result
                drains.append(1000 * result.window_seconds)
                result = finish(drain.resume())
                assert result.outcome is Outcome.RESUMED, result
                resumes.append(1000 * result.window_seconds)
        for what, found in (("drain", drains), ("resume", resumes)):
            beside = f"longest of {TRIALS}: {max(found):.0f} ms; a reading older than {STALE_SECONDS:g} s is not acted on"
            made.append(Row(f"read-to-write window of a {what}, Slurm {release}", median(found), None, "ms", beside))
    return made
