"""Makes a service record from the files of an agent that writes none yet (0.1.0): its audit trail and its status.json.

Such a node does not say since when an agent watched it, which GPU card was where, and which driver it had earlier. It is watched
from the first entry of its trail on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead.fleet.service_record import (
    KINDS,
    ActiveFinding,
    BadServiceRecord,
    Name,
    ServiceEntry,
    ServiceRecord,
    Text,
    Unix,
    checked,
)
from fairlead.model.plain_text import one_line


class _OlderDocument(Struct, frozen=True):
    profile: Name = ""


class _OlderFinding(Struct, frozen=True):
    check: Name
    level: Name = ""
    device: Name = ""
    mode: Name = ""


class _OlderDrain(Struct, frozen=True):
    since_unix: Unix = 0.0


class _OlderStatus(Struct, frozen=True):
    """Describes the keys of status.json that are used here (``daemon.publishing.status_json``)."""

    slurm_node: Name = ""
    document: _OlderDocument = _OlderDocument()
    findings: Annotated[tuple[_OlderFinding, ...], Meta(max_length=5000)] = ()
    drain: _OlderDrain | None = None
    strikes: dict[Name, tuple[Unix, ...]] = {}
    acknowledged: Annotated[tuple[Text, ...], Meta(max_length=5000)] = ()


_ENTRY = msgspec.json.Decoder(ServiceEntry)
_STATUS = msgspec.json.Decoder(_OlderStatus)


def older_record(node: str, trails: Iterable[bytes], status: bytes, written_unix: float, mistakes: list[str]) -> ServiceRecord:
    """Return the record. trails: the content of audit.jsonl.1 and audit.jsonl. status: the content of status.json, or b"".

    The reason of each line that cannot be read is added to ``mistakes``. Raises BadServiceRecord for a status of another form,
    and for the status of another node.
    """
    found: dict[str, ServiceEntry] = {}
    broken = 0
    for line in (line for trail in trails for line in trail.splitlines() if line.strip()):
        try:
            entry = _ENTRY.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            broken += 1
            continue
        first = found.get(entry.id)
        found[entry.id] = entry if first is None else msgspec.structs.replace(first, outcome=entry.outcome, detail=entry.detail)
    if broken:
        mistakes.append(f"{node}: {broken} line{'s' * (broken != 1)} of its audit trail left out: cut short or not fairlead's")
    known = _status(status)
    if known.slurm_node not in ("", node):
        raise BadServiceRecord(f"its status.json is of the node {one_line(known.slurm_node, 64)}")
    begin = min((entry.unix for entry in found.values()), default=written_unix)
    return checked(
        ServiceRecord(
            node=node,
            written_unix=written_unix,
            node_class=known.document.profile,
            watched=((min(begin, written_unix), written_unix),),
            findings=tuple(
                ActiveFinding(
                    check=each.check,
                    device=each.device,
                    since_unix=known.drain.since_unix if known.drain is not None else written_unix,
                    enforced=each.mode == "enforce",
                )
                for each in known.findings
                if each.level == "drain"
            ),
            strikes=known.strikes,
            acknowledged=known.acknowledged,
            entries=tuple(entry for entry in found.values() if entry.what in KINDS),
        )
    )


def _status(text: bytes) -> _OlderStatus:
    if not text.strip():
        return _OlderStatus()
    try:
        return _STATUS.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise BadServiceRecord(f"its status.json cannot be read: {one_line(str(e), 200)}") from None
