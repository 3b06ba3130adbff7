"""The journal of maintenance: one unfinished run per node, one driver per run, a full disk, a damaged file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.errors import DataError, HostError, InputMissing
from fairlead.provision.maintain.journal import SPARE_BYTES, Journal, Run
from fairlead.provision.maintain.report import report
from fairlead.provision.maintain.steps import Plan, Step, Work

PLAN = Plan(reason="new driver", floors={"main": 2})


def works(*names: str) -> list[Work]:
    return [Work(node=n, slurm=n) for n in names]


def begin(journal: Journal, *names: str) -> Run:
    return journal.begin(PLAN, works(*names), site="/etc/fairlead/site.toml", who="ann@adm1")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(str(tmp_path / "maintain.db"))
    yield made
    made.close()


def test_a_run_comes_back_as_it_was_put(journal: Journal, tmp_path: Path) -> None:
    run = begin(journal, "n1", "n2")
    work = run.works[0].at(Step.DRAINING, 5.0, "drain")
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
    assert [w.step for w in second.works] == [Step.SKIPPED, Step.QUEUED] and first.id in second.works[0].detail
    journal.put(first.id, 1, first.works[1].at(Step.NOT_BEGUN, 1.0))
    assert begin(journal, "n2").works[0].step is Step.QUEUED
    assert report(second).nodes[0].condition == "untouched" and report(second).exit_code == 75


def test_reasons_that_runs_have_left(journal: Journal) -> None:
    run = begin(journal, "n1")
    failed = Work(node="n1", slurm="n1", step=Step.FAILED, text="a", mark="b", ended=2.0)
    journal.put(run.id, 0, failed)
    assert journal.left(["n1", "n2"]) == {"n1": frozenset({"a", "b"})}


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
        work = Work(node="n1", slurm="n1", detail=f"{number} " + "x" * 400)
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
            work = Work(node="n1", slurm="n1", detail=f"{number} " + "x" * 400)
            journal.put(run.id, 0, work)
            kept = work
    assert "--resume" in error.value.hint and journal.run(run.id).works == (kept,)
    journal.close()
