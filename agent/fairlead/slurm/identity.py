"""Is this machine the node that the document says? Nothing is written about another machine's node.

slurmd is a node by its ``-N NAME`` where given, else by NodeHostName being this host's name (slurmd(8)).
"""

from __future__ import annotations

import os

from fairlead.slurm.client import NodeState


def disagreement(mine: NodeState, proc: str = "/proc", hostname: str = "") -> str:
    """Why ``mine`` is not this machine, in one line; "" when it is, or when the slurmds here do not tell.

    Several slurmds on one machine (a test cluster) tell nothing, nor does none.
    """
    names = slurmd_names(proc)
    if len(names) != 1:
        return ""
    if names[0]:
        return "" if names[0] == mine.name else f"slurmd here is node {names[0]}, the document says {mine.name}"
    here = (hostname or os.uname().nodename).split(".")[0]
    there = mine.hostname.split(".")[0]
    if there in ("", "localhost", here) or mine.name == here:
        return ""
    return f"slurmctld has {mine.name} on host {there}, this is {here}"


def slurmd_names(proc: str = "/proc") -> list[str]:
    """The ``-N`` of every slurmd that runs here; "" for one without."""
    found = []
    for pid in os.listdir(proc):
        if not pid.isdigit():
            continue
        try:
            with open(f"{proc}/{pid}/comm", "rb") as f:
                if f.read(64) != b"slurmd\n":
                    continue
            with open(f"{proc}/{pid}/cmdline", "rb") as f:
                words = f.read(65536).decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        found.append(_name(words))
    return found


def _name(words: list[str]) -> str:
    for at, word in enumerate(words[1:], 1):
        if word == "-N" and at + 1 < len(words):
            return words[at + 1]
        if word.startswith("-N") and len(word) > 2:
            return word[2:]
    return ""
