"""From drains, findings, strikes and repairs to incidents: one for each node and cause, until the node is back for a day."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.fleet.incidents import Ended
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_record import ActiveFinding, CardSeen, ServiceEntry
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, OTHER_PCI, PCI, clear, drained, history, record, resumed

T = BEGIN + 10 * DAY


def ended(*entries: ServiceEntry, **changes: Any) -> list[tuple[str, int, Ended]]:
    return [(i.cause, len(i.times), i.ended) for i in history(record(*entries, **changes)).incidents]


CASES: list[tuple[str, tuple[ServiceEntry, ...], list[tuple[str, int, Ended]]]] = [
    ("a drain that is still there", (drained(T),), [(f"xid/{PCI}", 1, Ended.OPEN)]),
    ("resumed by the agent", (drained(T), resumed(T + HOUR)), [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)]),
    ("resumed by a person", (drained(T), resumed(T + HOUR, "resumed by a person")), [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)]),
    (
        "a person's drain took its place",
        (drained(T), resumed(T + HOUR, "drain given up", detail="riser swap")),
        [(f"xid/{PCI}", 1, Ended.PERSON)],
    ),
    (
        "maintenance took its place",
        (drained(T), resumed(T + HOUR, "drain given up", detail="fairlead:maintain:aaaaaaaaaaa1 driver")),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)],
    ),
    (
        "it comes back within a day: one incident",
        (drained(T), resumed(T + HOUR), drained(T + 20 * HOUR), resumed(T + 21 * HOUR)),
        [(f"xid/{PCI}", 2, Ended.UNCONFIRMED)],
    ),
    (
        "it comes back after two days: two incidents",
        (drained(T), resumed(T + HOUR), drained(T + 50 * HOUR), resumed(T + 51 * HOUR)),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)] * 2,
    ),
    (
        "another check of the same device belongs to it",
        (drained(T), drained(T + 60, "gpu_count"), resumed(T + HOUR)),
        [(f"xid/{PCI}", 2, Ended.UNCONFIRMED)],
    ),
    (
        "another device is another cause",
        (drained(T), resumed(T + HOUR), drained(T + 2 * HOUR, device=OTHER_PCI)),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED), (f"xid/{OTHER_PCI}", 1, Ended.OPEN)],
    ),
    (
        "a clear that names the part",
        (drained(T), clear(T + HOUR, "GPU replaced, ticket 4711"), resumed(T + 2 * HOUR)),
        [(f"xid/{PCI}", 1, Ended.CONFIRMED)],
    ),
    (
        "a clear that names nothing",
        (drained(T), clear(T + HOUR, "a reset helped"), resumed(T + 2 * HOUR)),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)],
    ),
    (
        "the clear of another device",
        (drained(T), clear(T + HOUR, "GPU replaced", OTHER_PCI), resumed(T + 2 * HOUR)),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)],
    ),
    (
        "a clear a week later, by the serial",
        (drained(T), resumed(T + HOUR), clear(T + 7 * DAY, "RMA 99", "A1")),
        [(f"xid/{PCI}", 1, Ended.CONFIRMED)],
    ),
    (
        "a clear a month later says nothing of it",
        (drained(T), resumed(T + HOUR), clear(T + 30 * DAY, "RMA 99")),
        [(f"xid/{PCI}", 1, Ended.UNCONFIRMED)],
    ),
    ("people's drains and maintenance are none", (drained(T, "manual", ""), drained(T + HOUR, "maintain", "")), []),
    ("a reason of somebody else", (ServiceEntry(unix=T, id="x", what="drained", args={"reason": "broken fan"}),), []),
]


@pytest.mark.parametrize(("entries", "found"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_cases(entries: tuple[ServiceEntry, ...], found: list[tuple[str, int, Ended]]) -> None:
    assert ended(*entries) == found


def test_another_card_in_the_slot_confirms_the_repair() -> None:
    cards = (
        CardSeen(pci=PCI, serial="A1", since_unix=BEGIN),
        CardSeen(pci=PCI, serial="C3", since_unix=T + 2 * HOUR),
    )
    (incident,) = history(record(drained(T), resumed(T + 3 * HOUR), cards=cards)).incidents
    assert incident.ended is Ended.CONFIRMED and incident.serial == "A1" and incident.how == "card A1 was replaced by C3"


def test_an_older_agent_names_the_device_in_its_reason_only() -> None:
    args = {"reason": f"fairlead:xid:aaaaaaaaaaa1 Xid 79 on GPU {PCI}"}
    entry = ServiceEntry(unix=T, id="x", what="drained", args=args)
    (incident,) = history(record(entry)).incidents
    assert incident.cause == f"xid/{PCI}" and incident.serial == "A1"


def test_a_finding_without_a_drain_counts_if_its_check_may_drain() -> None:
    finding = ActiveFinding(check="xid", device=PCI, serial="A1", since_unix=T)
    assert ended(findings=(finding,)) == [(f"xid/{PCI}", 1, Ended.OPEN)]
    assert ended(drained(T + 60), findings=(finding,)) == [(f"xid/{PCI}", 1, Ended.OPEN)], "the drain is of this finding"
    observed = ActiveFinding(check="ecc", device=PCI, since_unix=T, enforced=False)
    assert ended(findings=(observed,)) == []


def test_a_strike_without_an_entry_is_counted_and_named() -> None:
    found = history(record(drained(T), resumed(T + HOUR), strikes={"A1": (T, T + 5 * DAY)}))
    assert [(i.check, i.device) for i in found.incidents] == [("xid", PCI), ("strike", PCI)]
    assert "no entry in the audit trail" in found.troubles[0]
    limited = history(record(drained(T + HOUR), strikes={"A1": (T,)}))
    assert [i.check for i in limited.incidents] == ["xid"], "a drain limit has delayed the drain by an hour"


def event(begin: float, end: float | None, reason: str, whose: Whose = Whose.FAULT, **more: Any) -> NodeOut:
    return NodeOut(node="n1", begin_unix=begin, end_unix=end, whose=whose, reason=reason, **more)


def test_what_only_slurm_has_seen() -> None:
    gone = event(T, T + HOUR, "Not responding", down=True)
    (incident,) = history(record(), events=(gone,)).incidents
    assert (incident.check, incident.ended, incident.how) == ("slurm", Ended.UNCONFIRMED, "Not responding")
    during = event(T + 60, T + HOUR, "Not responding", down=True)
    assert [i.check for i in history(record(drained(T), resumed(T + 2 * HOUR)), events=(during,)).incidents] == ["xid"]
    planned = event(T - HOUR, T + DAY, "fairlead:maintain:aaaaaaaaaaa1 driver", Whose.MAINTENANCE)
    assert history(record(), events=(planned, gone)).incidents == ()
    own = event(T, T + HOUR, "broken fan", Whose.PERSON)
    assert history(record(), events=(own,)).incidents == ()


def test_a_drain_that_slurm_and_the_node_report_counts_once() -> None:
    entry = drained(T, token="abcdefabcdef")
    slurms = event(T - 1, T + HOUR, entry.args["reason"], token="abcdefabcdef")
    assert len(history(record(entry, resumed(T + HOUR)), events=(slurms,)).incidents) == 1
    assert len(history(record(), events=(slurms,)).incidents) == 1, "the node has lost its trail, and Slurm has the reason"


def test_nothing_of_the_future_is_an_incident() -> None:
    found = history(record(drained(NOW + DAY)))
    assert found.incidents == ()
