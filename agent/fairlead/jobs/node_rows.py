"""Reads which GPUs Slurm counts on its nodes, and when nodes were down or drained."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from fairlead.jobs.table_rows import NO_TIME, BadRow, nodes_of, seconds_of, table_rows
from fairlead.model.nodelist import is_name

#: The words after ``sinfo`` that print the table of nodes.
SINFO = ("-a", "-N", "-o", "%N|%P|%G")
_PARTITION = re.compile(r"[A-Za-z0-9_.@:+-]{0,64}")
_GRES = re.compile(r"gpu(?::[^:,(]+)?:([0-9]{1,5})")


def sacctmgr_words(begin: str, end: str) -> list[str]:
    """Return the words after ``sacctmgr`` that print the table of events. Without a start, sacctmgr prints only those since
    yesterday (sacctmgr(1))."""
    return ["-P", "show", "event", f"start={begin}", f"end={end}", "format=NodeName,TimeStart,TimeEnd"]


class NodeGpus(Struct, frozen=True, kw_only=True):
    """Says how many GPUs Slurm counts on a node, and in which partitions the node is."""

    node: str
    gpus: int
    partitions: tuple[str, ...]


class NodeEvent(Struct, frozen=True, kw_only=True):
    """Says from when to when a node was down or drained (``sacctmgr show event``). end_unix: None while this goes on."""

    node: str
    begin_unix: float
    end_unix: float | None


def node_gpus_of(lines: Iterable[str], mistakes: list[str]) -> list[NodeGpus]:
    """Return the nodes from the lines of ``sinfo`` with the words of ``SINFO``."""
    found: dict[str, NodeGpus] = {}
    for number, row in table_rows(lines, ("NODELIST", "PARTITION", "GRES"), mistakes, "sinfo"):
        node, partition = row["NODELIST"], row["PARTITION"].rstrip("*")
        if not is_name(node) or not _PARTITION.fullmatch(partition):
            mistakes.append(f"sinfo: line {number}: no NodeName and partition")
            continue
        earlier = found.get(node)
        found[node] = NodeGpus(
            node=node,
            gpus=sum(int(n) for n in _GRES.findall(row["GRES"])),
            partitions=(*(earlier.partitions if earlier else ()), partition),
        )
    return list(found.values())


def node_events_of(lines: Iterable[str], mistakes: list[str]) -> list[NodeEvent]:
    """Return the events from the lines of ``sacctmgr`` with ``sacctmgr_words``. Events of the whole cluster, which name no
    node, are left out."""
    found = []
    for number, row in table_rows(lines, ("NodeName", "TimeStart", "TimeEnd"), mistakes, "sacctmgr"):
        if not row["NodeName"]:
            continue
        try:
            begin = seconds_of(row["TimeStart"], "TimeStart")
            end = None if row["TimeEnd"] in NO_TIME else seconds_of(row["TimeEnd"], "TimeEnd")
            found += [NodeEvent(node=node, begin_unix=begin, end_unix=end) for node in nodes_of(row["NodeName"])]
        except BadRow as e:
            mistakes.append(f"sacctmgr: line {number}: {e}")
    return found
