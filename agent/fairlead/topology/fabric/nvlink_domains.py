"""Groups nodes by NVLink domains that span several nodes (GB200 NVL72 and similar systems).

Nodes whose GPUs report the same ClusterUUID and CliqueId can reach each other by NVLink, and are one block (nvml.h,
nvmlGpuFabricInfo_t; topology.conf(5), topology/block). A node whose NVSwitches connect only its own GPUs (HGX H100) reports a
ClusterUUID of zeros, and is in no such domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.errors import DataError
from fairlead.model.nodelist import is_name

Clique = tuple[str, int]  # ClusterUUID in 32 hex digits, CliqueId
_LINE = re.compile(r"\s*([^\s:]+):\s+(CliqueId|ClusterUUID)\s*:\s*(\S+)\s*")


def parse_nvsmi(text: str, source: str) -> dict[str, frozenset[Clique]]:
    """Return the cliques of each node's GPUs, from ``nvidia-smi -q`` of many nodes. Each line begins with its node, as clush
    prints it.

    A node without an NVLink domain has an empty set. Raise DataError if no node reports a clique id.
    """
    found: dict[str, set[Clique]] = {}
    pending: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        node, key, value = match[1], match[2], match[3]
        if not is_name(node):
            raise DataError(f"{source}: {node[:60]!r} is not a name of a node", hint="clush -w NODES nvidia-smi -q > FILE")
        found.setdefault(node, set())
        if key == "CliqueId":
            pending[node] = value
        elif node in pending:
            clique = _clique(value, pending.pop(node))
            if clique is not None:
                found[node].add(clique)
    if not found:
        raise DataError(
            f"{source}: it has no line such as `node: CliqueId : 1`", hint="take it again: clush -w NODES nvidia-smi -q > FILE"
        )
    if pending:
        raise DataError(f"{source}: cut off: a CliqueId of {min(pending)} has no ClusterUUID", hint="take it again")
    return {node: frozenset(cliques) for node, cliques in found.items()}


def of_nvml(nvml: Mapping[str, Any]) -> frozenset[Clique]:
    """Return the cliques of a node's GPUs, from its nvml.json."""
    found = set()
    gpus = nvml.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        fabric = gpu.get("fabric") if isinstance(gpu, dict) else None
        if isinstance(fabric, dict):
            clique = _clique(str(fabric.get("cluster_uuid", "")), str(fabric.get("clique_id", "")))
            if clique is not None:
                found.add(clique)
    return frozenset(found)


def _clique(uuid: str, number: str) -> Clique | None:
    digits = uuid.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{32}", digits) or not digits.strip("0") or not re.fullmatch(r"[0-9]{1,9}", number):
        return None
    return digits, int(number)


def groups(nodes: Mapping[str, Iterable[Clique]]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the nodes by NVLink domain, and the nodes in no domain. A domain's name is made of its UUID and clique, which a rack
    keeps.

    Raise DataError for a node whose GPUs are in two domains, because such a node fits into no single block.
    """
    found: dict[Clique, list[str]] = {}
    outside = []
    for node, said in nodes.items():
        cliques = sorted(said)
        if len(cliques) > 1:
            raise DataError(f"{node}: its GPUs are in {len(cliques)} NVLink domains", hint="give that node's block by hand")
        if cliques:
            found.setdefault(cliques[0], []).append(node)
        else:
            outside.append(node)
    short = {clique: f"nvl-{clique[0][:8]}-{clique[1]}" for clique in found}
    if len(set(short.values())) != len(short):
        short = {clique: f"nvl-{clique[0]}-{clique[1]}" for clique in found}
    return {short[clique]: sorted(nodes) for clique, nodes in found.items()}, tuple(sorted(outside))
