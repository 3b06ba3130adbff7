"""Describes a fabric: switches, adapters and the links between them, as ibnetdiscover or LLDP reports it.

The module also finds the node to which an adapter belongs. The kernel and rdma-ndd write "host HCA-1" or "host mlx5_0" into the
adapter's node description (rdma-core, rdma-ndd(8)). Before that, the description is the firmware's text, or has a default host
name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field

from fairlead.model.nodelist import in_order, is_name

# A system whose host name was never set has one of these names.
UNSET = frozenset({"localhost", "localhost.localdomain", "ubuntu", "debian", "(none)"})
_DESCRIPTION = re.compile(r"(\S+)(?:\s+(\S+))?")
_MODEL = re.compile(r"(?:MF[0-9]+;)?(.+?)(?::[^:/]+/[A-Z][0-9]+)?")
_VENDOR = re.compile(r"\b(Mellanox|Voltaire|QLogic|Technologies|NVIDIA)\b", re.IGNORECASE)
NAME_MAX = 64  # the largest number of characters in a switch's name (topology.conf(5))

End = tuple[str, int]  # the id of a switch or adapter, and a port number


class SwitchFabric(Struct, frozen=True, kw_only=True):
    """Holds a fabric. ``switches`` and ``adapters``: the description by id. ``links``: sorted pairs of ends, each pair once.

    ``one_sided``: texts about links that only one end reports. A complete dump of an InfiniBand fabric has no such link.
    """

    switches: dict[str, str]
    adapters: dict[str, str]
    links: frozenset[tuple[End, End]]
    one_sided: tuple[str, ...] = ()

    def between_switches(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of switches that a link connects, as ids."""
        pairs = {(a, b) for (a, _), (b, _) in self.links if a in self.switches and b in self.switches and a != b}
        return tuple(sorted(pairs))


class AdapterRule(Struct, frozen=True, kw_only=True):
    """Says how to find the node to which an adapter belongs. known: the names of the cluster's nodes. If it is empty, every named
    host is a node.

    running: the names of nodes that run now. If ``known`` is empty, they show that node1.site.example is node1. rename: the
    node's name by an adapter's id (GUID), whole description or host. ports: only adapters are taken whose device name in the
    description (HCA-1, mlx5_0, an interface) matches this pattern in full. None takes all adapters.
    """

    known: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    ports: re.Pattern[str] | None = None


class Attached(Struct, frozen=True, kw_only=True):
    """Says which node is connected to which switches. nodes: the ids of the switches by node. others: hosts that are not nodes of
    the cluster. unnamed: the number of adapters for each description that names no host."""

    nodes: dict[str, frozenset[str]]
    others: tuple[str, ...]
    unnamed: dict[str, int]


def merged(fabrics: Iterable[SwitchFabric]) -> SwitchFabric:
    """Return several fabrics, or several planes of one fabric, as one fabric."""
    every = list(fabrics)
    return SwitchFabric(
        switches={i: words for f in every for i, words in f.switches.items()},
        adapters={i: words for f in every for i, words in f.adapters.items()},
        links=frozenset(link for f in every for link in f.links),
        one_sided=tuple(words for f in every for words in f.one_sided),
    )


def is_aggregation(description: str) -> bool:
    """Return whether an adapter is a switch's own SHARP adapter ("Mellanox Technologies Aggregation Node") and belongs to no
    host."""
    return "aggregation node" in description.lower()


def node_of(identity: str, description: str, rule: AdapterRule) -> str:
    """Return the node to which an adapter belongs, or "" if its description names no node."""
    match = _DESCRIPTION.fullmatch(description.strip())
    host = match[1] if match else ""
    for key in (identity, description.strip(), host):
        if key and key in rule.rename:
            return rule.rename[key]
    names = rule.known or rule.running
    for name in (host, host.partition(".")[0]):
        if name in names:
            return name
    return "" if host.lower() in UNSET or not is_name(host) else host


def attach(fabric: SwitchFabric, rule: AdapterRule) -> Attached:
    """Return which node is connected to which switches."""
    nodes: dict[str, set[str]] = {}
    others: set[str] = set()
    unnamed: dict[str, set[str]] = {}
    for (a, _), (b, _) in fabric.links:
        for adapter, switch in ((a, b), (b, a)):
            if adapter not in fabric.adapters or switch not in fabric.switches:
                continue
            description = fabric.adapters[adapter]
            if is_aggregation(description) or not _chosen(description, rule):
                continue
            node = node_of(adapter, description, rule)
            if not node:
                unnamed.setdefault(description.strip(), set()).add(adapter)
            elif rule.known and node not in rule.known:
                others.add(node)
            else:
                nodes.setdefault(node, set()).add(switch)
    return Attached(
        nodes={node: frozenset(nodes[node]) for node in in_order(nodes)},
        others=tuple(in_order(others)),
        unnamed={words: len(unnamed[words]) for words in sorted(unnamed)},
    )


def _chosen(description: str, rule: AdapterRule) -> bool:
    if rule.ports is None:
        return True
    match = _DESCRIPTION.fullmatch(description.strip())
    return bool(match and match[2] and rule.ports.fullmatch(match[2]))


def switch_names(fabric: SwitchFabric) -> dict[str, str]:
    """Return a unique name for each switch by id. It is the switch's own name. If that is the vendor's text or not unique, it is
    made of the id.

    ``MF0;leaf-01:MQM9701/U1`` is the switch leaf-01. All chips of a switch with several chips have the same description.
    """
    own = {identity: _own_name(words) for identity, words in fabric.switches.items()}
    taken: dict[str, int] = {}
    for name in own.values():
        taken[name] = taken.get(name, 0) + 1
    found = {i: name if name and taken[name] == 1 else f"{name[:40] or 'ib'}-{i}"[:NAME_MAX] for i, name in own.items()}
    if len(set(found.values())) != len(found):  # a description equals a name that was made of an id
        return {identity: f"ib-{identity}"[:NAME_MAX] for identity in own}
    return found


def _own_name(description: str) -> str:
    match = _MODEL.fullmatch(description.strip())
    words = match[1].strip() if match else ""
    if not words or _VENDOR.search(words):
        return ""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.")
    return name if len(name) <= NAME_MAX and is_name(name) else ""


def by_name(switches: Collection[str], names: Mapping[str, str]) -> list[str]:
    """Return the ids of switches in the order of their names."""
    back = {names[identity]: identity for identity in switches}
    return [back[name] for name in in_order(back)]
