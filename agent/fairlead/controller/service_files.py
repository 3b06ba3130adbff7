"""Reads the files in which a node describes its time in service: service records, or trail and status of an older agent.

A node's root may be hostile. A file that cannot be read is named and left out, and a file about another node is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.fleet.older_record import older_record
from fairlead.fleet.service_record import BadServiceRecord, ServiceRecord, decoded

TRAILS = ("audit.jsonl.1", "audit.jsonl")
STATUS = "status.json"


def records_of(node: str, files: Mapping[str, bytes], written_unix: float, mistakes: list[str]) -> list[ServiceRecord]:
    """Return the service records of one node. files: content by name. written_unix: the time of the files of an older agent."""
    found = []
    for name in sorted(files):
        if name in (*TRAILS, STATUS) or not name.endswith(".json"):
            continue
        try:
            record = decoded(files[name])
            if record.node != node:
                raise BadServiceRecord(f"is of the node {record.node}")
            found.append(record)
        except BadServiceRecord as e:
            mistakes.append(f"{node}: {name} {e}")
    trails = [files[name] for name in TRAILS if name in files]
    if trails or STATUS in files:
        try:
            found.append(older_record(node, trails, files.get(STATUS, b""), written_unix, mistakes))
        except BadServiceRecord as e:
            mistakes.append(f"{node}: {e}")
    return found
