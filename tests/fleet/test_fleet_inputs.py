"""Inputs that do not fit together: clocks, renamed and rebuilt nodes, two schemas, sacct that is cut off, hostile records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.controller.fleet_folder import from_folder, jobs_in
from fairlead.controller.service_files import records_of
from fairlead.errors import DataError, InputMissing
from fairlead.fleet.fleet_report import report
from fairlead.fleet.machines import fleet_of
from fairlead.fleet.node_events import NodeOut, Whose, out_of_service, whose
from fairlead.fleet.service_merge import merged, since
from fairlead.fleet.service_record import BadServiceRecord, ServiceRecord, VersionSeen, decoded, encoded
from tests.fleet.made_records import BEGIN, DAY, HOUR, NOW, drained, frame, history, inputs, reason, record, resumed
from tests.fleet.recorded import write_folder, write_records
from tests.fleet.simulated_year import year

T = BEGIN + 10 * DAY


def test_a_clock_that_differs_is_corrected_by_slurms() -> None:
    entry = drained(T + 2 * HOUR, token="abcdefabcdef")
    slurms = NodeOut(node="n1", begin_unix=T, end_unix=None, whose=Whose.FAULT, reason=entry.args["reason"], token="abcdefabcdef")
    fleet = fleet_of([record(entry)], (slurms,), NOW)
    assert fleet.troubles == ("n1: its clock is 7200 s ahead of slurmctld's by 1 drains: it is corrected",)
    assert fleet.machines[0].record.entries[0].unix == T
    assert len(history(record(entry), events=(slurms,)).incidents) == 1, "counted twice"


def test_a_renamed_node_is_one_machine() -> None:
    before = record(drained(T), resumed(T + HOUR), written_unix=T + DAY, watched=((BEGIN, T + DAY),))
    after = record(drained(T), resumed(T + HOUR), drained(T + 9 * DAY), node="n9", watched=((BEGIN, NOW),))
    fleet = fleet_of([after, before], (), NOW)
    assert [(m.node, m.key) for m in fleet.machines] == [("n9", "m1")]
    assert "n9: was renamed: n1 then n9" in fleet.troubles[0]
    assert [i.node for i in history(before, after).incidents] == ["n1", "n9"]


def test_a_rebuilt_node_is_two_machines() -> None:
    old = record(drained(T), resumed(T + HOUR), written_unix=T + DAY, watched=((BEGIN, T + DAY),))
    new = record(drained(T + 20 * DAY), machine="m2", watched=((T + 15 * DAY, NOW),))
    fleet = fleet_of([old, new], (), NOW)
    assert [m.key for m in fleet.machines] == ["m1", "m2"]
    assert fleet.troubles == ("n1: was rebuilt on another machine: 2 machines had this name, and each is counted alone",)
    assert [i.machine for i in history(old, new).incidents] == ["m1", "m2"]


def test_entries_of_the_future_are_left_out_and_named() -> None:
    fleet = fleet_of([record(drained(NOW + DAY), drained(T))], (), NOW)
    assert len(fleet.machines[0].record.entries) == 1 and "1 entries are from the future" in fleet.troubles[0]


def test_an_older_agent_and_a_record_of_the_same_drain_count_once(tmp_path: Path) -> None:
    entry = drained(T)
    own = tmp_path / "nodes/n1"
    own.mkdir(parents=True)
    (own / "now.json").write_bytes(encoded(record(entry)))
    line = {
        "unix": T,
        "id": entry.id,
        "what": "drained",
        "who": "agent",
        "args": {"reason": entry.args["reason"]},
        "outcome": "done",
    }
    (own / "audit.jsonl").write_text(json.dumps(line) + '\n{"unix": 17\n')
    (own / "other.json").write_text('{"schema":"service-record/7","node":"n1"}\n')
    found = from_folder(str(tmp_path))
    assert len(history(*found.records).incidents) == 1
    assert any('has the schema "service-record/7", and this fairlead reads "service-record/1"' in t for t in found.troubles)
    assert any("1 line of its audit trail left out" in t for t in found.troubles)


def test_sacct_that_is_cut_off_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "f", year(4))
    whole = (folder / "jobs.psv").read_bytes()
    (folder / "jobs.psv").write_bytes(whole[: len(whole) // 2])
    mistakes: list[str] = []
    jobs = list(jobs_in(str(folder), mistakes))
    assert jobs and mistakes == ["jobs.psv: the last line has no end: the output was cut off, and this line is not counted"]
    (folder / "jobs.psv").write_bytes(b"")
    assert list(jobs_in(str(folder), mistakes)) == [] and "is empty" in mistakes[-1]


def test_jobs_that_end_early_end_the_exposure() -> None:
    """Time of which no job is known is not time without jobs."""
    from fairlead.fleet.job_exposure import FleetJob

    jobs = [FleetJob(job=1, user="a", state="COMPLETED", nodes=("n1",), begin_unix=BEGIN, end_unix=BEGIN + 5 * DAY)]
    found = report(inputs(record(drained(T))), jobs, frame())
    assert any("jobs are missing for the last 55 days" in t for t in found.troubles)
    assert found.classes[0].in_jobs.node_days == pytest.approx(5, abs=0.1) and found.classes[0].in_jobs.count == 0
    none = report(inputs(record(drained(T))), [], frame())
    assert (
        any("no job is known" in t for t in none.troubles) and none.classes[0].in_jobs.node_days == 0 and not none.lemons.lemons
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "torn"),
        (b'{"schema":"service-record/1","node":"n1","written_unix":1', "torn"),
        (b'{"schema":"service-record/1","node":"../etc","written_unix":1}', "not a NodeName"),
        (b'{"schema":"service-record/1","node":"n1","written_unix":"now"}', "not a service record"),
        (b'{"schema":"service-record/1","node":"n1","written_unix":1e300}', "not a service record"),
        (b'{"schema":"service-record/1","node":"n1","written_unix":1,"watched":[[5,1]]}', "ends before it begins"),
        (b'{"schema":"service-record/1","node":"n1","written_unix":1,"entries":"x"}', "not a service record"),
        (b"[" * 100_000 + b"}", "not a service record"),
        (b'{"schema":"\\u001b[2J"}', "has the schema"),
    ],
)
def test_what_is_no_record(text: bytes, words: str) -> None:
    with pytest.raises(BadServiceRecord, match=words) as said:
        decoded(text)
    assert str(said.value).isprintable()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_named(data: bytes) -> None:
    mistakes: list[str] = []
    found = records_of("n1", {"a.json": data, "audit.jsonl": data, "status.json": data}, NOW, mistakes)
    assert all(r.node == "n1" for r in found) and all(line.isprintable() for line in mistakes) and (found or mistakes)


def test_a_hostile_node_says_nothing_of_another_and_shows_no_escape_sequence() -> None:
    mistakes: list[str] = []
    assert records_of("n1", {"a.json": encoded(record(node="n2"))}, NOW, mistakes) == [] and "is of the node n2" in mistakes[0]
    evil = replace(
        record(drained(T, jobs="1")), node_class="\x1b[2J\nx", versions=(VersionSeen(since_unix=1, driver="\x1b]0;x"),)
    )
    (found,) = records_of("n1", {"a.json": encoded(evil)}, NOW, [])
    assert found.node_class.isprintable() and found.versions[0].driver.isprintable()


ENTRIES = st.lists(
    st.sampled_from([drained(T + n * HOUR) for n in range(6)] + [resumed(T + n * HOUR + 60) for n in range(6)]), max_size=8
)


@st.composite
def some_records(draw: st.DrawFn) -> ServiceRecord:
    begin = BEGIN + draw(st.integers(0, 20)) * DAY
    end = begin + draw(st.integers(0, 20)) * DAY
    return record(*draw(ENTRIES), written_unix=end, watched=((begin, end),), values={"A1": {"x": ((int(end // DAY), 1.0),)}})


@given(some_records(), some_records(), some_records())
def test_records_are_merged_in_any_order_and_any_number_of_times(a: ServiceRecord, b: ServiceRecord, c: ServiceRecord) -> None:
    once = merged(merged(a, b), c)
    assert merged(once, a) == once and merged(once, once) == once
    other = merged(merged(c, b), a)
    assert (other.watched, other.entries, other.values, other.cards) == (once.watched, once.entries, once.values, once.cards)
    assert decoded(encoded(once)) == once and since(once, 0.0) == once


def test_a_folder_of_another_format_and_none(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        from_folder(str(tmp_path))
    write_records(tmp_path, [record()])
    assert len(from_folder(str(tmp_path)).records) == 1
    (tmp_path / "nodes/not a node").mkdir()
    (tmp_path / "groups.psv").write_text("n1|switch s1\nrubbish\n")
    found = from_folder(str(tmp_path))
    assert found.groups == {"n1": ("switch s1",)} and len(found.troubles) == 2
    (tmp_path / "format").write_text("fleet-folder/9\n")
    with pytest.raises(DataError, match="fleet-folder/9"):
        from_folder(str(tmp_path))


HEAD = "NodeName|TimeStart|TimeEnd|State|Reason\n"


def test_slurms_events() -> None:
    mistakes: list[str] = []
    rows = [
        HEAD,
        f"n1|100|200|DRAIN|{reason()}\n",
        "n[1-2]|300|0|DOWN*|Not responding\n",
        "|400|500||Cluster is down\n",
        "n3|500|600|DRAIN|fan | noisy\n",
        "n3|650|700|IDLE+POWERED_DOWN|Powered down after SuspendTimeout\n",
        "n4|x|600|DRAIN|y\n",
        "n5|700",
    ]
    found = out_of_service(rows, mistakes)
    assert [(e.node, e.begin_unix, e.end_unix, e.whose, e.down) for e in found] == [
        ("n1", 100.0, 200.0, Whose.FAULT, False),
        ("n1", 300.0, None, Whose.FAULT, True),
        ("n2", 300.0, None, Whose.FAULT, True),
        ("n3", 500.0, 600.0, Whose.PERSON, False),
    ]
    assert found[0].token == "aaaaaaaaaaa1" and found[3].reason == "fan | noisy"
    assert len(mistakes) == 2 and "line 7" in mistakes[0] and "line 8 is cut short" in mistakes[1]
    assert out_of_service(["NodeName|TimeStart\n"], mistakes) == [] and out_of_service([], mistakes) == []


@pytest.mark.parametrize(
    ("state", "text", "by"),
    [
        ("DRAIN", "fairlead:maintain:aaaaaaaaaaa1 driver", Whose.MAINTENANCE),
        ("MAINT", "", Whose.MAINTENANCE),
        ("DRAIN", "fairlead:manual:aaaaaaaaaaa1 riser", Whose.PERSON),
        ("DRAIN", reason() + " : Not responding", Whose.FAULT),
        ("DOWN*", "Not responding", Whose.FAULT),
        ("DRAIN", "Kill task failed", Whose.FAULT),
        ("DRAIN", "bad fan", Whose.PERSON),
        ("DRAIN", "", Whose.PERSON),
    ],
)
def test_whose_an_event_is(state: str, text: str, by: Whose) -> None:
    assert whose(state, text) is by
