"""Each file that fairlead keeps, as a newer release would write it: refused in one line, or read by the rule of decision 56.

In both cases no byte of it is lost. A module that defines a new format needs a row here, or a reason why it needs none.
"""

from __future__ import annotations

import ast
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead import config
from fairlead.config.driver_lock_file import load_lock
from fairlead.controller.controller_release import older, read_note
from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_folder import from_folder
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.job_store import JobStore
from fairlead.controller.records_folder import read_folder
from fairlead.controller.service_files import records_of
from fairlead.daemon.requests.audit_trail import Trail
from fairlead.daemon.requests.spool import Requests
from fairlead.drains.ledger import Ledger
from fairlead.errors import FairleadError
from fairlead.history.memory import History
from fairlead.jobs.jobstats_payload import encoded, is_own
from fairlead.jobs.usage_record import BadRecord
from fairlead.jobs.usage_record import decoded as usage_record
from fairlead.measure.results_store import ResultStore
from fairlead.model.verdict import parse_line
from fairlead.nccl.measured_result import decode as nccl_result
from fairlead.policy.policy_state import PolicyState
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.selftest.report_file import read_report

PACKAGE = Path(__file__).resolve().parents[2] / "agent/fairlead"


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def raised(path: Path) -> Path:
    """Give a database the schema number of a release to come."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    return path


def made(path: Path, make: Callable[[], Any]) -> Path:
    make().close()
    return raised(path)


def store(kind: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        with kind(str(folder), write=True) as opened:
            path = Path(opened.path)
        return raised(path)

    return make


def used(kind: Any) -> Callable[[Path], object]:
    def use(folder: Path) -> None:
        with kind(str(folder), write=True):
            pass

    return use


#: (the module of the format, what a newer release has written, what reads it, what is said)
REFUSED: list[tuple[str, Callable[[Path], Path], Callable[[Path], object], str]] = [
    (
        "config.document",
        lambda f: write(f, "node.json", '{"schema": 2, "node": "n1", "generation": 1}'),
        lambda f: config.load_document(str(f / "node.json")),
        "not readable by this version",
    ),
    (
        "config.document",
        lambda f: write(f, "site.toml", "schema = 2\n"),
        lambda f: config.load_site(str(f / "site.toml")),
        "schema: must be 1",
    ),
    (
        "config.driver_lock_file",
        lambda f: write(f, "fairlead.lock", "schema = 2\n[sets]\n"),
        lambda f: load_lock(str(f / "fairlead.lock")),
        "2 is not readable by this version",
    ),
    ("controller.job_store", store(JobStore), used(JobStore), "was written by a newer fairlead"),
    ("controller.event_store", store(EventStore), used(EventStore), "was written by a newer fairlead"),
    ("controller.fleet_store", store(FleetStore), used(FleetStore), "was written by a newer fairlead"),
    (
        "controller.fleet_folder",
        lambda f: write(f, "format", "fleet-folder/2\n"),
        lambda f: from_folder(str(f)),
        'is "fleet-folder/2"',
    ),
    (
        "measure.results_store",
        lambda f: made(f / "accept.sqlite", lambda: ResultStore(str(f / "accept.sqlite"), make=True)),
        lambda f: ResultStore(str(f / "accept.sqlite"), make=True),
        "written by another version of fairlead",
    ),
    (
        "provision.maintain.maintenance_journal",
        lambda f: made(f / "maintain.db", lambda: Journal(str(f / "maintain.db"))),
        lambda f: Journal(str(f / "maintain.db")),
        "schema 99, this fairlead writes 1",
    ),
    (
        "nccl.measured_result",
        lambda f: write(f, "result.json", '{"schema": "nccl-result/2"}'),
        lambda f: nccl_result((f / "result.json").read_bytes(), "result.json"),
        "nccl-result",
    ),
    (
        "selftest.selftest_report",
        lambda f: write(f, "report.json", '{"schema": 2}'),
        lambda f: read_report(str(f / "report.json")),
        "not a report of schema 1",
    ),
    (
        "model.verdict",
        lambda f: write(f, "verdict", "2\tok\t1\t1\t-\n"),
        lambda f: parse_line((f / "verdict").read_text()),
        "verdict: ",
    ),
    (
        "jobs.usage_record",
        lambda f: write(f, "1-1.json", '{"schema":"job-record/2","job":1}\n'),
        lambda f: usage_record((f / "1-1.json").read_bytes()),
        'has the schema "job-record/2"',
    ),
]


def content(path: Path) -> object:
    if not path.read_bytes().startswith(b"SQLite format 3"):
        return path.read_bytes()
    with sqlite3.connect(path) as db:
        found = (*db.iterdump(), db.execute("PRAGMA user_version").fetchone()[0])
    db.close()
    return found


@pytest.mark.parametrize(("module", "make", "read", "said"), REFUSED, ids=[f"{i}-{row[0]}" for i, row in enumerate(REFUSED)])
def test_a_newer_file_is_refused_in_one_line_and_stays(
    tmp_path: Path, module: str, make: Callable[[Path], Path], read: Callable[[Path], object], said: str
) -> None:
    path = make(tmp_path)
    before = content(path)
    with pytest.raises((FairleadError, BadRecord)) as found:
        read(tmp_path)
    assert said in str(found.value) and "\n" not in str(found.value)
    assert content(path) == before


def test_the_state_on_a_node_is_read_by_the_rule(tmp_path: Path) -> None:
    """The agent has to start with it. More: tests/drains/test_ledger.py and tests/history/test_newer_history.py."""
    (tmp_path / "run").mkdir()
    entry = {"node": "n1", "phase": "drained", "token": {"check": "xid", "token": "abcdef012345", "summary": "x"}, "since": 1.0}
    text = json.dumps({"schema": 2, "sequence": 1, "entry": {**entry, "colour": "red"}})
    path = write(tmp_path, "ledger.json", text)
    ledger = Ledger(str(tmp_path), str(tmp_path / "run"), node="n1")
    assert (found := ledger.load()) is not None and found.token.token == "abcdef012345"
    ledger.save(None)
    assert (tmp_path / f"{path.name}.schema2").read_text() == text
    made(tmp_path / "history.sqlite", lambda: History(str(tmp_path), "b"))
    assert "it is kept as" in History(str(tmp_path), "b").trouble


def test_a_request_of_a_newer_command_is_refused_and_its_file_stays(tmp_path: Path) -> None:
    text = '{"kind":"ack","id":"00000000","schema":2,"evidence":["x#y"]}'
    path = write(tmp_path, "requests/1-x.json", text)
    path.chmod(0o600)
    (tmp_path / "run").mkdir()
    trail = Trail(str(tmp_path), str(tmp_path / "run"))
    requests = Requests(str(tmp_path), str(tmp_path / "run"), trail)
    assert requests.take(PolicyState(), History(str(tmp_path), "b"), "b") == PolicyState()
    assert [p.read_text() for p in path.parent.iterdir()] == [text]
    assert [entry.what for entry in trail.read()] == ["request refused"]


def test_lines_of_a_newer_audit_trail_are_kept(tmp_path: Path) -> None:
    """The trail is only ever appended to. Keys that this release does not know do no harm."""
    line = '{"unix":1.0,"id":"a","what":"drained","who":"agent","colour":"red","outcome":"done"}\n'
    path = write(tmp_path, "audit.jsonl", line)
    trail = Trail(str(tmp_path), str(tmp_path / "run"))
    assert [entry.what for entry in trail.read()] == ["drained"]
    trail.agent("resumed")
    assert path.read_text().startswith(line)


def test_records_of_nodes_are_named_and_left_out(tmp_path: Path) -> None:
    mistakes: list[str] = []
    files = {"service-record.json": b'{"schema":"service-record/2","node":"n1"}\n'}
    assert records_of("n1", files, 0.0, mistakes) == [] and 'has the schema "service-record/2"' in mistakes[0]
    write(tmp_path, "jobs.psv", "")
    path = write(tmp_path, "1-1.json", '{"schema":"job-record/2","job":1}\n')
    try:
        troubles = str(read_folder(str(tmp_path)))
    except FairleadError as e:
        troubles = str(e)
    assert path.read_text() and troubles


def test_the_comment_of_a_newer_controller_is_not_replaced() -> None:
    assert is_own(encoded({"total_time": 1, "gpus": 1, "fl": {"v": 1, "def": "busy/1"}}))
    assert not is_own(encoded({"total_time": 1, "gpus": 1, "fl": {"v": 2, "def": "busy/2"}}))


@pytest.mark.parametrize(
    ("text", "is_older"),
    [
        ('{"schema":2,"version":"9.0.0","more":1}', False),
        ('{"version":"0.0.9"}', True),
        ("not json", False),
        ('{"version":"x"}', False),
    ],
)
def test_the_note_of_the_controllers_release(tmp_path: Path, text: str, is_older: bool) -> None:
    write(tmp_path, "controller-release.json", text)
    found = read_note(str(tmp_path))
    assert found is not None and older(found) is is_older


#: Formats without a row above, each with the reason.
NOT_KEPT = {
    "fleet.fleet_events": "names the form of an event that is sent; the queue that keeps it has a row",
    "topology.binding.published_files": "lies in /run, and each agent writes it anew when it starts",
    "jobs.busy_definition": "names a definition in a usage record, whose schema has a row",
    "fleet.service_record": "test_records_of_nodes_are_named_and_left_out",
    "drains.ledger": "test_the_state_on_a_node_is_read_by_the_rule",
    "history.sqlite_file": "test_the_state_on_a_node_is_read_by_the_rule",
    "policy.state_requests": "test_a_request_of_a_newer_command_is_refused_and_its_file_stays",
    "controller.controller_release": "test_the_note_of_the_controllers_release",
}
OTHER_CONSTANTS = {"host.rpm_header", "host.software", "provision.node_python"}  # a VERSION that is no format of fairlead
FORMATS = {"SCHEMA", "FORMAT", "WIRE_VERSION", "VERSION", "DEFINITION"}


def test_every_format_has_a_row() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            if names & FORMATS:
                found.add(".".join(path.relative_to(PACKAGE).with_suffix("").parts))
    assert found - OTHER_CONSTANTS == {row[0] for row in REFUSED} | set(NOT_KEPT) | {"jobs.jobstats_payload"}
