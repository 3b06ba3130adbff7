"""Reads which HCAs are nearest to each GPU of a node, from a folder with facts of nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairlead.cli.input_files import text_if_there
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.errors import DataError, InputMissing
from fairlead.measure.pairs.rail_ends import NodeRails
from fairlead.topology.binding.binding_plan import Doubt, parse_topology
from fairlead.topology.binding.published_files import planner_machine

PUBLISHED_BYTES = 1 << 20


def rails_at(folder: str, nodes: Sequence[str]) -> dict[str, NodeRails]:
    """Return what the folder says about the rails of these nodes. A node without facts is left out. Raises InputMissing,
    DataError."""
    if not folder:
        return {}
    if not os.path.isdir(folder):
        raise InputMissing(f"{folder}: no such folder", hint="it has DIR/NODE, a machine tree, or DIR/topology.NODE")
    found = {}
    for node in nodes:
        tree = os.path.join(folder, node)
        published = os.path.join(folder, f"topology.{node}")
        if os.path.isdir(tree):
            found[node] = _of_tree(tree)
        elif (text := text_if_there(published, PUBLISHED_BYTES)) is not None:
            try:
                gpus = parse_topology(text).gpus
            except Doubt as e:
                raise DataError(f"{published}: {e}", hint="copy /run/fairlead/topology of the node again") from None
            found[node] = NodeRails(hcas=tuple("" if gpu.nics == "-" else gpu.nics for gpu in gpus))
    if not found:
        hint = f"such as {folder}/{nodes[0]}, a machine tree of fairlead snapshot, or {folder}/topology.{nodes[0]}"
        raise InputMissing(f"{folder} has no facts of any of these nodes", hint=hint)
    return found


def _of_tree(tree: str) -> NodeRails:
    from fairlead.host.gather import gather

    node = gather(machine(tree), recorded_nvml(tree))
    hcas = tuple("" if gpu.nics == "-" else gpu.nics for gpu in planner_machine(node).gpus)
    interfaces = {nic.name: nic.interfaces[0] for nic in node.nics if nic.rdma and nic.interfaces}
    return NodeRails(hcas=hcas, interfaces=interfaces)
