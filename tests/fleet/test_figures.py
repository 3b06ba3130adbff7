"""Availability, allocated time, touched and lost jobs, rates, MTTF: each beside a sum that is done by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.fleet.availability import availability, without
from fairlead.fleet.fleet_report import report
from fairlead.fleet.incident_rates import Rate, mttf
from fairlead.fleet.job_exposure import FleetJob, JobExposure
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_record import VersionSeen
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, drained, frame, history, inputs, record, resumed

T = BEGIN + 10 * DAY


def out(begin: float, end: float | None, whose: Whose, node: str = "n1") -> NodeOut:
    return NodeOut(node=node, begin_unix=begin, end_unix=end, whose=whose)


def test_three_columns() -> None:
    outs = [
        out(0, 100, Whose.FAULT),
        out(50, 200, Whose.PERSON),  # 100 to 200 counts
        out(150, 300, Whose.MAINTENANCE),  # comes before the person
        out(900, None, Whose.FAULT),
    ]
    found = availability({"n1": ((0, 1000),), "n2": ((0, 500),)}, outs, 0, 1000)
    assert (found.owned_seconds, found.unwatched_seconds) == (1500, 500)
    assert (found.fault_seconds, found.maintenance_seconds, found.person_seconds) == (200, 150, 50)
    assert found.of_owned == pytest.approx(1 - 400 / 1500)
    assert found.without_maintenance == pytest.approx(1 - 250 / 1350)
    assert found.without_people == pytest.approx(1 - 200 / 1300)
    assert availability({}, outs, 0, 1000).of_owned is None, "nothing is owned: not known"


SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=6)


@given(SPANS, SPANS)
def test_what_is_left_of_spans(spans: list[tuple[int, int]], gone: list[tuple[int, int]]) -> None:
    from fairlead.fleet.service_merge import joined

    a, b = joined((s, s + n) for s, n in spans), joined((s, s + n) for s, n in gone)
    seconds = {s for begin, end in a for s in range(int(begin), int(end))} - {
        s for begin, end in b for s in range(int(begin), int(end))
    }
    assert {s for begin, end in without(a, b) for s in range(int(begin), int(end))} == seconds


def job(number: int, begin: float, end: float | None, *nodes: str, state: str = "COMPLETED", user: str = "ann") -> FleetJob:
    return FleetJob(job=number, user=user, state=state, nodes=nodes or ("n1",), begin_unix=begin, end_unix=end, gpus=8)


def test_allocated_time_counts_a_shared_node_once() -> None:
    exposure = JobExposure((), BEGIN, BEGIN + DAY)
    exposure.add([job(1, BEGIN, BEGIN + 6 * HOUR), job(2, BEGIN + 3 * HOUR, BEGIN + 9 * HOUR), job(3, BEGIN - DAY, None, "n2")])
    assert exposure.seconds("n1", BEGIN, BEGIN + DAY) == 9 * HOUR
    assert exposure.seconds("n2", BEGIN, BEGIN + DAY) == DAY and exposure.seconds("n3", BEGIN, BEGIN + DAY) == 0
    assert exposure.seconds("n1", BEGIN + 8 * HOUR, BEGIN + 20 * HOUR) == HOUR


def test_touched_and_lost_jobs() -> None:
    found = history(record(drained(T), resumed(T + HOUR)))
    exposure = JobExposure(found.incidents, BEGIN, NOW)
    exposure.add([
        job(1, T - DAY, T - 900),  # ended 15 minutes before
        job(2, T - DAY, T - 300, user="bob"),  # ended well before the drain: touched, and not lost
        job(3, T - 600, T + 200, user="eve", state="NODE_FAIL"),
        job(4, T - HOUR, T + DAY, user="eve", state="FAILED"),  # failed a day later: another reason
        job(5, T - 7200, T - 100, user="eve", state="FAILED"),
        job(6, T + 7200, T + 8000, "n7", state="NODE_FAIL"),  # no incident is known
        job(7, T - HOUR, T, "n7"),
    ])  # fmt: skip
    assert exposure.touched == [{2, 3, 4, 5}] and exposure.users == [{"bob", "eve"}]
    assert sorted((each.job, each.lost_seconds, each.incident) for each in exposure.lost) == [
        (3, 800.0, 0),
        (5, 1800.0, 0),
        (6, 800.0, None),
    ]


def test_rates_and_mttf() -> None:
    few, enough = Rate(name="a", count=4, node_days=1000), Rate(name="b", count=11, node_days=3105)
    assert few.per_1000 is None and few.interval is None and mttf(few, [64]) == []
    assert enough.interval is not None
    assert (enough.interval.low, enough.interval.high) == pytest.approx((1.77, 6.34), abs=0.01)
    (of_64,) = mttf(enough, [64])  # fleet-analytics, section 10: one in 4.4 days (2.5-8.8)
    assert of_64.hours / 24 == pytest.approx(4.41, abs=0.01)
    assert (of_64.interval.low / 24, of_64.interval.high / 24) == pytest.approx((2.46, 8.84), abs=0.02)


def test_a_report_of_one_node() -> None:
    versions = (VersionSeen(since_unix=BEGIN, driver="570", checks="a"), VersionSeen(since_unix=T, driver="580", checks="b"))
    days = [job(n, BEGIN + n * DAY, BEGIN + (n + 0.5) * DAY, user=f"u{n}") for n in range(60)]
    found = report(inputs(record(drained(T), resumed(T + HOUR), versions=versions)), days, frame())
    (figures,) = found.classes
    assert figures.rate.count == 1 and figures.rate.node_days == pytest.approx(60) and figures.in_jobs.count == 1
    assert figures.in_jobs.node_days == pytest.approx(30, abs=0.5) and [c.name for c in figures.causes] == ["xid"]
    assert found.touched == ((10,),) and found.users == (1,)
    assert found.months[0].changes == ("check set a to b on 1 nodes", "driver 570 to 580 on 1 nodes")
    assert not found.by_events and found.availability.fault_seconds == HOUR
    assert found.unrecorded == () and not found.card.enough


def test_a_node_without_a_record_is_named_and_in_no_rate() -> None:
    events = (NodeOut(node="n2", begin_unix=T, end_unix=T + HOUR, whose=Whose.FAULT, reason="Not responding", down=True),)
    found = report(inputs(record(), events=events, owned=("n1", "n2")), [job(1, BEGIN, NOW)], frame())
    assert found.unrecorded == ("n2",) and found.classes[0].rate.count == 0 and [i.node for i in found.incidents] == ["n2"]
    assert found.by_events and found.availability.owned_seconds == 2 * (NOW - BEGIN)
