"""A child that drives a maintenance run and ends itself by SIGKILL at the K-th write to the journal, before or after it.

python -m tests.slurm.maintain_killed BIN FOLDER JOURNAL RUN K before|after|never
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairlead.drains import node_writer
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_loop import Maintenance
from fairlead.slurm.scontrol import Scontrol
from tests.slurm.conftest import PATIENCE_SECONDS
from tests.slurm.maintained import Side


class Deadly(Journal):
    """Kills this process at its write number ``at``."""

    def __init__(self, path: str, at: int, when: str) -> None:
        super().__init__(path)
        self.to_come, self.when = at, when

    def _write(self, act: Callable[[], Any]) -> Any:
        self.to_come -= 1
        if self.to_come < 0 and self.when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = super()._write(act)
        if self.to_come < 0 and self.when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def main() -> None:
    bin_dir, folder, path, name, at, when = sys.argv[1:7]
    node_writer.STALE_SECONDS = PATIENCE_SECONDS
    journal = Deadly(path, int(at), when)
    run = journal.run(name)
    controller = Controller(Scontrol(conf="/etc/slurm/slurm.conf", bin_dir=bin_dir, deadline_seconds=60))
    side = Side(Path(folder), [w.node for w in run.works])
    ended = Maintenance(run, journal, controller, side, budgets={}, poll_seconds=0.1).drive()
    print("ended" if ended else "stopped", flush=True)


if __name__ == "__main__":
    main()
