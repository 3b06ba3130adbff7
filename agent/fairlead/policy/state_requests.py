"""Defines what people ask of the policy's state: acknowledge, take that back, close as repaired. Each is data and is applied
once.

`fairlead ack` and `fairlead clear` write a request; only the agent changes the state. A request names exactly what its author
could see. So it never covers what came after the author's reading and before the agent's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from fairlead.errors import DataError
from fairlead.model.check import KernelRecord, Past
from fairlead.model.json_text import NOT_JSON
from fairlead.policy.policy_state import PolicyState, Repair, acknowledge_evidence, identity
from fairlead.xid import XidLine, read

SCHEMA = 1
BYTES_MAX = 1 << 20
REPAIRS_MAX = 100
DEVICE_REACH = 60  # a kernel record names its device within so many characters
REQUESTS_MAX = 200
#: `clear` on a device keeps these. `clear` on the whole node empties all else. ``drained_for`` still says what must be
#: well before a resume.
_KEPT = ("boot_id", "ran", "drained_for", "drained", "requests")
_COUNTER = re.compile(r"(?!recovery=)[a-z_.]+=\d+")  # ``recovery`` is a state of now, not a sum over the past

Name = Annotated[str, Meta(min_length=1, max_length=2000)]
Names = Annotated[tuple[Name, ...], Meta(max_length=2000)]
Id = Annotated[str, Meta(pattern=r"^[0-9a-z-]{8,64}(?!\n)$")]


class _Said(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holds who asked and why, for the log. id: random, from the author."""

    id: Id
    schema: int = SCHEMA
    who: str = ""
    why: str = ""


class Ack(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="ack", tag_field="kind"):
    """Acknowledges these pieces of evidence (see ``identity``)."""

    evidence: Names


class Undo(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="undo", tag_field="kind"):
    """Takes the acknowledgement of these pieces of evidence back: they count again."""

    evidence: Names


class Clear(_Said, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="clear", tag_field="kind"):
    """Says that these were repaired. See ``Repair``. A ``sequence`` of -1 means that its author did not know it: then the last
    record that the agent has read counts."""

    devices: Names = ()
    everything: bool = False
    boot_id: str = ""
    sequence: Annotated[int, Meta(ge=-1)] = -1
    boot_seconds: Annotated[float, Meta(ge=0)] = 0.0


Request = Ack | Undo | Clear


def decode(data: bytes) -> Request:
    """Return a request as it was written. Raises DataError with one line for anything else."""
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
    """Return the state after a request; the same state when it contains the request already."""
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
    """Return the state after a repair: nothing is remembered of these devices, and clean sweeps are counted from the start.

    Every table of the state that is kept by device, serial or check/device forgets them. The next sweep judges anew what is
    still wrong. A counter cannot go back, so its value now is the new zero, and only what it counts from now on is growth.
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
    """Say whether a key (a device, a serial, or check/device) belongs to what was repaired."""
    return repair.everything or key in repair.devices or key.partition("/")[2] in repair.devices


def known_of(past: Past, state: PolicyState, boot_id: str) -> Past:
    """Return the past without what people have closed in this boot: what was repaired, and kernel records that were lost and
    are acknowledged. Returns the same object where there is nothing to leave out."""
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
    """Return the past without what a repair of this boot has closed; the same object where there is nothing to leave out."""
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
    """Say whether a record was closed by a repair. ``line``: what the record says, or ends; of a message in several records
    the last one counts. Other records (of PCIe) name their device at the start."""
    due = [r for r in repairs if record.sequence <= r.sequence]
    if line is None:
        return any(r.everything or any(f" {d}: " in record.text[:DEVICE_REACH] for d in r.devices) for r in due)
    return any(r.everything or line.pci in r.devices for r in due)
