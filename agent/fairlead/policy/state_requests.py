"""Defines the requests with which people change the policy state: acknowledge evidence, undo this, or report a repair.

`fairlead ack` and `fairlead clear` write a request as data, and only the agent changes the state. The agent applies each request
once. A request names exactly the evidence or the devices that its author could see. So it never covers evidence that appeared
after the author's command and before the agent read the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.errors import DataError
from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.json_text import NOT_JSON
from fairlead.policy.policy_state import PolicyState, Repair, acknowledge_evidence, identity
from fairlead.xid import XidLine, read

SCHEMA = 1
BYTES_MAX = 1 << 20
REPAIRS_MAX = 100
DEVICE_REACH = 60  # a kernel record names its device within this many characters from its start
REQUESTS_MAX = 200
#: `clear` does not change these fields of the state. `clear` on the whole node empties all other fields. ``drained_for`` stays,
#: because the findings in it must have ended before a resume.
_KEPT = ("boot_id", "ran", "drained_for", "drained", "requests")
_COUNTER = re.compile(r"(?!recovery=)[a-z_.]+=\d+")  # ``recovery`` is no counter

Name = Annotated[str, Meta(min_length=1, max_length=2000)]
Names = Annotated[tuple[Name, ...], Meta(max_length=2000)]
Id = Annotated[str, Meta(pattern=r"^[0-9a-z-]{8,64}(?!\n)$")]


class _Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds the fields that every request has. who, why: the author and the reason, for the log. id: a random id that the
    author's command chose."""

    id: Id
    schema: int = SCHEMA
    who: str = ""
    why: str = ""


class Ack(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ack", tag_field="kind"):
    """Acknowledges these pieces of evidence (see ``identity``)."""

    evidence: Names


class Undo(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="undo", tag_field="kind"):
    """Undoes the acknowledgement of these pieces of evidence, so that they count again."""

    evidence: Names


class Clear(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="clear", tag_field="kind"):
    """Reports the repair of these devices or of the whole node (see ``Repair``). If ``sequence`` is -1, the command could not
    read the last kernel record. Then the last record that the agent has read counts."""

    devices: Names = ()
    everything: bool = False
    boot_id: str = ""
    sequence: Annotated[int, Meta(ge=-1)] = -1
    boot_seconds: Annotated[float, Meta(ge=0)] = 0.0


Request = Ack | Undo | Clear


def decode(data: bytes) -> Request:
    """Return the request that the data encodes. Raise DataError with one line of text for any other data."""
    if len(data) > BYTES_MAX:
        raise DataError(f"a request of {len(data)} bytes; the limit is {BYTES_MAX}")
    try:
        request: Request = msgspec.json.decode(data, type=Request)
    except NOT_JSON as e:
        raise DataError(f"not a request: {e}") from None
    if request.schema != SCHEMA:
        raise DataError(f"a request of schema {request.schema}; this version reads {SCHEMA}")
    if isinstance(request, Clear) and request.everything == bool(request.devices):
        raise DataError("a repair names either devices or the whole node")
    return request


def encode(request: Request) -> bytes:
    return msgspec.json.encode(request)


def apply(state: PolicyState, request: Request) -> PolicyState:
    """Return the state after a request. If the state already contains the request, return the same state."""
    if request.id in state.requests:
        return state
    match request:
        case Ack():
            made = acknowledge_evidence(state, request.evidence)
        case Undo():
            counts = frozenset(request.evidence)
            made = replace(state, acknowledged=tuple(a for a in state.acknowledged if a not in counts))
        case Clear():
            made = repaired(state, _repair(request))
    return replace(made, requests=(*made.requests, request.id)[-REQUESTS_MAX:])


def _repair(clear: Clear) -> Repair:
    return Repair(
        boot_id=clear.boot_id,
        sequence=clear.sequence,
        boot_seconds=clear.boot_seconds,
        devices=clear.devices,
        everything=clear.everything,
    )


def repaired(state: PolicyState, repair: Repair) -> PolicyState:
    """Return the state after a repair, without anything about the repaired devices. The count of clean sweeps begins at 0.

    Every table of the state with keys by device, serial or check/device loses the entries of these devices. The next sweep judges
    the devices anew. A counter cannot go back, so its present value is acknowledged, and only further growth counts.
    """
    keys = [k for k in state.tracks if _is_of(k, repair)]
    counters = (identity(f) for k in keys for f in state.tracks[k].found if _COUNTER.fullmatch(f.evidence_id))
    acknowledged = tuple(dict.fromkeys(counters))
    repairs = tuple(r for r in state.repairs if r.boot_id == repair.boot_id)
    if repair.everything:
        kept: dict[str, Any] = {name: getattr(state, name) for name in _KEPT}
        return PolicyState(**kept, acknowledged=acknowledged, repairs=(repair,))
    changes: dict[str, Any] = {}
    for name in PolicyState.__struct_fields__:
        table = getattr(state, name)
        if isinstance(table, dict):
            changes[name] = {key: value for key, value in table.items() if not _is_of(key, repair)}
    still = tuple(a for a in state.acknowledged if not _is_of(a.partition("#")[0], repair))
    return replace(
        state,
        **changes,
        acknowledged=tuple(dict.fromkeys((*still, *acknowledged))),
        clean_sweeps=0,
        repairs=(*repairs, repair)[-REPAIRS_MAX:],
    )


def _is_of(key: str, repair: Repair) -> bool:
    """Return whether a key (a device, a serial, or check/device) belongs to a repaired device."""
    return repair.everything or key in repair.devices or key.partition("/")[2] in repair.devices


def known_of(past: Past, state: PolicyState, boot_id: str) -> Past:
    """Return the past without the data that people have settled in this boot. These are records and samples from before a repair,
    and the count of lost kernel records if this loss was acknowledged. If nothing is left out, return the same object."""
    if past.overrun and _known_lost(past, state, boot_id):
        past = replace(past, overrun=0)
    return since_repair(past, state.repairs, boot_id)


def _known_lost(past: Past, state: PolicyState, boot_id: str) -> bool:
    if any(r.everything and r.boot_id == boot_id and past.overrun_seconds <= r.boot_seconds for r in state.repairs):
        return True
    name = f"xid/#{boot_id}:overrun="
    counts = (a.removeprefix(name) for a in state.acknowledged if a.startswith(name))
    return any(count.isdigit() and int(count) >= past.overrun for count in counts)


def since_repair(past: Past, repairs: Collection[Repair], boot_id: str) -> Past:
    """Return the past without records and samples from before a repair in this boot. If nothing is left out, return the same
    object."""
    here = [r for r in repairs if r.boot_id == boot_id]
    if not here:
        return past
    ordered = sorted(past.records, key=lambda r: r.sequence)
    lines = {id(ordered[index]): line for index, line in read(r.text for r in ordered)}
    records = tuple(r for r in past.records if not _closed(r, lines.get(id(r)), here))
    samples = tuple(
        s for s in past.samples if not any(s.seconds <= r.boot_seconds and (r.everything or s.device in r.devices) for r in here)
    )
    return replace(past, records=records, samples=samples)


def _closed(record: KernelRecord, line: XidLine | None, repairs: Iterable[Repair]) -> bool:
    """Return whether a repair covers a kernel record. ``line`` is the Xid that the record reports, or None. If a message has
    several records, ``line`` belongs to its last record. Records without a ``line`` (of PCIe) name their device at the start."""
    due = [r for r in repairs if record.sequence <= r.sequence]
    if line is None:
        return any(r.everything or any(f" {d}: " in record.text[:DEVICE_REACH] for d in r.devices) for r in due)
    return any(r.everything or line.pci in r.devices for r in due)
