"""Writes topology.conf and topology.yaml, and reads which nodes such a file names (topology.conf(5), topology.yaml(5)).

topology.conf contains one topology. From Slurm 25.05 on, topology.yaml contains any number of them. If topology.yaml exists,
Slurm ignores topology.conf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fairlead.model.nodelist import expand, fold
from fairlead.topology.fabric.scalable_units import Blocks, SwitchTree

_CONF_NODES = re.compile(r"\bNodes\s*=\s*(\"[^\"]*\"|\S+)", re.IGNORECASE)
_YAML_NODES = re.compile(r"[-{,\s]*nodes\s*:\s*[\"']?([^\s\"'}]+)", re.IGNORECASE)


def render_conf(made: SwitchTree | Blocks) -> str:
    """Return the lines of topology.conf."""
    if isinstance(made, Blocks):
        lines = [f"BlockName={block.name} Nodes={fold(block.nodes)}" for block in made.blocks]
        return "".join(f"{line}\n" for line in [*lines, f"BlockSizes={','.join(map(str, made.sizes))}"])
    lines = []
    for switch in made.switches:
        members = f"Nodes={fold(switch.nodes)}" if switch.nodes else f"Switches={fold(switch.switches)}"
        lines.append(f"SwitchName={switch.name} {members}")
    return "".join(f"{line}\n" for line in lines)


def render_yaml(made: Mapping[str, SwitchTree | Blocks]) -> str:
    """Return the text of topology.yaml. ``made``: the topologies by name. The first topology is the cluster's default."""
    lines = []
    for number, (name, topology) in enumerate(made.items()):
        lines += [f"- topology: {name}", f"  cluster_default: {'false' if number else 'true'}"]
        if isinstance(topology, Blocks):
            lines += ["  block:", "    block_sizes:", *(f"      - {size}" for size in topology.sizes), "    blocks:"]
            for block in topology.blocks:
                lines += [f"      - block: {block.name}", f'        nodes: "{fold(block.nodes)}"']
        else:
            lines += ["  tree:", "    switches:"]
            for switch in topology.switches:
                key, names = ("nodes", switch.nodes) if switch.nodes else ("children", switch.switches)
                lines += [f"      - switch: {switch.name}", f'        {key}: "{fold(names)}"']
    return "".join(f"{line}\n" for line in lines)


def named_nodes(text: str) -> frozenset[str]:
    """Return the nodes that a topology.conf or topology.yaml names. Raise ValueError for a nodelist that is not valid."""
    found: set[str] = set()
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.partition("#")[0]
        for match in (*_CONF_NODES.finditer(line), *_YAML_NODES.finditer(line)):
            found.update(expand(match[1].strip('"')))
    return frozenset(found)
