"""A child that takes a drain's or resume's steps and ends itself by SIGKILL before step K (or not at all).

python -m tests.slurm.killed BIN NODE FOLDER drain|resume|look K [BUDGET_NODES]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from msgspec.structs import replace

from fairlead.drains import node_writer
from fairlead.drains.outcome import Result
from fairlead.slurm.scontrol import Scontrol
from tests.slurm.conftest import PATIENCE_SECONDS, ROOMY, drain_of


def main() -> None:
    bin_dir, node, folder, what, at = sys.argv[1:6]
    node_writer.STALE_SECONDS = PATIENCE_SECONDS
    rules = replace(ROOMY, budget_nodes=int(sys.argv[6])) if len(sys.argv) > 6 else ROOMY
    drain = drain_of(Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=bin_dir), Path(folder), node, rules)
    steps = {"drain": lambda: drain.drain("xid", "GPU gone"), "resume": drain.resume, "reconcile": drain.reconcile}[what]()
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            print(result.outcome.value, flush=True)
            return
        if taken == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        taken += 1


if __name__ == "__main__":
    main()
