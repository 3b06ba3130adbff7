"""Reads more of a node than its account: findings, audit trail and GPUs, for the pages of `fairlead fleet --html`.

A node's root may be hostile. ``agent_status`` reads the status, each line of the audit trail is read by a table of known keys,
and of the topology only numbers and PCI addresses are used.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import DataError
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line
from fairlead.provision.agent_accounts import FILES
from fairlead.provision.agent_status import Status, status_of
from fairlead.provision.node_answer import TEXT_MAX
from fairlead.provision.ssh_fetch import parts_of, reading

TOPOLOGY, AUDIT = "/run/fairlead/topology", "/var/lib/fairlead/audit.jsonl"
#: The trail of an agent with another state_dir, through the link that it makes (daemon/loop/state_link.py).
LINKED_AUDIT = "/run/fairlead/state/audit.jsonl"
DETAILED = reading((*FILES, TOPOLOGY, AUDIT, LINKED_AUDIT))
ENTRIES_MAX = 100
GPUS_MAX = 64
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMBER = re.compile(r"[0-9]{1,4}")


class AuditAction(Struct, frozen=True, kw_only=True):
    """Describes one entry of the audit trail. why: the reason that the person stated."""

    unix: float
    who: str
    what: str
    why: str = ""
    outcome: str = ""
    detail: str = ""


class GpuSlot(Struct, frozen=True, kw_only=True):
    """Says which GPU is where. index: Slurm's index, or None. numa: the NUMA node, or None if it is not known."""

    pci: str
    index: int | None
    numa: int | None


class NodeDetails(Struct, frozen=True, kw_only=True):
    """Holds the details of one node. status: {} if the node did not give it."""

    status: Status
    actions: tuple[AuditAction, ...] = ()
    gpus: tuple[GpuSlot, ...] = ()


_ACTION = msgspec.json.Decoder(AuditAction)


def details_of(answer: bytes) -> NodeDetails:
    """Return the details in the output of ``DETAILED``. What cannot be read is left out: the account says that."""
    parts = parts_of(answer) or {}
    try:
        status = status_of(parts.get(FILES[2], b""))
    except DataError:
        status = {}
    return NodeDetails(
        status=status, actions=_actions(parts.get(LINKED_AUDIT) or parts.get(AUDIT, b"")), gpus=_gpus(parts.get(TOPOLOGY, b""))
    )


def _actions(content: bytes) -> tuple[AuditAction, ...]:
    """Return the last entries. Of the two entries with one id, the second one has the outcome."""
    found: dict[Any, AuditAction] = {}
    for number, line in enumerate(content.splitlines()[-2 * ENTRIES_MAX :]):
        try:
            entry = _ACTION.decode(line)
            key = msgspec.json.decode(line, type=dict[str, Any]).get("id", number)
        except NOT_JSON:
            continue
        if isinstance(key, str | int) and 0 <= entry.unix < 1e11:
            found[key] = _printable(entry)
    return tuple(list(found.values())[-ENTRIES_MAX:])


def _printable(entry: AuditAction) -> AuditAction:
    texts = {name: one_line(getattr(entry, name), TEXT_MAX) for name in ("who", "what", "why", "outcome", "detail")}
    return msgspec.structs.replace(entry, **texts)


def _gpus(content: bytes) -> tuple[GpuSlot, ...]:
    """Return the GPUs of /run/fairlead/topology (topology/binding/published_files.py)."""
    found = []
    for line in content.decode("ascii", "replace").split("\n")[: 4 * GPUS_MAX]:
        fields = line.split("\t")
        if fields[0] == "gpu" and len(fields) > 5 and _PCI.fullmatch(fields[4]):
            found.append(GpuSlot(pci=fields[4], index=_number(fields[1]), numa=_number(fields[5])))
    return tuple(found[:GPUS_MAX])


def _number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
