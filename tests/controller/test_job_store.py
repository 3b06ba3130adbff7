"""The store keeps what was written, has one writer, and survives a writer that is killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.controller.job_store import FILE, FOREIGN, JobStore
from fairlead.errors import DataError, HostError, InputMissing, NodeBusy
from fairlead.jobs.usage_merge import SetAside
from tests.jobs.job_reports import BEGIN, record_of, run_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    return JobStore(str(tmp_path), write=True)


def test_runs_and_records_come_back(store: JobStore, tmp_path: Path) -> None:
    run = run_of(3, label="16_2")
    assert store.add_runs([run, run_of(seconds=None, job=18)], 100) == 1
    store.put_records(
        run, [record_of("gpu001"), record_of("gpu002")], [SetAside(job=17, node="gpu003", why="is from the future")]
    )
    store.close()
    with JobStore(str(tmp_path), write=False) as again:
        (found,) = again.runs_of("16_2")
        assert found.run == run and again.runs_of("17") == [found]
        assert again.records(run) == (record_of("gpu001"), record_of("gpu002"))
        assert again.set_aside(run)[0].why == "is from the future"
        assert again.runs_of_array(16) == [found] and again.runs_of_user(1001, 5) == [found]
        assert again.runs_of_array(1) == [] == again.runs_of("x' OR 1=1 --")


def test_a_run_is_taken_up_once(store: JobStore) -> None:
    assert store.add_runs([run_of()], 100) == 1
    store.asked(run_of(), None, comment_due=True)
    assert store.add_runs([run_of()], 100) == 0
    assert store.due_runs(1000, 10) == []
    assert [each.tries for each in store.runs_to_comment(10)] == [1]


def test_another_run_of_a_requeued_job_is_another_run(store: JobStore) -> None:
    second = run_of(begin_unix=BEGIN + 7200, end_unix=BEGIN + 9000)
    store.add_runs([run_of(), second], 100)
    assert [each.run.begin_unix for each in store.runs_of("17")] == [BEGIN + 7200, BEGIN]


def test_a_comment_of_others_is_never_due_again(store: JobStore) -> None:
    store.add_runs([run_of()], 100)
    store.asked(run_of(), None, comment_due=True)
    store.commented(run_of(), FOREIGN)
    store.asked(run_of(), None, comment_due=True)
    assert store.runs_to_comment(10) == []


def test_only_one_process_writes(store: JobStore, tmp_path: Path) -> None:
    with pytest.raises(NodeBusy, match="another fairlead collect"):
        JobStore(str(tmp_path), write=True)
    JobStore(str(tmp_path), write=False).close()
    store.close()
    JobStore(str(tmp_path), write=True).close()


def test_a_reader_changes_nothing(store: JobStore, tmp_path: Path) -> None:
    with JobStore(str(tmp_path), write=False) as reader, pytest.raises(HostError, match="readonly"):
        reader.keep("cursor", "1")


def test_nobody_else_may_read_the_file(store: JobStore, tmp_path: Path) -> None:
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_retention(store: JobStore) -> None:
    store.add_runs([run_of()], 100)
    store.put_records(run_of(), [record_of()], [])
    assert store.prune(BEGIN) == 0
    assert store.prune(BEGIN + 3601) == 1
    assert store.counts() == {"runs": 0, "records": 0, "set_aside": 0, "waiting": 0}


def test_an_erased_user_leaves_nothing_and_is_not_taken_up_again(store: JobStore, tmp_path: Path) -> None:
    other = run_of(job=18, label="18", uid=1002, user="bob-the-other")
    store.add_runs([run_of(user="secretname"), other], 100)
    store.put_records(run_of(), [record_of()], [])
    assert store.erase_user(1001, BEGIN + 4000.0) == 1
    assert store.add_runs([run_of()], 100) == 0
    assert store.add_runs([run_of(begin_unix=BEGIN + 5000, end_unix=BEGIN + 6000)], 100) == 1
    assert store.runs_of("18")
    store.close()
    assert all(b"secretname" not in path.read_bytes() for path in tmp_path.iterdir())


def test_a_backup_is_a_store(store: JobStore, tmp_path: Path) -> None:
    store.add_runs([run_of()], 100)
    copy = tmp_path / "copy"
    copy.mkdir()
    with JobStore(str(tmp_path), write=False) as reader:
        reader.backup(str(copy / FILE))
    assert (copy / FILE).stat().st_mode & 0o777 == 0o600
    with JobStore(str(copy), write=False) as again:
        assert again.runs_of("17")
    with pytest.raises(HostError, match="No such file"):
        store.backup(str(tmp_path / "no/where"))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_newer_schema_is_refused(store: JobStore, tmp_path: Path) -> None:
    store.close()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    for write in (False, True):
        with pytest.raises(DataError, match="newer fairlead"):
            JobStore(str(tmp_path), write=write)


def test_a_store_of_an_earlier_fairlead_is_brought_up_to_date(store: JobStore, tmp_path: Path) -> None:
    store.add_runs([run_of()], 100)
    store.put_records(run_of(), [record_of("gpu001")], [])
    with store.changes() as db:
        for column in ("qos", "kind"):
            db.execute(f"ALTER TABLE run DROP COLUMN {column}")
        db.execute("PRAGMA user_version = 1")
    store.close()
    with pytest.raises(DataError, match="older fairlead"):
        JobStore(str(tmp_path), write=False)
    with JobStore(str(tmp_path), write=True) as again:
        (found,) = again.runs_of("17")
        assert found.run == run_of() and again.records(found.run) == (record_of("gpu001"),)
        again.add_runs([run_of(job=18, label="18", qos="high", kind="batch")], 100)
        assert [(each.run.qos, each.run.kind) for each in again.runs_of("18")] == [("high", "batch")]


def test_the_runs_of_a_time(store: JobStore) -> None:
    store.add_runs(
        [run_of(job=n, label=str(n), begin_unix=BEGIN + n * 100, end_unix=BEGIN + n * 100 + 50) for n in (1, 2, 3)], 100
    )
    for begin, end, jobs in ((150, 200, []), (149, 200, [1]), (150, 201, [2]), (0, 1000, [1, 2, 3])):
        assert [run.job for run in store.runs_between(BEGIN + begin, BEGIN + end)] == jobs
    assert store.first_end() == BEGIN + 150


def test_a_file_that_is_no_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputMissing):
        JobStore(str(tmp_path), write=False)
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(DataError, match="not a database"):
        JobStore(str(tmp_path), write=True)


WRITER = """
import sys
from fairlead.controller.job_store import JobStore
from tests.jobs.job_reports import record_of, run_of
with JobStore(sys.argv[1], write=True) as store:
    print("open", flush=True)
    for job in range(int(sys.argv[2]), 1 << 30):
        run = run_of(2, job=job, label=str(job))
        with store.changes() as db:
            pass
        store.add_runs([run], 100)
        store.put_records(run, [record_of("gpu001", job=job), record_of("gpu002", job=job)], [])
        store.asked(run, None, comment_due=True)
        print(job, flush=True)
"""


@pytest.mark.heavy
def test_a_killed_writer_leaves_whole_runs(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}"}
    chance, at = random.Random(1), 1
    for _ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(at)], env=env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        time.sleep(chance.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        said = [int(line) for line in process.stdout.read().split("\n") if line.isdigit()]
        process.wait()
        process.stdout.close()
        at = max([at - 1, *said]) + 1
        with JobStore(str(tmp_path), write=True) as store:
            for job in range(1, at):
                (each,) = store.runs_of(str(job))
                assert len(store.records(each.run)) == 2
            assert {each.run.job for each in store.runs_to_comment(1 << 30)} >= set(range(1, at))
        at += 1  # the run that was interrupted may be there
        with JobStore(str(tmp_path), write=True) as store, store.changes() as db:
            db.execute("DELETE FROM run WHERE job >= ?", (at - 1,))
            db.execute("DELETE FROM record WHERE job >= ?", (at - 1,))
        at -= 1
