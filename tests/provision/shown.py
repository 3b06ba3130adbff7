"""A maintenance run on this process's terminal: n1 and n2 are busy for good, n3 is sick, n4 is not begun.

python -m tests.provision.shown
"""

from __future__ import annotations

import time
from typing import cast

from fairlead.cli.maintain import _stopping
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_display import display
from fairlead.provision.maintain.maintenance_loop import Maintenance
from fairlead.slurm.scontrol import Scontrol
from tests.provision.test_maintain_invariants import driver


def main() -> None:
    with driver("24") as d:
        d.begin(reboot=False)
        for name in ("n1", "n2", "n4"):
            d.world.start_job(name)
        d.world.sick.add("n3")
        journal = d._journal()
        with display(quiet=False) as shown:
            controller = Controller(cast(Scontrol, d.world))
            m = Maintenance(journal.run(d.name), journal, controller, d.world, budgets={}, shown=shown, poll_seconds=0.1)
            try:
                with _stopping(m):
                    m.drive()
            except KeyboardInterrupt:
                pass
        print(f"left at {time.time():.0f}", flush=True)


if __name__ == "__main__":
    main()
