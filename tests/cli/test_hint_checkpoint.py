"""fairlead hint checkpoint over a folder: the two lines, and each kind of bad input by its name."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.controller.job_store import JobStore
from fairlead.jobs.usage_record import JobFinding, encoded
from tests.controller.filled_store import as_store
from tests.jobs.few_columns import COLUMNS
from tests.jobs.made_jobs import a_record

DAY = 86400
BEGIN = int(time.time()) - 120 * DAY


def row(
    job: int, day: float, state: str = "COMPLETED", *, nodes: str = "n[01-32]", partition: str = "gpu", days: float = 1
) -> str:
    begin = BEGIN + int(day * DAY)
    return f"{job}|alice|physics|{partition}|normal|{state}|{begin}|{begin + int(days * DAY)}|2880|gres/gpu=256|{nodes}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """100 days of 32 nodes: 3,200 node-days with 8 failures, and 10 preemptions in the partition low."""
    rows = [row(n, n, "NODE_FAIL" if n % 13 == 0 else "COMPLETED") for n in range(1, 101)]
    rows += [row(500 + n, n, "PREEMPTED" if n < 10 else "TIMEOUT", nodes="n50", partition="low", days=0.5) for n in range(20)]
    (tmp_path / "jobs.psv").write_text("|".join(COLUMNS) + "\n" + "".join(rows))
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert main(["hint", "checkpoint", *words]) == code
    out = capsys.readouterr()
    return out.out, out.err


def test_the_two_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "--nodes", "64", "--save", "2m", "--from", str(folder), "--partition", "low")
    lines = out.splitlines()
    assert lines[0] == "64 nodes: 7 node failures in 3,210 node-days (0.9-4.5 per 1000) -> one in 7.2 days (3.5 days to 18 days)."
    assert lines[1] == (
        "If a save blocks for 2 min, save every 3.4 h (2.3 h to 5.3 h all cost about the same: 2.0 % of the time)."
        " Partition low preempts: save every 30 min or on USR1 (fairlead template sbatch requeue)."
    )
    assert "10 were preempted, one in 24 h of run time, 10 met the time limit" in lines[2]
    assert "Causes: 7 x NODE_FAIL." in lines[3] and "(of 180 that were asked for)" in lines[3]
    assert lines[4].startswith("Without usage records") and err == ""


def test_drains_that_only_the_records_know(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin = float(BEGIN + 2 * DAY)
    finding = JobFinding(check="xid", level="drain", pci="0000:1b:00.0", at_unix=begin + 60)
    record = a_record(2, "n03", float(DAY), begin_unix=begin, written_unix=begin + DAY, end_unix=begin + DAY, findings=(finding,))
    (folder / "2.json").write_bytes(encoded(record))
    out, _ = said(capsys, "--nodes", "64", "--save", "2m", "--from", str(folder), "--json")
    data = json.loads(out)
    assert data["rate"]["causes"] == {"NODE_FAIL": 7, "drain xid": 1} and data["records"] == 1


NOBODY = ("--bin-dir", "/no/such/folder")


def test_the_store_and_a_folder_give_the_same_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A drain, two GPU jobs that a record names, and a job without GPUs."""
    for job, level in ((2, "drain"), (4, "warn")):
        begin = float(BEGIN + job * DAY)
        finding = JobFinding(check="xid", level=level, at_unix=begin + 60)
        times = {"begin_unix": begin, "written_unix": begin + DAY, "end_unix": begin + DAY}
        (folder / f"{job}.json").write_bytes(encoded(a_record(job, "n03", float(DAY), findings=(finding,), **times)))
    path = folder / "jobs.psv"
    path.write_text(path.read_text() + row(900, 50, "NODE_FAIL").replace("gres/gpu=256", "cpu=4"))
    for words in (("--partition", "low"), ("--days", "40"), ("--days", "60")):
        made = []
        for source in (("--from", str(folder)), ("--store", as_store(folder), *NOBODY)):
            out, err = said(capsys, "--nodes", "64", "--save", "2m", *words, *source, "--json")
            made.append(json.loads(out))
        assert "running jobs are not counted" in err and made[1].pop("mistakes") and not made[0].pop("mistakes")
        for each in made:
            each["records"] = bool(each["records"])  # the folder's number leaves out those of jobs that are too old
        assert made[0]["rate"]["failures"] and made[0] == made[1]
    assert made[0]["rate"]["causes"].get("drain xid", 0) == 0
    out, _ = said(capsys, "--nodes", "64", "--store", as_store(folder), *NOBODY, "--json")
    assert json.loads(out)["rate"]["causes"] == {"NODE_FAIL": 7, "drain xid": 1}


def test_a_store_that_nobody_fills_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time in which ended jobs are not known must not count as time without failures."""
    store = as_store(folder)
    with JobStore(store, write=True) as made:
        made.keep("cursor", str(BEGIN + 90 * DAY))
    out, err = said(capsys, "--nodes", "64", "--save", "2m", "--store", store, *NOBODY, "--json")
    assert "Does fairlead-collect.timer run?" in err
    rate = json.loads(out)["rate"]
    assert rate["end_unix"] == BEGIN + 90 * DAY and rate["failures"] == 6


def test_a_store_that_is_not_there_or_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, "--nodes", "64", "--store", str(folder), *NOBODY, code=66)
    assert "there is no store" in err
    store = as_store(folder)
    with JobStore(store, write=True) as made, made.changes() as db:
        db.execute("INSERT INTO record VALUES (1, 2, 'n1', ?)", (b'{"findings":[{"level":"drain"}]',))
    _, err = said(capsys, "--nodes", "64", "--store", store, *NOBODY, code=65)
    assert "a record of job 1 is torn" in err and err.count("\n") <= 2


def test_too_few_failures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "--nodes", "64", "--save", "2m", "--from", str(folder), "--days", "40")
    assert "No hint from node failures: too few failures for a hint: 3, and 5 are needed." in out
    assert "save every" not in out, "the preemptions of those days are none"


def test_an_unknown_save_time_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, "--nodes", "64", "--from", str(folder))
    assert "the save time is not known: measure for how long a save stops the job" in out and "node failures in" in out


def test_rows_that_were_cut_off_are_named_and_not_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A nodelist that was cut off in the middle of a name may still look like a whole row."""
    path = folder / "jobs.psv"
    whole, _ = said(capsys, "--nodes", "64", "--from", str(folder), "--json")
    path.write_text(path.read_text() + row(900, 110, "NODE_FAIL", nodes="n07")[:-2])
    out, err = said(capsys, "--nodes", "64", "--from", str(folder), "--json")
    assert "the last line has no end: the output was cut off" in err
    assert json.loads(out)["rate"] == json.loads(whole)["rate"]


def test_clocks_that_differ_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "jobs.psv"
    path.write_text(path.read_text() + row(901, 200, "NODE_FAIL"))
    record = a_record(3, "n03", 60.0, begin_unix=BEGIN + 40.0 * DAY, written_unix=BEGIN + 40.0 * DAY + 60)
    (folder / "3.json").write_bytes(encoded(record))
    out, err = said(capsys, "--nodes", "64", "--from", str(folder), "--json")
    assert "job 901 is from the future: do the clocks differ?" in err
    assert "3.json: is of another time than the job: it is set aside" in err
    assert json.loads(out)["rate"]["failures"] == 7


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--nodes", "0", "--from", "."), 64),
        (("--nodes", "x", "--from", "."), 64),
        (("--nodes", "8", "--save", "soon", "--from", "."), 64),
        (("--nodes", "8", "--days", "0", "--from", "."), 64),
        (("--nodes", "8", "--from", "/no/such/folder"), 66),
    ],
)
def test_bad_words(words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, *words, code=code)


def test_a_partition_without_jobs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = said(capsys, "--nodes", "64", "--from", str(folder), "--partition", "none", code=64)
    assert "no job with GPUs is known in it" in err


def test_an_empty_cluster_is_not_a_healthy_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs.psv").write_text("|".join(COLUMNS) + "\n")
    out, _ = said(capsys, "--nodes", "64", "--save", "2m", "--from", str(tmp_path))
    assert "nothing is known of node failures" in out and "0 node failures" not in out
