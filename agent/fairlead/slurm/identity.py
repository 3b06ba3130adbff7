"""Checks whether this machine is the node that the document names, so that fairlead never changes another machine's node.

slurmd is the node of its ``-N NAME`` if that is set, else the node whose NodeHostName is this host's name (slurmd(8)).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead.slurm.client import NodeState


def disagreement(mine: NodeState, names: Sequence[str], hostname: str = "") -> str:
    """Return in one line why the node ``mine`` is not this machine. Return "" if it is, or if that cannot be decided.

    It cannot be decided if no slurmd or several slurmds (a test cluster) run here. ``names``: the NAME of ``-N NAME`` of each
    slurmd that runs here, or "" for a slurmd without ``-N``.
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
