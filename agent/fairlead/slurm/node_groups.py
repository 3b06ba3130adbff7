"""Reads the groups of nodes that slurmctld's topology plugin makes, from the output of ``scontrol show topology``.

The lines are those of the tree and block plugins (src/plugins/topology/tree and block, print functions), and are the same on
22.05, 24.11 and 26.05: ``SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4]`` and ``BlockName=b1 BlockIndex=0 Nodes=n[1-4]
BlockSize=4``. Only groups of the lowest level are read: leaf switches and base blocks. Without a topology (topology/flat, before
23.11 topology/none), scontrol prints nothing. Other plugins (ring, torus) have no such groups.
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.errors import SlurmError
from fairlead.model import nodelist


class NodeGroup(Struct, frozen=True):
    """Names the nodes of one group. ``kind``: switch or block."""

    kind: str
    name: str
    nodes: frozenset[str]


def parse_topology(text: str) -> tuple[NodeGroup, ...]:
    """Return the leaf switches and base blocks of `scontrol show topology`. Raises SlurmError for a nodelist that cannot be
    expanded."""
    found = []
    for line in text.splitlines():
        pairs = dict(word.partition("=")[::2] for word in line.split())
        nodes = pairs.get("Nodes", "")
        if nodes in ("", "(null)"):
            continue
        if "SwitchName" in pairs and pairs.get("Level", "0") == "0":
            found.append(NodeGroup("switch", pairs["SwitchName"], frozenset(expand(nodes))))
        elif line.startswith("BlockName="):
            found.append(NodeGroup("block", pairs["BlockName"], frozenset(expand(nodes))))
    return tuple(found)


def expand(text: str) -> list[str]:
    """Return the names of a Slurm nodelist (``model.nodelist``). Raises SlurmError for a text that is no nodelist."""
    try:
        return nodelist.expand(text)
    except ValueError as e:
        raise SlurmError(str(e)) from None
