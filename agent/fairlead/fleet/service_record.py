"""Defines the service record (``service-record/1``): what an agent says of its node's time in service, for the last 30 days.

The agent writes it to /run/fairlead. It has the entries of the audit trail about drains, resumes, repairs and acknowledgements,
the active findings, the strikes, the GPU cards, the versions, and a few values that change slowly. A node's root may be hostile,
so this module accepts known keys of known types and sizes only, and makes every text printable.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from fairlead.model.nodelist import is_name
from fairlead.model.plain_text import one_line

SCHEMA = "service-record/1"
FILE = "service-record.json"
RECORD_MAX_BYTES = 4 << 20
DAY_SECONDS = 86400
KEEP_DAYS = 30  # so far back a node's own record is complete
TEXT_MAX = 300
ENTRIES_MAX = 20_000
#: The kinds of entries of the audit trail that a service record has (``what``): those of the agent, and those of commands.
DRAINED, RESUMED, RESUMED_BY_PERSON, LOST, GIVEN_UP = "drained", "resumed", "resumed by a person", "drain lost", "drain given up"
ENDS = frozenset((RESUMED, RESUMED_BY_PERSON, LOST, GIVEN_UP))
REPAIRED, CLEAR = "closed as repaired", "clear"
KINDS = ENDS | {
    DRAINED,
    REPAIRED,
    CLEAR,
    "left alone",
    "acknowledged",
    "acknowledgement undone",
    "ack",
    "drain",
    "resume",
    "hold",
}

Unix = Annotated[float, Meta(ge=0, le=1e11)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=128)]
Number = Annotated[int, Meta(ge=0, le=1 << 53)]
Span = tuple[Unix, Unix]
Point = tuple[Annotated[int, Meta(ge=0, le=1_000_000)], Annotated[float, Meta(ge=-1e18, le=1e18)]]


class ServiceEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds one entry of the audit trail (``daemon.requests.audit_trail.AuditEntry``)."""

    unix: Unix
    id: Annotated[str, Meta(min_length=1, max_length=64)]
    what: Name
    who: Name = ""
    args: Annotated[dict[Name, Text], Meta(max_length=32)] = field(default_factory=dict)
    why: Text = ""
    outcome: Name = "done"
    detail: Text = ""


class CardSeen(Struct, frozen=True, kw_only=True):
    """Says since when the agent sees a GPU card at a PCI address."""

    pci: Name
    serial: Name
    since_unix: Unix


class VersionSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says since when a node has a driver, an agent and a set of checks. checks: a digest of the enforced checks and their
    parameters."""

    since_unix: Unix
    driver: Name = ""
    agent_version: Name = ""
    checks: Name = ""


class ActiveFinding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes a finding that drains, or would drain if the check were in mode ``enforce`` or a limit left room. since_unix:
    when it began to count. enforced: the check is in mode ``enforce``."""

    check: Name
    since_unix: Unix
    device: Name = ""
    serial: Name = ""
    enforced: bool = True


class CardDetails(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what a vendor asks for about a GPU card, as last read at ``read_unix``. A value that could not be read is absent.
    position: NVML's index. slot: the chassis slot by the firmware (/sys/bus/pci/slots). remapped, retired: corrected and
    uncorrected rows, or pages by single and double bit errors."""

    pci: Name
    read_unix: Unix
    position: Number | None = None
    serial: Name = ""
    uuid: Name = ""
    product: Name = ""
    part_number: Name = ""
    vbios: Name = ""
    inforom: Name = ""
    slot: Name = ""
    remapped: tuple[Number, Number] | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired: tuple[Number, Number] | None = None
    uncorrected_errors: Number | None = None


class XidSeen(Struct, frozen=True, kw_only=True):
    """Counts the records of one Xid or SXid of a GPU in one boot. first_unix, last_unix: when the agent first and last saw the
    count grow, to ten minutes."""

    boot: Name
    pci: Name
    kind: Name
    code: Name
    count: Number
    first_unix: Unix
    last_unix: Unix


class ServiceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds what one agent says. node_class: the hardware profile of the node's document.

    watched: the times in which an agent ran, each as begin and end. Outside of them nobody knows what happened. strikes: the
    times of drains by GPU serial (or address, or "node"). values: by device and name, the pairs of a day since 1970 and the value
    of that day, the oldest first; a value that did not change is there once a week. details: of each GPU card. xids: of each
    boot.
    """

    node: Name
    written_unix: Unix
    machine: Name = ""
    node_class: Name = field(default="", name="class")
    watched: Annotated[tuple[Span, ...], Meta(max_length=10_000)] = ()
    versions: Annotated[tuple[VersionSeen, ...], Meta(max_length=2000)] = ()
    cards: Annotated[tuple[CardSeen, ...], Meta(max_length=5000)] = ()
    findings: Annotated[tuple[ActiveFinding, ...], Meta(max_length=5000)] = ()
    strikes: Annotated[dict[Name, Annotated[tuple[Unix, ...], Meta(max_length=1000)]], Meta(max_length=1000)] = field(
        default_factory=dict
    )
    acknowledged: Annotated[tuple[Text, ...], Meta(max_length=5000)] = ()
    entries: Annotated[tuple[ServiceEntry, ...], Meta(max_length=ENTRIES_MAX)] = ()
    values: Annotated[
        dict[Name, Annotated[dict[Name, Annotated[tuple[Point, ...], Meta(max_length=5000)]], Meta(max_length=64)]],
        Meta(max_length=2000),
    ] = field(default_factory=dict)
    details: Annotated[tuple[CardDetails, ...], Meta(max_length=256)] = ()
    xids: Annotated[tuple[XidSeen, ...], Meta(max_length=5000)] = ()


class BadServiceRecord(ValueError):
    """Says in one line why a text is no service record."""


class _WithSchema(Struct):
    schema: Annotated[str, Meta(max_length=64)] = ""


_NAMED = msgspec.json.Decoder(_WithSchema)
_DECODER = msgspec.json.Decoder(ServiceRecord)
_ENCODER = msgspec.json.Encoder()
_BEGIN = b'{"schema":"' + SCHEMA.encode() + b'"'


def encoded(record: ServiceRecord) -> bytes:
    """Return the record as one line of JSON with the schema in front."""
    return _BEGIN + b"," + _ENCODER.encode(record)[1:] + b"\n"


def decoded(text: bytes) -> ServiceRecord:
    """Return the record in a text. Raises BadServiceRecord if the text is torn, too long, of another schema, or of other
    types."""
    if len(text) > RECORD_MAX_BYTES:
        raise BadServiceRecord(f"is longer than {RECORD_MAX_BYTES >> 20} MiB")
    if not text.rstrip().endswith(b"}"):
        raise BadServiceRecord("is torn: its end is missing")
    try:
        # nearly all records begin like this, and then need not be decoded twice
        named = SCHEMA if text.startswith(_BEGIN) else _NAMED.decode(text).schema
        if named != SCHEMA:
            raise BadServiceRecord(f'has the schema "{one_line(named, 32)}", and this fairlead reads "{SCHEMA}"')
        record = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise BadServiceRecord(f"is not a service record: {one_line(str(e), 200)}") from None
    except RecursionError:
        raise BadServiceRecord("is not a service record: too deep") from None
    return checked(record)


def checked(record: ServiceRecord) -> ServiceRecord:
    """Return the record with printable texts. Raises BadServiceRecord for a node that is no NodeName and for a time that ends
    before it begins."""
    if not is_name(record.node):
        raise BadServiceRecord("its node is not a NodeName")
    if any(end < begin for begin, end in record.watched):
        raise BadServiceRecord("a time that it was watched ends before it begins")
    return replace(
        record,
        machine=one_line(record.machine, TEXT_MAX),
        node_class=one_line(record.node_class, TEXT_MAX),
        versions=tuple(map(_printable_once, record.versions)),
        cards=tuple(map(_printable_once, record.cards)),
        findings=tuple(map(_printable, record.findings)),
        details=tuple(map(_printable_once, record.details)),
        xids=tuple(map(_printable_once, record.xids)),
        strikes={one_line(name): times for name, times in record.strikes.items()},
        acknowledged=tuple(one_line(name, TEXT_MAX) for name in record.acknowledged),
        entries=tuple(map(_printable, record.entries)),
        values={_name(device): {_name(name): points for name, points in of.items()} for device, of in record.values.items()},
    )


@lru_cache(maxsize=65536)  # the names of values are the same in every record
def _name(text: str) -> str:
    return one_line(text)


def _printable(value: Any) -> Any:
    """Return a Struct with every text on one printable line."""
    changes: dict[str, object] = {}
    for name in value.__struct_fields__:
        each = getattr(value, name)
        if isinstance(each, str) and each:
            changes[name] = one_line(each, TEXT_MAX)
        elif isinstance(each, Mapping) and each:
            changes[name] = {one_line(key): one_line(text, TEXT_MAX) for key, text in each.items()}
    return replace(value, **changes)


@lru_cache(maxsize=16384)  # each record of a node has the same cards and versions
def _printable_once(value: Any) -> Any:
    return _printable(value)
