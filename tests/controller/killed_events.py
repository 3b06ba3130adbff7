"""Runs `fairlead events deliver` with a program as channel again and again, until it is killed: the process of a loop test."""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.controller import event_store
from fairlead.controller.event_channels import SiteCommand
from fairlead.controller.event_program import EventProgram
from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_store import FleetStore
from fairlead.fleet.event_options import EventsOptions
from tests.fleet.made_records import BEGIN, drained, record


def main(folder: str, node: str, most: int) -> None:
    taken = Path(folder) / "taken"
    script = Path(folder) / "hook"
    script.write_text('#!/bin/sh\ncat >/dev/null\necho "$FAIRLEAD_EVENT" >>"$1"\n')
    script.chmod(0o755)
    command = (str(script), str(taken))
    options = EventsOptions(command=command)
    event_store.NODE_EVENTS_MAX = 100_000  # a fast machine makes more events of the one node here than a day may have
    for number in range(most):
        with FleetStore(folder, write=True) as fleet:
            known = [each for each in fleet.records() if each.node == node]
            entries = known[0].entries if known else ()
            fleet.add([record(*entries, drained(BEGIN + 10 * len(entries)), node=node, machine=node)], 0.0)
        with FleetStore(folder, write=False) as fleet, EventStore(folder, write=True) as store:
            EventProgram(store, fleet, options, {"command": SiteCommand(command, 20.0)}, say=lambda text: None).run()
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
