"""Reads on which leaf each node is, from a file about the topology: topology.conf, topology.yaml, a dump of ibnetdiscover, the
output of lldpctl, NVLink domains from ``nvidia-smi -q``, or lines with a leaf and its nodes.

On a rail-optimised fabric the nodes that are connected to the same leaf switches are one group (``topology.fabric``). The name of
the group then stands for its leaf switches.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from fairlead.errors import DataError
from fairlead.measure.pairs.pair_table import LeafSource, Leaves
from fairlead.model.nodelist import expand, fold
from fairlead.model.plain_text import one_line
from fairlead.topology.fabric import ibnetdiscover, lldp, nvlink_domains, scalable_units
from fairlead.topology.fabric.switch_fabric import AdapterRule, SwitchFabric, attach, node_of, switch_names

_CONF = re.compile(r"^\s*(?:SwitchName|BlockName)\s*=\s*(\S+)\s+.*?\bNodes\s*=\s*(\"[^\"]*\"|\S+)", re.IGNORECASE)
_CONF_LINE = re.compile(r"^\s*(?:SwitchName|BlockName|BlockSizes)\s*=", re.IGNORECASE)
_YAML_NAME = re.compile(r"[-\s]*(?:switch|block)\s*:\s*[\"']?([^\s\"']+)")
_YAML_NODES = re.compile(r"[-{,\s]*nodes\s*:\s*[\"']?([^\s\"'}]+)")
_LINE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9_.-]{0,63})\s*[:\s]\s*(\S+)\s*")
_DUMP = re.compile(r'^(?:vendid=|Switch\s+\d+\s+"|Ca\s+\d+\s+"|(?:SW|CA)\s+\d+\s+\d+\s+0x)', re.MULTILINE)
SWITCH_PORT_MAX = 100
_HINT = "such as a line `leaf1: gpu[01-16]`, topology.conf, topology.yaml, or the output of ibnetdiscover"


def read(text: str, source: str, nodes: Collection[str]) -> Leaves:
    """Return the leaf of each of ``nodes``. Raises DataError, also if the file does not name all of them."""
    groups = _groups(text, source, frozenset(nodes))
    return leaves_of(groups, nodes, LeafSource.DECLARED, source)


def switch_ports(text: str, source: str, nodes: Collection[str]) -> dict[str, dict[str, str]]:
    """Return by node and device (mlx5_3) the switch and port to which the device is connected, if the file is a dump of
    ibnetdiscover. Other files do not have the ports."""
    if not _DUMP.search(text):
        return {}
    fabric = ibnetdiscover.parse(text, source)
    names, rule = switch_names(fabric), AdapterRule(known=frozenset(nodes))
    found: dict[str, dict[str, str]] = {}
    for link in fabric.links:
        for (adapter, _), (switch, port) in (link, link[::-1]):
            description = fabric.adapters.get(adapter, "")
            node = node_of(adapter, description, rule) if switch in fabric.switches and description else ""
            if node in rule.known and len(description.split()) == 2:
                found.setdefault(node, {})[description.split()[1]] = f"{names[switch]} port {port}"
    return found


def leaves_of(groups: Mapping[str, Collection[str]], nodes: Collection[str], source: LeafSource, detail: str) -> Leaves:
    """Return the leaf of each of ``nodes``. Raises DataError for a node on two leaves, and for nodes on no leaf."""
    of: dict[str, str] = {}
    twice: dict[str, None] = {}
    for leaf, names in groups.items():
        for node in names:
            if of.setdefault(node, leaf) != leaf:
                twice[node] = None
    mistakes = [f"{fold(twice)} on more than one leaf"] if twice else []
    missing = [node for node in nodes if node not in of]
    mistakes += [f"no leaf for {fold(missing)}"] if missing else []
    if mistakes:
        raise DataError(f"{detail}: {'; '.join(mistakes)}", hint=f"name each node once: {_HINT}")
    return Leaves(source=source, of={node: of[node] for node in nodes}, detail=detail)


def read_lldp(texts: Mapping[str, str], source: str, nodes: Collection[str]) -> Leaves:
    """Return the leaf of each of ``nodes`` from the output of lldpctl on every node. ``texts``: the outputs by node. Raises
    DataError."""
    return leaves_of(_units(lldp.parse(texts), frozenset(nodes)), nodes, LeafSource.DECLARED, source)


def switch_ports_by_lldp(texts: Mapping[str, str], nodes: Collection[str]) -> dict[str, dict[str, str]]:
    """Return by node and interface the switch and port to which the interface is connected, from the output of lldpctl."""
    found = lldp.switch_ports(texts)
    return {
        node: {interface: one_line(end, SWITCH_PORT_MAX) for interface, end in found[node].items()}
        for node in nodes
        if node in found
    }


def _groups(text: str, source: str, nodes: frozenset[str]) -> Mapping[str, Collection[str]]:
    if "CliqueId" in text:
        cliques = nvlink_domains.parse_nvsmi(text, source)
        return nvlink_domains.groups({n: found for n, found in cliques.items() if n in nodes})[0]
    if _DUMP.search(text):
        fabric = ibnetdiscover.parse(text, source)
        ibnetdiscover.refuse_cut(fabric, source)
        return _units(fabric, nodes)
    return _lines(text, source)


def _units(fabric: SwitchFabric, nodes: frozenset[str]) -> Mapping[str, Collection[str]]:
    tree = scalable_units.switch_tree(fabric, attach(fabric, AdapterRule(known=nodes)))
    return {switch.name: switch.nodes for switch in tree.switches if switch.nodes}


def _lines(text: str, source: str) -> dict[str, list[str]]:
    """Read topology.conf, topology.yaml, or lines with a leaf and its nodes."""
    found: dict[str, list[str]] = {}
    mistakes = []
    name = ""
    yaml = re.search(r"^-\s*topology\s*:", text, re.MULTILINE) is not None
    for number, raw in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        if match := (_YAML_NAME.fullmatch(line) if yaml else None):
            name = match[1]
            continue
        if yaml:
            match = _YAML_NODES.match(line)
            leaf, nodes = name, match[1] if match else ""
        elif match := _CONF.match(line):
            leaf, nodes = match[1], match[2].strip('"')
        elif not line.strip() or _CONF_LINE.match(line):
            continue
        else:
            match = _LINE.fullmatch(line)
            leaf, nodes = (match[1], match[2]) if match else ("", "")
            if match is None:
                mistakes.append(f"line {number}: no leaf and nodes")
        try:
            found.setdefault(leaf, []).extend(expand(nodes) if nodes else ())
        except ValueError as e:
            mistakes.append(f"line {number}: {e}")
    groups = {leaf: names for leaf, names in found.items() if names}
    if mistakes or not groups:
        raise DataError(f"{source}: {'; '.join(mistakes[:20]) or 'it names no leaf with nodes'}", hint=_HINT)
    return groups
