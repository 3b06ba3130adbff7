"""A copy has everything, comes back whole, and brings no erased user back. An erased user is in no file of the controller."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.controller.all_stores import Folders, back_up, erase_user, restore
from fairlead.controller.event_store import EventStore
from fairlead.controller.fleet_store import FleetStore
from fairlead.controller.idle_journal import IdleJournal
from fairlead.controller.job_store import JobStore
from fairlead.errors import DataError, InputMissing, NodeBusy, UsageError
from fairlead.fleet.fleet_events import FleetEvent
from fairlead.fleet.node_events import NodeOut, Whose
from fairlead.fleet.service_record import ServiceEntry
from fairlead.jobs.idle_stages import IdleEvent
from fairlead.jobs.usage_record import encoded
from tests.fleet.made_records import BEGIN, DAY, record
from tests.jobs import job_reports
from tests.jobs.job_reports import record_of, run_of

ROOT = Path(__file__).resolve().parents[2]
NAME = "secretname"
FILES = ("events.sqlite", "fleet.sqlite", "jobs.sqlite")
EVENT = FleetEvent(kind="drained", node="n1", at_unix=BEGIN, by="person", cause="manual", who=NAME, why=f"{NAME}: fan",
                   summary="Xid 79", jobs=(17, 99), token="aaaaaaaaaaa1")  # fmt: skip
LATER = job_reports.BEGIN + 1000 * 3600.0


def entries() -> tuple[ServiceEntry, ...]:
    """A drain that touched the user's job 17 and another one, and what the user did as an admin."""
    reason = f"fairlead:xid:aaaaaaaaaaa1 Xid 79 (seen by {NAME})"
    drained = ServiceEntry(unix=BEGIN + DAY, id="d1", what="drained", who="agent", args={"jobs": "17,99", "reason": reason})
    why = f"GPU replaced by {NAME}"
    clear = ServiceEntry(unix=BEGIN + 2 * DAY, id="c1", what="clear", who=NAME, args={"devices": "x"}, why=why)
    return drained, clear


@pytest.fixture
def stores(tmp_path: Path) -> Folders:
    """User 1001 is in all of them."""
    store, idle, events = (str(tmp_path / name) for name in ("store", "idle", "events"))
    with JobStore(store, write=True) as jobs:
        other = run_of(job=99, label="99", uid=1002, user="bob")
        jobs.add_runs([run_of(user=NAME), other], 100)
        jobs.put_records(run_of(), [record_of()], [])
    with FleetStore(store, write=True) as fleet:
        fleet.add([record(*entries())], 0.0)
        fleet.add_events([NodeOut(node="n1", begin_unix=5, end_unix=9, whose=Whose.PERSON, reason=f"{NAME}: bad fan")], 0.0)
        fleet.keep({"states": {"n1": ["DRAIN", f"{NAME}: bad fan"]}})
    journal = IdleJournal(idle)
    for user in (NAME, "bob"):
        journal.append(IdleEvent(kind="observed", at_unix=BEGIN, case="17@5", user=user))
    with EventStore(events, write=True) as queue:
        queue.add([(EVENT, True)], {}, BEGIN, {"drained": ["mail"]})
        (sent,) = queue.listed(9)
        queue.tried(sent, "delivered", 1, 0.0, f"ticket 7 for {NAME}")
    return Folders(store=store, idle=idle, events=events)


def options(stores: Folders) -> list[str]:
    return ["collect", "--store", stores.store, "--idle-state", stores.idle, "--events-state", stores.events]


def has_name(stores: Folders) -> list[str]:
    paths = [path for folder in (stores.store, stores.idle, stores.events) for path in Path(folder).rglob("*") if path.is_file()]
    return [path.name for path in paths if NAME.encode() in path.read_bytes()]


def test_an_erased_user_is_in_no_file_and_does_not_come_back(stores: Folders) -> None:
    assert {name.partition("-")[0] for name in has_name(stores)} == {*FILES, "idle"}
    done = erase_user(stores, 1001, LATER)
    assert (done.runs, done.rows, done.lines, done.events, done.named) == (1, 2, 1, 1, True)
    with FleetStore(stores.store, write=True) as fleet:  # the node sends its last 30 days again, and Slurm its event
        fleet.add([record(*entries())], 0.0)
        fleet.add_events([NodeOut(node="n1", begin_unix=5, end_unix=9, whose=Whose.PERSON, reason=f"{NAME}: bad fan")], 0.0)
        (found,) = fleet.records()
        assert [e.who for e in found.entries] == ["agent", "erased"] and found.entries[0].args["jobs"] == "99"
        assert found.entries[0].args["reason"] == "fairlead:xid:aaaaaaaaaaa1 Xid 79 (seen by erased)"
        assert found.entries[1].why == "GPU replaced by erased", "the repair stays confirmed"
        assert fleet.events()[0].reason == "erased: bad fan"
        fleet.forget_erased(LATER + 32 * DAY)
        assert fleet.erased() == ()
        fleet._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert has_name(stores) == []
    with JobStore(stores.store, write=False) as jobs:
        assert jobs.runs_of("99") and not jobs.runs_of("17")
    assert [event.user for event in IdleJournal(stores.idle).read()] == ["erased", "bob"]
    with EventStore(stores.events, write=True) as queue:
        assert queue.add([(EVENT, True)], {}, BEGIN, {"drained": ["mail"]})[0] == 0, "it is not sent again"
        (left,) = queue.listed(9)
        assert (left.event.who, left.event.why, left.event.jobs) == ("erased", "erased: fan", (99,))
        assert (left.said, left.state, left.event.summary) == ("ticket 7 for erased", "delivered", "Xid 79")


def test_the_name_of_someone_else_and_other_words_stay(stores: Folders) -> None:
    erase_user(stores, 1002, LATER)
    with FleetStore(stores.store, write=False) as fleet:
        (found,) = fleet.records()
    assert found.entries[0].args["jobs"] == "17" and found.entries[1].who == NAME


def test_a_copy_comes_back_whole(stores: Folders, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    assert back_up(stores, copy).done == ["jobs.sqlite", "fleet.sqlite", "events.sqlite", "idle"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "copy").rglob("*"))
    with FleetStore(stores.store, write=True) as fleet:
        fleet.add([record(node="n7", machine="m7")], 0.0)
    (tmp_path / "store" / "jobs.sqlite").write_bytes(b"no database" * 100)
    Path(stores.idle, os.listdir(stores.idle)[0]).unlink()
    done = restore(stores, copy)
    assert done.done == ["jobs.sqlite", "fleet.sqlite", "idle"] and (done.absent, done.left) == ([], ["events.sqlite"])
    with JobStore(stores.store, write=False) as jobs, FleetStore(stores.store, write=False) as fleet:
        assert jobs.records(run_of()) == (record_of(),) and [each.node for each in fleet.records()] == ["n1"]
    assert len(IdleJournal(stores.idle).read()) == 2
    (aside,) = (tmp_path / "store").glob("jobs.sqlite.*.damaged")
    assert aside.read_bytes().startswith(b"no database"), "what was there is kept"
    with JobStore(copy, write=False) as jobs:
        assert jobs.runs_of("17"), "a copy can be read with --store"


def test_a_copy_brings_no_erased_user_back(stores: Folders, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    back_up(stores, copy)
    erase_user(stores, 1001, LATER)
    restore(stores, copy)
    with FleetStore(stores.store, write=True) as fleet:
        fleet.forget_erased(LATER + 32 * DAY)
        fleet._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert has_name(stores) == []
    with JobStore(stores.store, write=True) as jobs:
        assert jobs.add_runs([run_of(user=NAME)], 1) == 0 and jobs.runs_of("99")


def test_a_damaged_queue_of_events_comes_from_the_copy(stores: Folders, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    back_up(stores, copy)
    spoiled(Path(stores.events, "events.sqlite"), "pages")
    done = restore(stores, copy)
    assert "events.sqlite" in done.done and done.left == []
    with EventStore(stores.events, write=False) as queue:
        assert [each.state for each in queue.listed(9)] == ["delivered"]


@pytest.mark.parametrize("file", FILES)
def test_what_is_missing_is_named_and_the_rest_is_copied(
    stores: Folders, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(stores.of(file), file + suffix).unlink(missing_ok=True)
    words = options(stores)
    assert main([*words, "--backup", str(tmp_path / "copy")]) == 0
    assert f"not in the copy, because it is not there: {file}" in capsys.readouterr().err
    left = [name for name in FILES if name != file]
    assert sorted(path.name for path in (tmp_path / "copy").glob("*.sqlite")) == left
    assert main([*words, "--restore", str(tmp_path / "copy")]) == 0 and capsys.readouterr().err.count(file) == 1
    assert main([*words, "--erase-user", "1001"]) == 0


def spoiled(path: Path, how: str) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    if how == "rubbish":
        path.write_bytes(b"x" * 8192)
    elif how == "foreign":
        path.unlink()
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (a)")
    elif how == "newer":
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA user_version = 99")
    else:  # pages of a table are overwritten
        data = bytearray(path.read_bytes())
        data[4096 * 2 : 4096 * 3] = b"\xff" * 4096
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["rubbish", "foreign", "newer", "pages"])
@pytest.mark.parametrize("file", FILES)
def test_a_spoiled_store_keeps_no_other_from_the_copy(
    stores: Folders, tmp_path: Path, file: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older good copy stays, and a foreign file is never written."""
    copy = tmp_path / "copy"
    back_up(stores, str(copy))
    good, path = (copy / file).read_bytes(), Path(stores.of(file), file)
    spoiled(path, how)
    before = path.read_bytes()
    words = options(stores)
    assert main([*words, "--backup", str(copy)]) in (65, 69)
    said = capsys.readouterr()
    assert said.err.count("\n") == 1 and f"/{file}: " in said.err
    assert (copy / file).read_bytes() == good and not list(copy.glob("*.tmp"))
    assert {line.rpartition("/")[2] for line in said.out.split()} == {*FILES, "idle"} - {file}
    if how in ("foreign", "newer"):
        assert main([*words, "--erase-user", "1001"]) == 65 and path.read_bytes() == before


@pytest.mark.parametrize("how", ["rubbish", "foreign", "newer", "pages"])
@pytest.mark.parametrize("file", FILES)
def test_a_spoiled_copy_changes_nothing(stores: Folders, tmp_path: Path, file: str, how: str) -> None:
    copy = tmp_path / "copy"
    back_up(stores, str(copy))
    spoiled(copy / file, how)
    with JobStore(stores.store, write=True) as jobs:
        jobs.add_runs([run_of(job=20, label="20")], 1)
    with pytest.raises(DataError, match=file):
        restore(stores, str(copy))
    with JobStore(stores.store, write=False) as jobs:
        assert jobs.runs_of("20")


def test_words_that_name_no_folder(stores: Folders, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    with pytest.raises(UsageError, match="name a folder"):
        back_up(stores, str(tmp_path / "jobs.sqlite"))
    with pytest.raises(InputMissing, match="there is no store"):
        back_up(Folders(store=none, idle=none, events=none), str(tmp_path / "copy"))
    with pytest.raises(InputMissing, match="has no copy"):
        restore(stores, none)


def test_a_copy_is_made_beside_a_writer_and_nothing_else_is(stores: Folders, tmp_path: Path) -> None:
    with JobStore(stores.store, write=True):
        assert len(back_up(stores, str(tmp_path / "copy")).done) == 4
        for act in (lambda: restore(stores, str(tmp_path / "copy")), lambda: erase_user(stores, 1001, LATER)):
            with pytest.raises(NodeBusy):
                act()
    journal = IdleJournal(stores.idle)
    with journal.alone():
        assert len(journal.read()) == 2


RESTORER = """
import sys
from fairlead.controller.all_stores import Folders, restore
print("begin", flush=True)
store, idle, events, copy = sys.argv[1:5]
restore(Folders(store=store, idle=idle, events=events), copy)
"""


@pytest.mark.heavy
def test_a_killed_restore_leaves_whole_stores(stores: Folders, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    back_up(stores, copy)
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}"}
    for step in range(8):
        command = [sys.executable, "-c", RESTORER, stores.store, stores.idle, stores.events, copy]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "begin\n"
        time.sleep(step * 0.01)  # each time at another step
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with JobStore(stores.store, write=True) as jobs, FleetStore(stores.store, write=True) as fleet:
            assert jobs.records(run_of()) == (record_of(),) and len(list(fleet.records())) == 1
    restore(stores, copy)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave files of root behind")
def test_root_leaves_no_file_of_its_own(stores: Folders, tmp_path: Path) -> None:
    """The account that collects must be able to open everything afterwards."""
    copy, folders = str(tmp_path / "copy"), (stores.store, stores.idle, stores.events)
    back_up(stores, copy)
    for folder in map(Path, folders):
        for path in (folder, *folder.iterdir()):
            os.chown(path, 65534, 65534)
    Path(stores.store, "fleet.sqlite").unlink()
    Path(stores.events, "events.sqlite").unlink()
    next(Path(stores.idle).glob("*.jsonl")).unlink()
    restore(stores, copy)
    erase_user(stores, 1001, LATER)
    assert {path.stat().st_uid for folder in folders for path in Path(folder).iterdir()} == {65534}


# -- a store of an earlier fairlead ------------------------------------------------------------------

#: jobs.sqlite as the first fairlead that collected made it (commit 76138960, schema 1).
SCHEMA_1 = """
CREATE TABLE run (job INTEGER, begin_unix INTEGER, label TEXT, uid INTEGER, user TEXT, account TEXT, partition TEXT,
  state TEXT, nodes TEXT, end_unix INTEGER, gpus INTEGER, cpus INTEGER, limit_seconds INTEGER,
  tries INTEGER NOT NULL DEFAULT 0, due_unix INTEGER, comment TEXT NOT NULL DEFAULT '', comment_due INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (job, begin_unix)) WITHOUT ROWID;
CREATE INDEX run_label ON run (label);
CREATE INDEX run_user ON run (uid, end_unix);
CREATE INDEX run_due ON run (due_unix) WHERE due_unix IS NOT NULL;
CREATE INDEX run_comment ON run (end_unix) WHERE comment_due = 1;
CREATE TABLE record (job INTEGER, begin_unix INTEGER, node TEXT, data BLOB, PRIMARY KEY (job, begin_unix, node)) WITHOUT ROWID;
CREATE TABLE aside (job INTEGER, begin_unix INTEGER, node TEXT, why TEXT, PRIMARY KEY (job, begin_unix, node, why)) WITHOUT ROWID;
CREATE TABLE kept (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 1;
"""


def schema_1(folder: Path, *, erased: bool = False) -> None:
    """Write a store of schema 1 with a run and a record of user 1001, or with the note that this user was erased."""
    folder.mkdir(exist_ok=True)
    run, kept = run_of(user=NAME), record_of()
    with closing(sqlite3.connect(folder / "jobs.sqlite")) as db:
        db.executescript(SCHEMA_1)
        if erased:
            db.execute("INSERT INTO kept VALUES ('erased 1001', ?)", (str(int(LATER)),))
        else:
            names = (run.job, run.begin_unix, run.label, run.uid, run.user, run.account, run.partition, run.state)
            rest = (",".join(run.nodes), run.end_unix, run.gpus, run.cpus, run.limit_seconds, 0, None, "", 0)
            db.execute(f"INSERT INTO run VALUES ({', '.join('?' * 17)})", (*names, *rest))
            db.execute("INSERT INTO record VALUES (?, ?, ?, ?)", (run.job, run.begin_unix, kept.node, encoded(kept)))
        db.commit()


def test_a_copy_of_an_earlier_fairlead_is_restored_and_read(
    stores: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema_1(tmp_path / "copy")
    with pytest.raises(DataError, match="older fairlead") as refused, JobStore(str(tmp_path / "copy"), write=False):
        pass
    assert "the next round of `fairlead collect` brings it up to date" in refused.value.hint
    assert main([*options(stores), "--restore", str(tmp_path / "copy")]) == 0
    with JobStore(stores.store, write=False) as jobs:
        (found,) = jobs.runs_of("17")
        assert found.run == run_of(user=NAME) and jobs.records(found.run) == (record_of(),)
        assert not jobs.runs_of("99"), "the copy takes the place of what was here"


def test_a_store_of_an_earlier_fairlead_is_replaced_and_its_erased_user_stays_erased(stores: Folders, tmp_path: Path) -> None:
    """fairlead was upgraded, and a copy is restored before the first round has brought the store up to date."""
    for path in Path(stores.store).glob("jobs.sqlite*"):
        path.unlink()
    schema_1(Path(stores.store), erased=True)
    schema_1(tmp_path / "copy")
    restore(stores, str(tmp_path / "copy"))
    with JobStore(stores.store, write=False) as jobs:
        assert jobs.erased() and not jobs.runs_of("17"), "the erased user is back"
