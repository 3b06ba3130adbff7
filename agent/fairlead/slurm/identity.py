"""Says whether this machine is the node that the document names. Nothing is written about another machine's node.

slurmd is the node of its ``-N NAME`` where that is set, else the node whose NodeHostName is this host's name (slurmd(8)).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead.slurm.client import NodeState


def disagreement(mine: NodeState, names: Sequence[str], hostname: str = "") -> str:
    """Say in one line why ``mine`` is not this machine. Return "" when it is, or when the slurmds here do not show it.
    ``names``: the ``-N`` of each slurmd that runs here, "" for one without.

    Where no slurmd runs, or several do (a test cluster), nothing can be said.
    """
    if len(names) != 1:
        return ""
    if names[0]:
        return "" if names[0] == mine.name else f"slurmd here is node {names[0]}, the document says {mine.name}"
    here = (hostname or os.uname().nodename).split(".")[0]
    there = mine.hostname.split(".")[0]
    if there in ("", "localhost", here) or mine.name == here:
        return ""
    return f"slurmctld has {mine.name} on host {there}, this is {here}"
