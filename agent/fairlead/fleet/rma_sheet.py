"""Makes the sheet that a vendor asks for when a GPU is returned (RMA): what the card is, the evidence, and its history.

Everything comes from the node's own service record, as it was last collected: a GPU that is lost or a node that is off still has
its sheet. A value that could not be read says so, and is never left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from fairlead.fleet.incidents import FleetHistory, Incident
from fairlead.fleet.machines import Fleet, FleetMachine
from fairlead.fleet.service_record import REPAIRED, CardDetails, CardSeen, Span, XidSeen

NOT_READABLE = "not readable"
WHOLE_NODE = "the whole node"  # what `fairlead clear --all` closes


class CardUnknown(Struct, frozen=True):
    """Says why no card was found, and which there are."""

    why: str
    known: tuple[str, ...] = ()


class CardEvent(Struct, frozen=True, kw_only=True):
    """Holds a repair that a person reported. what: "closed as repaired"."""

    unix: float
    what: str
    who: str
    why: str


class RmaSheet(Struct, frozen=True, kw_only=True):
    """Holds the sheet. identity: the card's values by their names, None if a value could not be read. read_unix: when they were
    read, None for never. findings: what counts against the card now. xids: of this address since the card is there. where: the
    nodes and slots that had the card."""

    node: str
    pci: str
    serial: str | None
    read_unix: float | None
    identity: dict[str, str | None]
    findings: tuple[str, ...]
    xids: tuple[XidSeen, ...]
    incidents: tuple[Incident, ...]
    repairs: tuple[CardEvent, ...]
    cards: tuple[CardSeen, ...]
    where: tuple[str, ...]


def machines_of(fleet: Fleet, node: str) -> list[FleetMachine]:
    """Return the machines that have or had this NodeName, those that have it now first."""
    found = [machine for machine in fleet.machines if node in (machine.node, *(name for _, name in machine.names))]
    return sorted(found, key=lambda machine: (machine.node != node, -machine.record.written_unix))


def address_of(machine: FleetMachine, word: str) -> str | CardUnknown:
    """Return the PCI address that ``word`` means: an address, a serial number, a UUID, or NVML's index."""
    record = machine.record
    known = {card.pci: None for card in record.cards} | {details.pci: None for details in record.details}
    if word in known:
        return word
    for details in record.details:
        if word in (details.serial, details.uuid):
            return details.pci
    for card in reversed(record.cards):
        if word == card.serial:
            return card.pci
    positions = [d.pci for d in record.details if d.position is not None and word == str(d.position)]
    if len(positions) == 1:
        return positions[0]
    return CardUnknown("this node has no such GPU", tuple(known))


def sheet(fleet: Fleet, history: FleetHistory, machine: FleetMachine, pci: str, word: str = "") -> RmaSheet:
    """Return the sheet of the card at an address. ``word``: if it is the serial number of a card that was there earlier, the
    sheet is of that card."""
    record = machine.record
    cards = [card for card in record.cards if card.pci == pci]
    named = [card for card in cards if card.serial == word]
    card = named[-1] if named else cards[-1] if cards else None
    until = min((c.since_unix for c in cards if card is not None and c.since_unix > card.since_unix), default=float("inf"))
    details = next((d for d in record.details if d.pci == pci), None)
    if details is not None and named and details.serial != word:
        details = None  # they are of the card that is there now
    serial = (details.serial if details is not None else "") or (card.serial if card is not None else "")
    since = card.since_unix if card is not None else 0.0
    own = [i for i in history.incidents if _is_of(i, machine, pci, serial, (since, until))]
    names = {pci, serial} - {""}
    return RmaSheet(
        node=machine.node,
        pci=pci,
        serial=serial or None,
        read_unix=details.read_unix if details is not None else None,
        identity=_identity(machine, details, serial, pci),
        findings=tuple(
            f"{f.check}{'' if f.enforced else ' (observed)'}" for f in record.findings if f.device in names or f.serial in names
        )
        if until == float("inf")
        else (),
        xids=tuple(x for x in record.xids if x.pci == pci and since <= x.last_unix and x.first_unix < until),
        incidents=tuple(own),
        repairs=tuple(
            CardEvent(unix=e.unix, what=e.what, who=e.args.get("for", e.who), why=e.why)
            for e in record.entries
            if e.what == REPAIRED and _covers(e.args.get("devices") or e.detail, names)
        ),
        cards=tuple(cards),
        where=_had_by(fleet, serial),
    )


def _is_of(incident: Incident, machine: FleetMachine, pci: str, serial: str, during: Span) -> bool:
    if serial and incident.serial:
        return incident.serial == serial
    return incident.machine == machine.key and incident.device == pci and during[0] <= incident.begin_unix < during[1]


def _covers(words: str, names: set[str]) -> bool:
    return words == WHOLE_NODE or bool(names & set(words.replace(",", " ").split()))


def _identity(machine: FleetMachine, details: CardDetails | None, serial: str, pci: str) -> dict[str, str | None]:
    read = details if details is not None else CardDetails(pci=pci, read_unix=0.0)
    version = machine.record.versions[-1] if machine.record.versions else None
    values: dict[str, str | None] = {
        "serial number": serial or None,
        "UUID": read.uuid or None,
        "product": read.product or None,
        "board part number": read.part_number or None,
        "VBIOS": read.vbios or None,
        "InfoROM image": read.inforom or None,
        "driver": (version.driver if version is not None else "") or None,
        "fairlead agent": (version.agent_version if version is not None else "") or None,
        "node": machine.node,
        "machine id": machine.record.machine or None,
        "hardware profile": machine.record.node_class or None,
        "PCI address": pci,
        "NVML index": str(read.position) if read.position is not None else None,
        "chassis slot": read.slot or None,
        "remapped rows": f"{read.remapped[0]} corrected, {read.remapped[1]} uncorrected" if read.remapped else None,
        "row remap pending": _yes(read.remap_pending),
        "row remap failed": _yes(read.remap_failed),
        "retired pages": f"{read.retired[0]} single bit, {read.retired[1]} double bit" if read.retired else None,
        "uncorrected ECC errors of its lifetime": str(read.uncorrected_errors) if read.uncorrected_errors is not None else None,
    }
    return values


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _had_by(fleet: Fleet, serial: str) -> tuple[str, ...]:
    """Return the nodes and slots that had the card, the oldest first."""
    if not serial:
        return ()
    found: Sequence[tuple[float, str]] = [
        (card.since_unix, f"{machine.node} {card.pci}")
        for machine in fleet.machines
        for card in machine.record.cards
        if card.serial == serial
    ]
    return tuple(dict.fromkeys(name for _, name in sorted(found)))
