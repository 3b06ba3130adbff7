"""Lists all nodes and their jobs as slurmctld has them, with one sinfo and one squeue, however many nodes there are.

sinfo makes the RPC REQUEST_NODE_INFO, squeue makes REQUEST_JOB_INFO, and both make REQUEST_PARTITION_INFO and REQUEST_FED_INFO
(seen on 22.05, 24.11 and 26.05).
"""

from __future__ import annotations

import secrets

from msgspec import Struct

from fairlead.errors import SlurmError
from fairlead.model.nodelist import expand
from fairlead.slurm.client import JobOn, NodeState
from fairlead.slurm.scontrol import FIELDS, HOLDING, Scontrol, nodes_of, rows

_EXTRA = ("Version",)


class Listed(Struct, frozen=True, kw_only=True):
    """Describes one node. ``version``: that of the slurmd that registered last, or "" if none has registered."""

    state: NodeState
    version: str
    jobs: tuple[JobOn, ...] = ()


def listed(client: Scontrol) -> tuple[Listed, ...]:
    """Return every node of every partition, in slurmctld's order. Raises SlurmUnavailable, SlurmError."""
    mark = f"@{secrets.token_hex(12)}@"
    fields = (*FIELDS, *_EXTRA)
    text = client.ask(["sinfo", "-h", "-a", "-N", "-O", ",".join(f"{field}:{mark}" for field in fields)])
    found = rows(text, mark, len(fields))
    more = {row[0]: row[len(FIELDS) :] for row in found}
    jobs = jobs_by_node(client.queue("-t", ",".join(sorted(HOLDING)), "-o", "%A|%t|%D|%N"))
    made = []
    for state in nodes_of(row[: len(FIELDS)] for row in found):
        (version,) = more[state.name]
        version = "" if version in ("(null)", "N/A", "Unknown") else version
        made.append(Listed(state=state, version=version, jobs=tuple(jobs.get(state.name, ()))))
    return tuple(made)


class GpuNode(Struct, frozen=True, kw_only=True):
    """Describes a node as slurm.conf has it. address: NodeAddr. gres: its Gres text, or "" for none."""

    name: str
    address: str
    gres: str


def gpu_nodes(client: Scontrol, partition: str = "") -> tuple[GpuNode, ...]:
    """Return the nodes of a partition, or of all partitions, whose Gres has GPUs. If none has GPUs in its Gres, return all nodes,
    because a site may not have declared them yet. Raises SlurmUnavailable, SlurmError."""
    mark = f"@{secrets.token_hex(12)}@"
    command = ["sinfo", "-h", "-a", "-N", "-O", ",".join(f"{field}:{mark}" for field in ("NodeList", "NodeAddr", "Gres"))]
    text = client.ask([*command, *(["-p", partition] if partition else [])])
    nodes = {row[0]: GpuNode(name=row[0], address=row[1], gres=row[2]) for row in rows(text, mark, 3)}  # a row for each partition
    return tuple(node for node in nodes.values() if "gpu" in node.gres) or tuple(nodes.values())


def jobs_by_node(text: str) -> dict[str, list[JobOn]]:
    """Return the jobs on each node from squeue's ``%A|%t|%D|%N`` lines. Raises SlurmError for a line of another form."""
    found: dict[str, list[JobOn]] = {}
    for line in text.splitlines():
        words = line.split("|")
        if len(words) != 4 or not (words[0].isdigit() and words[2].isdigit()):
            raise SlurmError(f"squeue: its output is not what was asked for: {line[:80]!r}")
        number, state, count, nodelist = words
        for node in expand(nodelist) if nodelist else ():
            found.setdefault(node, []).append(JobOn(id=number, state=state, nodes=int(count)))
    return found
