"""Which nodes hang together, as slurmctld's topology plug-in has it: ``scontrol show topology`` as data.

The lines are those of the tree and block plug-ins (src/plugins/topology/tree and block, print functions), the same on
22.05, 24.11 and 26.05: ``SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4]`` and
``BlockName=b1 BlockIndex=0 Nodes=n[1-4] BlockSize=4``. Only the lowest level counts: a leaf switch, a base block. No
topology (topology/flat, before 23.11 topology/none) prints nothing; other plug-ins (ring, torus) have no such groups.
"""

from __future__ import annotations

import re

from msgspec import Struct

from fairlead.errors import SlurmError

NODES_MAX = 1 << 17  # of one nodelist: Slurm's own limit is 65536 nodes (MAX_SLURM_NODES, src/common/hostlist.h)
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class NodeGroup(Struct, frozen=True):
    """``kind``: switch or block."""

    kind: str
    name: str
    nodes: frozenset[str]


def parse_topology(text: str) -> tuple[NodeGroup, ...]:
    """Leaf switches and base blocks of `scontrol show topology`. Raises SlurmError for a nodelist that makes no sense."""
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


def expand(nodelist: str) -> list[str]:
    """The names of a Slurm nodelist: ``n[1-3,07],login`` and several brackets in one name; zeros in front are kept.

    Raises SlurmError for anything else, or for more than ``NODES_MAX`` names.
    """
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", nodelist):
        made = [""]
        at = 0
        for match in _BRACKETS.finditer(part):
            numbers = [n for each in match[1].split(",") for n in _numbers(each, nodelist)]
            if len(made) * len(numbers) > NODES_MAX:
                raise SlurmError(f"nodelist {nodelist[:80]!r}: too many nodes")
            made = [f"{name}{part[at : match.start()]}{number}" for name in made for number in numbers]
            at = match.end()
        rest = part[at:]
        if not part or set(rest) & set("[]") or len(names) + len(made) > NODES_MAX:
            raise SlurmError(f"nodelist {nodelist[:80]!r} makes no sense")
        names += [name + rest for name in made]
    return names


def _numbers(text: str, nodelist: str) -> list[str]:
    match = _RANGE.fullmatch(text)
    if match is None or len(text) > 20:
        raise SlurmError(f"nodelist {nodelist[:80]!r} makes no sense")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first) or int(last) - int(first) >= NODES_MAX:
        raise SlurmError(f"nodelist {nodelist[:80]!r} makes no sense")
    return [f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1)]
