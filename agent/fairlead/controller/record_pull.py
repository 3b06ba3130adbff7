"""Chooses which nodes are asked for the records of which jobs, and takes from an answer only what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from fairlead.controller.record_reader import RecordReader
from fairlead.jobs.job_run import JobRun
from fairlead.jobs.usage_record import UsageRecord

JOBS_AT_ONCE = 500  # in one command line


class NodeRecords(Protocol):
    """Fetches what nodes have of some jobs."""

    def fetch(self, nodes: Sequence[str], jobs: Sequence[int]) -> Mapping[str, tuple[bytes, str]]:
        """Return for each node the bytes that it sent, and in one line why it sent none, or ""."""


def nodes_to_ask(wanted: Mapping[str, set[int]]) -> list[tuple[list[str], list[int]]]:
    """Return which nodes to ask for which jobs, in groups of at most ``JOBS_AT_ONCE`` jobs. wanted: the jobs of each node."""
    jobs = sorted({job for of_node in wanted.values() for job in of_node})
    groups = []
    for at in range(0, len(jobs), JOBS_AT_ONCE):
        chosen = jobs[at : at + JOBS_AT_ONCE]
        nodes = [node for node, of_node in wanted.items() if not of_node.isdisjoint(chosen)]
        groups.append((nodes, chosen))
    return groups


def of_nodes(runs: Sequence[JobRun], missing: Mapping[int, Sequence[str]]) -> dict[str, set[int]]:
    """Return the jobs that each node is to be asked for. missing: the nodes to ask, by the place of the run in ``runs``."""
    wanted: dict[str, set[int]] = {}
    for at, run in enumerate(runs):
        for node in missing[at]:
            wanted.setdefault(node, set()).add(run.job)
    return wanted


def records_of_node(
    reader: RecordReader, node: str, answer: bytes, trouble: str, jobs: Collection[int]
) -> tuple[list[UsageRecord], str]:
    """Return the records of a node about these jobs, and in one line what was wrong, or "". A record about another job or of
    another node is not used."""
    if trouble:
        return [], f"no records: {trouble}"
    found = reader.read(answer)
    strange = [record for record in found.records if record.node != node or record.job not in jobs]
    words = [*found.troubles, *(["it sent records that it was not asked for"] if strange else [])]
    return [record for record in found.records if record not in strange], "; ".join(words)[:500]
