"""Makes service records, entries and events for tests."""

from __future__ import annotations

from typing import Any

from fairlead.fleet.fleet_report import FleetInput, Timeframe
from fairlead.fleet.incidents import FleetHistory, history_of
from fairlead.fleet.machines import fleet_of
from fairlead.fleet.node_events import NodeOut
from fairlead.fleet.service_record import CardSeen, ServiceEntry, ServiceRecord

HOUR, DAY = 3600.0, 86400.0
BEGIN = 1_793_000_000.0
NOW = BEGIN + 60 * DAY
PCI, OTHER_PCI = "0000:1b:00.0", "0000:43:00.0"


def reason(check: str = "xid", token: str = "aaaaaaaaaaa1", device: str = PCI) -> str:
    return f"fairlead:{check}:{token} something on GPU {device}"


def drained(unix: float, check: str = "xid", device: str = PCI, token: str = "", **args: str) -> ServiceEntry:
    text = reason(check, token or f"{int(unix):012x}", device)
    findings = f"{check}/{device}" if device else check
    return ServiceEntry(
        unix=unix, id=f"d{check}{unix}", what="drained", who="agent", args={"reason": text, "findings": findings, **args}
    )


def resumed(unix: float, what: str = "resumed", **more: Any) -> ServiceEntry:
    return ServiceEntry(unix=unix, id=f"r{unix}", what=what, who="agent", **more)


def clear(unix: float, why: str, devices: str = PCI) -> ServiceEntry:
    return ServiceEntry(unix=unix, id=f"c{unix}", what="clear", who="ada", args={"devices": devices}, why=why)


def record(*entries: ServiceEntry, **changes: Any) -> ServiceRecord:
    values: dict[str, Any] = {
        "node": "n1",
        "machine": "m1",
        "node_class": "hgx-h100",
        "written_unix": NOW,
        "watched": ((BEGIN, NOW),),
        "cards": (CardSeen(pci=PCI, serial="A1", since_unix=BEGIN), CardSeen(pci=OTHER_PCI, serial="B2", since_unix=BEGIN)),
        "entries": tuple(entries),
    }
    return ServiceRecord(**{**values, **changes})


def history(*records: ServiceRecord, events: tuple[NodeOut, ...] = ()) -> FleetHistory:
    return history_of(fleet_of(records, events, NOW), events, NOW)


def frame() -> Timeframe:
    return Timeframe(name="made", begin_unix=BEGIN, end_unix=NOW, months=(("one", BEGIN, NOW),), now=NOW)


def inputs(*records: ServiceRecord, **changes: Any) -> FleetInput:
    return FleetInput(records=records, **changes)
