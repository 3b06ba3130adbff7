"""End labs: ``python -m tests.lab.clean [NAME ... | --all | --dead]``; without words it lists what is there.

--dead ends those whose creator is gone (for tests: the test process too); --all ends every one. Works after a SIGKILL of
the creator at any moment: what a lab started is written down under /run/fairlead-lab/NAME before it exists (ledger.py).
Only recorded processes, named by pid and start time, and those in the lab's own cgroup are ended. Exits 1 when something
would not go.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tests.lab.ledger import RUN, Ledger, labs


def clean(name: str) -> list[str]:
    """End one lab; returns a line per thing that would not go. A name that is not there is an error line."""
    lab = Ledger(name)
    if not lab.folder.is_dir():
        return [f"no lab named {name} under {RUN}"]
    return [f"{name}: {line}" for line in lab.end()]


def clean_orphans() -> list[str]:
    """End the labs of test processes that were killed; returns a line per lab.

    A rack that was left up on purpose belongs to no test process, and stays.
    """
    told = []
    for lab in labs():
        if lab.entries("owner") and not lab.creator_alive():
            stuck = lab.end()
            told.append(f"{lab.name}: its test process was killed; " + ("; ".join(stuck) or "taken down"))
    return told


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.clean", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true", help="every lab on this machine, in use or not")
    parser.add_argument("--dead", action="store_true", help="every lab whose creator has ended")
    given = parser.parse_args(arguments)
    there = labs()
    if os.geteuid() != 0:
        print("clean: needs root", file=sys.stderr)
        return 77
    names = list(given.names)
    names += [lab.name for lab in there if given.all or (given.dead and not lab.creator_alive())]
    if not names and not (given.all or given.dead):
        for lab in there:
            print(f"{lab.name}: {'in use' if lab.creator_alive() else 'its creator has ended'}")
        return 0
    stuck = [line for name in dict.fromkeys(names) for line in clean(name)]
    for line in stuck:
        print(f"clean: {line}", file=sys.stderr)
    return 1 if stuck else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
