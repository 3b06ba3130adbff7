"""Is this machine the node that the document says? Nothing is written about another machine's node.

slurmd is a node by its ``-N NAME`` where given, else by NodeHostName being this host's name (slurmd(8)).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead.slurm.client import NodeState


def disagreement(mine: NodeState, names: Sequence[str], hostname: str = "") -> str:
    """Why ``mine`` is not this machine, in one line; "" when it is, or when the slurmds here do not tell. ``names``: the ``-N``
    of each slurmd that runs here, "" for one without.

    Several slurmds on one machine (a test cluster) tell nothing, nor does none.
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
