"""Describes for what a measured result of NCCL holds: the key. If a part of the key changes, the result is not applied.

Speed belongs to one combination of versions and machines. Public reports show that a new version of NCCL alone changed it up to
10 times (nccl#1997, #2094, #770). So a part that nobody knows counts as changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fairlead.model.plain_text import one_line
from fairlead.nccl.debug_lines import NcclSaid

#: The parts of a key, with their words for a person.
PARTS = {
    "cluster": "the Slurm cluster",
    "nccl": "the version of NCCL",
    "cuda": "the CUDA version of NCCL",
    "driver": "the NVIDIA driver",
    "net": "the network plug-in",
    "firmware": "the firmware of the adapters",
    "gpu": "the GPU model",
    "topology": "the PCIe topology of the nodes",
    "leaves": "the number of leaf switches",
    "nodes": "the number of nodes",
    "ranks": "the number of ranks",
}
SHOWN_MAX = 60
NO_LEAF = "not declared"


class NodeParts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds what one node says about itself. file: the SHA-256 of the result's file as this node reads it, "" if no file was
    asked for, or "missing". leaf: its leaf switch by Slurm, or NO_LEAF. The other fields are parts of the key, or ""."""

    node: str
    file: str = ""
    driver: str = ""
    gpu: str = ""
    firmware: str = ""
    topology: str = ""
    leaf: str = ""


def key_of(cluster: str, nodes: Sequence[NodeParts], said: NcclSaid) -> dict[str, str]:
    """Return the key of these nodes and this NCCL. A part that is unknown on one node is unknown, and is ""."""
    parts = dict.fromkeys(PARTS, "")
    parts |= {"cluster": cluster, "nccl": said.nccl, "cuda": said.cuda, "net": said.net, "ranks": said.ranks}
    for name in ("driver", "gpu", "firmware", "topology"):
        values = {getattr(node, name) for node in nodes}
        parts[name] = "" if "" in values else ", ".join(sorted(values))
    leaves = {node.leaf for node in nodes}
    parts["leaves"] = "" if "" in leaves or not leaves else NO_LEAF if leaves == {NO_LEAF} else str(len(leaves))
    parts["nodes"] = said.nodes if said.nodes == str(len(nodes)) else ""
    return parts


def changes(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return in words each part that is not the same in both keys, or that is not known in one of them."""
    found = []
    for name, words in PARTS.items():
        before, after = was.get(name, ""), now.get(name, "")
        if not before or not after:
            found.append(f"{words} is not known {'of the result' if not before else 'here'}")
        elif before != after:
            found.append(f"{words} was {one_line(before, SHOWN_MAX)} and is {one_line(after, SHOWN_MAX)}")
    return found
