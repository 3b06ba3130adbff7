"""The journal of maintenance: one unfinished run per node, one driver per run, a full disk, a damaged file."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from fairlead.cli import main
from fairlead.errors import DataError, HostError, InputMissing
from fairlead.provision.maintain.maintenance_journal import _TABLES, KEEP_RUNS, SPARE_BYTES, Journal, MaintenanceRun
from fairlead.provision.maintain.maintenance_report import report
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork

PLAN = MaintenancePlan(reason="new driver", floors={"main": 2})


def works(*names: str) -> list[NodeWork]:
    return [NodeWork(node=n, slurm=n) for n in names]


def begin(journal: Journal, *names: str) -> MaintenanceRun:
    return journal.begin(PLAN, works(*names), site="/etc/fairlead/site.toml", who="ann@adm1")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(str(tmp_path / "maintain.db"))
    yield made
    made.close()


def test_a_run_comes_back_as_it_was_put(journal: Journal, tmp_path: Path) -> None:
    run = begin(journal, "n1", "n2")
    work = run.works[0].at(MaintenanceStep.DRAINING, 5.0, "drain")
    journal.put(run.id, 0, work)
    other = Journal(str(tmp_path / "maintain.db"), write=False)
    found = other.run()
    assert found.works == (work, run.works[1]) and found.plan == PLAN and found.who == "ann@adm1"
    assert [(s.node, s.step) for s in other.log(run.id)] == [("n1", "draining")]
    assert [r.id for r in other.runs()] == [run.id]
    journal.end(run.id, "ended")
    with pytest.raises(InputMissing, match="no unfinished run"):
        other.run()
    assert other.run(run.id).state == "ended"
    other.close()


def test_a_node_is_in_one_unfinished_run(journal: Journal) -> None:
    first = begin(journal, "n1", "n2")
    second = begin(journal, "n2", "n3")
    assert [w.step for w in second.works] == [MaintenanceStep.SKIPPED, MaintenanceStep.QUEUED] and first.id in second.works[
        0
    ].detail
    journal.put(first.id, 1, first.works[1].at(MaintenanceStep.NOT_BEGUN, 1.0))
    assert begin(journal, "n2").works[0].step is MaintenanceStep.QUEUED
    assert report(second).nodes[0].condition == "untouched" and report(second).exit_code == 75


def test_reasons_that_runs_have_left(journal: Journal) -> None:
    run = begin(journal, "n1")
    failed = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.FAILED, text="a", mark="b", ended=2.0)
    journal.put(run.id, 0, failed)
    assert journal.earlier_reasons(["n1", "n2"]) == {"n1": frozenset({"a", "b"})}


def test_runs_that_ended_years_ago_go_and_unfinished_ones_stay(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, open_ = begin(journal, "gpu001"), begin(journal, "gpu002")
    journal.put(ended.id, 0, ended.works[0])
    journal.end(ended.id, "ended")
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 1099 * 86400)
    begin(journal, "gpu003")
    assert {run.id for run in journal.runs()} >= {ended.id, open_.id}
    monkeypatch.setattr(time, "time", lambda: clock() + 1101 * 86400)
    for number in range(KEEP_RUNS + 1):
        assert ended.id in {run.id for run in journal.runs()}, "as long as few runs have begun since"
        last = begin(journal, f"gpu{100 + number}")
    known = {run.id for run in journal.runs()}
    assert ended.id not in known and {open_.id, last.id} <= known
    assert journal._db.execute("SELECT count(*) FROM step WHERE run = ?", (ended.id,)).fetchone() == (0,)


def test_a_run_has_one_driver(journal: Journal, tmp_path: Path) -> None:
    run = begin(journal, "n1")
    other = Journal(str(tmp_path / "maintain.db"))
    with journal.driving(run.id), pytest.raises(HostError, match=f"driven by process {os.getpid()}"), other.driving(run.id):
        pass
    with other.driving(run.id):
        pass
    other.close()
    assert sorted(p.name for p in tmp_path.glob("*.lock")) == []


def test_what_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no journal"):
        Journal(str(tmp_path / "none"), write=False)
    (tmp_path / "bad").write_bytes(b"this is no database, and long enough to be seen as such" * 40)
    with pytest.raises(DataError, match="not a database"):
        Journal(str(tmp_path / "bad"))
    newer = Journal(str(tmp_path / "newer"))
    newer._db.execute("PRAGMA user_version = 9")
    newer.close()
    with pytest.raises(DataError, match="schema 9"):
        Journal(str(tmp_path / "newer"))


def test_the_keys_of_a_node_are_those_that_0_1_0_has_written(tmp_path: Path) -> None:
    kept = {"node": "n1", "slurm": "n1", "step": "waiting", "took": "fairlead:maintain:abc x", "room": True, "stands": 5.0}
    work = msgspec.json.decode(msgspec.json.encode(kept), type=NodeWork)
    assert (work.replaced_reason, work.floors_kept, work.drain_read_at) == ("fairlead:maintain:abc x", True, 5.0)
    assert kept.items() <= msgspec.to_builtins(work).items()
    journal = Journal(str(tmp_path / "m.db"))
    run = journal.begin(MaintenancePlan(reason="r"), [work], site="s", who="w")
    assert journal.run(run.id).works == (work,)


# -- a journal that was lost, in part or whole ---------------------------------------------------------

KILLED = """
import os, signal, sys
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork
journal = Journal(sys.argv[1])
run = journal.begin(MaintenancePlan(reason="new driver"), [NodeWork(node="n1", slurm="n1")], site="s", who="w")
journal.put(run.id, 0, run.works[0].at(MaintenanceStep.DRAINING, 5.0, "drain"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def beside(path: Path) -> list[str]:
    return sorted(p.name.removeprefix(path.name) for p in path.parent.glob(f"{path.name}-*"))


def test_what_a_killed_run_has_put_is_in_the_one_file(tmp_path: Path) -> None:
    """Nothing beside it is needed: not a write-ahead log that somebody did not copy, or has swept away."""
    path = tmp_path / "m.db"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], env=env, check=False).returncode == -signal.SIGKILL
    for end in beside(path):
        (tmp_path / f"m.db{end}").unlink()
    with closed(Journal(str(path))) as journal:
        assert [w.step for w in journal.run().works] == [MaintenanceStep.DRAINING]


def test_an_empty_journal_is_a_lost_one(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    with closed(Journal(str(path))) as journal:
        begin(journal, "n1")
    os.truncate(path, 0)
    for write in (True, False):
        with pytest.raises(DataError, match=r"empty .0 bytes.: its runs are lost") as told:
            Journal(str(path), write=write)
        assert f"mv {path} {path}.lost" in told.value.hint and told.value.exit_code == 65
    path.rename(f"{path}.lost")
    with closed(Journal(str(path))) as journal:
        assert journal.runs() == ()
    assert not list(tmp_path.glob("m.db.new.*"))


def old_journal(path: Path) -> sqlite3.Connection:
    """As fairlead 0.1.0 has it while a run is on: all of it in the write-ahead log."""
    with closed(Journal(str(path))) as journal:
        run = begin(journal, "n1")
    rows = sqlite3.connect(path).execute("SELECT * FROM run").fetchall()
    path.unlink()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(f"BEGIN;{_TABLES}PRAGMA user_version = 1;COMMIT;")
    db.execute("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?, ?)", rows[0])
    assert run.id == rows[0][0]
    return db


def test_a_journal_of_0_1_0_without_its_log_is_a_lost_one(tmp_path: Path) -> None:
    db = old_journal(tmp_path / "m.db")
    shutil.copy(tmp_path / "m.db", tmp_path / "copy.db")
    with pytest.raises(DataError, match=r"no tables.*copy.db-wal of fairlead 0.1.0 is lost"):
        Journal(str(tmp_path / "copy.db"), write=False)
    shutil.copy(tmp_path / "m.db-wal", tmp_path / "copy.db-wal")
    with closed(Journal(str(tmp_path / "copy.db"))) as journal:
        assert len(journal.runs()) == 1
        assert not (tmp_path / "copy.db-wal").exists()  # from now on it is in the one file
    db.close()


def test_what_lay_beside_a_lost_journal_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    for end in ("-journal", "-wal", "-shm"):
        (tmp_path / f"m.db{end}").write_text("of the lost one")
    with closed(Journal(str(path))) as journal:
        begin(journal, "n1")
        assert (tmp_path / "m.db-journal.lost").read_text() == "of the lost one"


def test_a_damaged_journal_is_bad_data(tmp_path: Path) -> None:
    """A page that is not whole, and an entry that is none: 65, never a bug of ours."""
    path = tmp_path / "m.db"
    with closed(Journal(str(path))) as journal:
        run = begin(journal, *(f"n{i}" for i in range(60)))
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * 4096 + whole[12288:])
    with pytest.raises(DataError, match="damaged"):
        Journal(str(path), write=False)
    path.write_bytes(whole)
    with closed(Journal(str(path))) as journal:
        journal._db.execute("UPDATE node SET work = 'x'")
        with pytest.raises(DataError, match="damaged"):
            journal.run(run.id)


def test_a_journal_that_is_damaged_while_a_run_is_on_is_no_full_disk(journal: Journal, tmp_path: Path) -> None:
    run = begin(journal, *(f"n{i}" for i in range(60)))
    whole = (tmp_path / "maintain.db").read_bytes()
    (tmp_path / "maintain.db").write_bytes(b"\xff" * len(whole))
    with pytest.raises(DataError, match="damaged"):
        journal.put(run.id, 0, run.works[0].at(MaintenanceStep.DRAINING, 5.0, "drain"))
    assert (tmp_path / "maintain.db.spare").exists()


@contextmanager
def closed(journal: Journal) -> Iterator[Journal]:
    try:
        yield journal
    finally:
        journal.close()


def half_written(path: Path) -> None:
    """A journal as a kill in the middle of a commit leaves it: new pages in the file, the old ones beside it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA cache_size = 1")
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE node SET work = ?", ("x" * 3000,))
    db.execute("UPDATE node SET text = ?", ("y" * 3000,))
    for end in ("", "-journal"):
        shutil.copy(f"{path}{end}", f"{path}.half{end}")
    db.execute("ROLLBACK")
    db.close()
    for end in ("", "-journal"):
        os.replace(f"{path}.half{end}", f"{path}{end}")


@pytest.mark.parametrize("half", [False, True], ids=["whole", "killed in a commit"])
def test_in_a_read_only_folder_it_is_shown_and_nothing_is_called_untouched(
    small: Path, half: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small / "maintain.db"
    with closed(Journal(str(path))) as journal:
        run = begin(journal, *(f"n{i}" for i in range(40)))
        for place in (0, 1):
            journal.put(run.id, place, run.works[place].at(MaintenanceStep.DRAINING, 5.0, "drain"))
    if half:
        half_written(path)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with closed(Journal(str(path), write=False)) as journal:
        assert [w.step for w in journal.run(run.id).works[:3]] == [
            MaintenanceStep.DRAINING,
            MaintenanceStep.DRAINING,
            MaintenanceStep.QUEUED,
        ]
    with pytest.raises(HostError, match="Read-only file system") as told:
        Journal(str(path))
    assert f"in work, and left as they are: n0, n1 of run {run.id} (--show, later --resume)" in told.value.hint
    assert "mounted read-only" in told.value.hint and told.value.exit_code == 69
    command = ["maintain", "--journal", str(path), "--bin-dir", "/nonexistent"]
    assert main([*command, "--show"]) == 0 and "n[0-1]: draining" in capsys.readouterr().out
    assert main([*command, "--resume"]) == 69 and "in work, and left as they are: n0, n1" in capsys.readouterr().err
    with pytest.raises(HostError, match="Read-only"):
        Journal(str(small / "none.db"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    if os.geteuid():
        pytest.skip("needs root: mounts a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    fd = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(fd, b"x" * 4096):
            pass
    os.close(fd)


def test_a_full_disk_ends_what_is_in_work_and_begins_nothing(small: Path) -> None:
    journal = Journal(str(small / "maintain.db"))
    run = begin(journal, "n1")
    work = run.works[0]
    fill(small)
    for number in range(200):  # more than the pages that are there already
        work = NodeWork(node="n1", slurm="n1", detail=f"{number} " + "x" * 400)
        journal.put(run.id, 0, work)
    assert "full" in journal.full and not (small / "maintain.db.spare").exists()
    assert journal.run(run.id).works == (work,)
    journal.close()
    with pytest.raises(HostError, match="No space left"):
        Journal(str(small / "maintain.db"))
    (small / "filler").unlink()
    again = Journal(str(small / "maintain.db"))
    assert (small / "maintain.db.spare").stat().st_size == SPARE_BYTES and again.run(run.id).works == (work,)
    again.close()


def test_a_disk_that_stays_full_is_an_error_in_one_line(small: Path) -> None:
    journal = Journal(str(small / "maintain.db"))
    run = begin(journal, "n1")
    (small / "maintain.db.spare").unlink()
    fill(small)
    kept = run.works[0]
    with pytest.raises(HostError, match="full") as error:
        for number in range(2000):
            work = NodeWork(node="n1", slurm="n1", detail=f"{number} " + "x" * 400)
            journal.put(run.id, 0, work)
            kept = work
    assert "--resume" in error.value.hint and journal.run(run.id).works == (kept,)
    journal.close()
