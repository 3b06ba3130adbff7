"""fairlead usage and fairlead idle over a folder of records, and what is wrong in the folder."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.cli import main
from fairlead.cli.usage_page import page
from fairlead.cli.usage_period import period
from fairlead.cli.usage_report import chosen, report
from fairlead.controller.records_folder import Recorded, read_folder
from fairlead.errors import UsageError
from fairlead.jobs.cost_and_energy import UsageOptions
from fairlead.jobs.job_run import SACCT_COLUMNS
from fairlead.jobs.usage_record import encoded
from tests.controller.filled_store import as_store
from tests.jobs.made_jobs import a_gpu, a_job, a_record

DAYS = 28
BEFORE, AFTER = date(2025, 3, 3), date(2025, 5, 5)


def unix(day: date) -> int:
    return int(datetime(day.year, day.month, day.day).timestamp())


def add_job(folder: Path, job: int, day: date, *, user: str = "alice", account: str = "physics", days: int = 1) -> None:
    """A job of 2 GPUs on n1 that runs from one midnight to another."""
    begin, end = unix(day), unix(day + timedelta(days=days))
    row = f"{job}|{job}|1001|{user}|{account}|gpu|normal|COMPLETED|{begin}|{end}|2880|8|gres/gpu=2|n1\n"
    with (folder / "jobs.psv").open("a") as file:
        file.write(row + f"{job}.batch|{job}.batch||||||COMPLETED|{begin}|{end}||8|gres/gpu=2|n1\n")
    seconds = float(end - begin)
    record = a_record(job, begin_unix=float(begin), written_unix=float(end), end_unix=float(end), alloc_seconds=seconds)
    record = replace(record, gpus=(a_gpu(0, seconds), a_gpu(1, seconds)))
    (folder / f"{job}-{begin}.json").write_bytes(encoded(record))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "records"
    made.mkdir()
    (made / "jobs.psv").write_text("|".join(SACCT_COLUMNS) + "\n")
    (made / "nodes.psv").write_text("NODELIST|PARTITION|GRES\nn1|gpu*|gpu:h100:2(S:0-1)\n")
    (made / "events.psv").write_text("NodeName|TimeStart|TimeEnd\n")
    for i in range(DAYS):
        add_job(made, 100 + i, BEFORE + timedelta(days=i), account=("physics", "chemistry")[i % 2])
        add_job(made, 200 + i, AFTER + timedelta(days=i))
    return made


WHOLE = f"{BEFORE}/{BEFORE + timedelta(days=DAYS)}"
LATER = f"{AFTER}/{AFTER + timedelta(days=DAYS)}"


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", WHOLE, "--from", str(folder), "--by", "account"]) == 0
    out = capsys.readouterr().out
    for words in ("busy/1", "28 jobs", "1,344.0", "100.0% of capacity", "90.0% of allocated", "66.7% of busy", "coverage 100.0%"):
        assert words in out, words
    assert "usage.gpu_hour_price is not set" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("chem", "phys"))] == ["chemistry", "physics"]


def test_prices_of_the_site(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[usage]\ncurrency = "EUR"\ngpu_hour_price = 2.0\n')
    assert main(["usage", WHOLE, "--from", str(folder), "--site", str(site)]) == 0
    assert "2,688.0 EUR" in capsys.readouterr().out


def test_a_wrong_price_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    site.write_text("schema = 1\n[usage]\npue = 0.5\ngrid_date = 'today'\n[idle]\nmode = 'kill'\n[advice]\nuneven = 1\n")
    assert main(["config", "check", str(site)]) == 78
    said = capsys.readouterr()
    for key in ("usage.pue", "usage.grid_date", "idle.mode", "advice.uneven"):
        assert key in said.out + said.err


def test_json_has_seconds_and_leaves_out_what_is_not_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "nodes.psv").unlink()
    assert main(["usage", WHOLE, "--from", str(folder), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["definition"] == "busy/1"
    assert data["sum"]["allocated_seconds"] == 28 * 86400 * 2
    assert "capacity_seconds" not in data["sum"]
    assert "low" not in next(line for line in data["costs"] if line["name"] == "cost")


def test_csv_is_read_back_and_has_no_formula(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_job(folder, 900, BEFORE, account="-1+2")
    assert main(["usage", WHOLE, "--from", str(folder), "--by", "account", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["account"] for row in rows] == ["chemistry", "physics", "'-1+2", "sum"]
    assert float(rows[-1]["allocated_seconds"]) == sum(float(row["allocated_seconds"]) for row in rows[:-1])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "onload", "onclick")]


def test_html_is_one_page_that_loads_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "page.html"
    assert main(["usage", WHOLE, "--from", str(folder), "--by", "account", "--html", str(out)]) == 0
    tags = Tags()
    tags.feed(out.read_text())
    assert tags.opened.count("svg") == 2
    assert tags.opened.count("rect") >= DAYS
    assert not tags.loads and "script" not in tags.opened
    assert main(["usage", WHOLE, "--from", str(folder), "--html", str(out)]) == 64  # a file that exists is not replaced
    capsys.readouterr()


def test_a_name_in_html_is_escaped() -> None:
    job = replace(a_job(), account="<img src=x>")
    folder = Recorded(runs=(job,), records=(("1.json", a_record()),), nodes=None, events=None, mistakes=("<b>",))
    of = chosen(folder, None, "", 2e9)
    at = period("2026-09", date(2026, 11, 1))
    found = page(report(of, at, lambda each: each.job.account, UsageOptions()), "account")
    assert "<img" not in found and "<b>" not in found


def test_a_comparison_of_two_good_periods(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--compare", WHOLE, LATER, "--from", str(folder)]) == 0
    out = capsys.readouterr().out
    for words in ("definition busy/1", "coverage", "mix: batch", "1, 2 (the same)"):
        assert words in out


def test_a_comparison_that_lacks_conditions_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "nodes.psv").unlink()
    for path in sorted(folder.glob("2*.json"))[:4]:
        path.unlink()
    assert main(["usage", "--compare", "2025-W10", LATER, "--from", str(folder), "--json"]) == 65
    refused = json.loads(capsys.readouterr().out)["refused"]
    said = " ".join(refused)
    for words in ("2025-W10 has 7.0 days", "coverage of 85.7%", "nodes.psv"):
        assert words in said
    assert main(["usage", "--compare", "2025-W10", LATER, "--from", str(folder)]) == 65
    assert capsys.readouterr().out.startswith("refused")


def test_what_is_wrong_in_the_folder_is_named_and_not_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = sorted(folder.glob("1*.json"))[0]
    (folder / "torn.json").write_bytes(first.read_bytes()[:-9])
    (folder / "esc\x1b[2J.json").write_bytes(b"x")
    (folder / "loop.json").symlink_to("loop.json")
    (folder / "unknown.json").write_bytes(encoded(a_record(4711)))
    assert main(["usage", WHOLE, "--from", str(folder)]) == 0
    said = capsys.readouterr()
    for words in ("torn.json: is torn", "loop.json: ", "unknown.json: is of a job that Slurm does not know"):
        assert words in said.err
    assert "\x1b" not in said.err
    assert "1,344.0" in said.out


def test_the_store_and_a_folder_give_the_same_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in sorted(folder.glob("1*.json"))[:4]:
        path.unlink()  # nodes that gave no record
    (folder / "nodes.psv").unlink()
    (folder / "events.psv").unlink()
    nobody = ["--bin-dir", "/no/such/folder", "--running", "/no/such/folder"]
    for words in ([WHOLE, "--by", "account"], [LATER, "--by", "user", "--nodelist", "n1"], [f"{BEFORE}/{BEFORE + timedelta(3)}"]):
        said = []
        for source in (["--from", str(folder)], ["--store", as_store(folder), *nobody]):
            assert main(["usage", *words, *source, "--json"]) == 0
            said.append(json.loads(capsys.readouterr().out))
        assert said[1].pop("mistakes") and not said[0].pop("mistakes")
        assert said[0] == said[1]
        assert said[0]["sum"]["jobs"] and said[0]["mix_seconds"]["batch"]


def test_what_slurm_does_not_say_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--store", as_store(folder), "--bin-dir", "/no/such/folder", "--running", "/no/such/folder"]
    assert main(["usage", WHOLE, *words]) == 0
    said = capsys.readouterr()
    for what in ("running jobs are not counted", "the capacity is not known", "the time out of service is not known"):
        assert what in said.err
    assert "the store begins on" in said.err and "capacity    not known" in said.out
    assert main(["usage", "2024-10", "--store", str(folder)]) == 66
    assert "there is no store" in capsys.readouterr().err


def test_only_nodes_of_the_sites_classes_are_counted(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.toml"
    words = ["usage", WHOLE, "--store", as_store(folder), "--bin-dir", "/no/such/folder", "--site", str(site), "--json"]
    for nodes, jobs in (("n[1-4]", 28), ("n[2-4]", 0)):
        site.write_text(f'schema = 1\n[classes.gpu]\nnodes = "{nodes}"\nprofile = "hgx-h100"\n')
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["sum"]["jobs"] == jobs


def test_only_some_nodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", WHOLE, "--from", str(folder), "--nodelist", "n[2-3]"]) == 0
    assert "0 jobs" in capsys.readouterr().out


def test_a_folder_without_rows_of_sacct(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--from", str(tmp_path)]) == 66
    assert "SLURM_TIME_FORMAT=%s sacct" in capsys.readouterr().err


def test_a_fifo_in_the_folder_is_named(folder: Path) -> None:
    import os

    os.mkfifo(folder / "pipe.json")
    assert any("pipe.json" in line for line in read_folder(str(folder)).mistakes)


TODAY = date(2026, 11, 25)  # a Wednesday


@pytest.mark.parametrize(
    ("text", "name", "begin", "end"),
    [
        ("week", "2026-W47", date(2026, 11, 16), date(2026, 11, 23)),
        ("month", "2026-10", date(2026, 10, 1), date(2026, 11, 1)),
        ("2026-W01", "2026-W01", date(2025, 12, 29), date(2026, 1, 5)),
        ("2026-12", "2026-12", date(2026, 12, 1), date(2027, 1, 1)),
        ("2026-10-03/2026-10-05", "2026-10-03/2026-10-05", date(2026, 10, 3), date(2026, 10, 5)),
    ],
)
def test_periods(text: str, name: str, begin: date, end: date) -> None:
    found = period(text, TODAY)
    assert (found.name, found.begin_unix, found.end_unix) == (name, unix(begin), unix(end))


@pytest.mark.parametrize("text", ["", "x", "2026-W60", "2026-13", "2026-10-05/2026-10-05", "0000-01", "9999-12", "/", "2026"])
def test_what_is_no_period(text: str) -> None:
    with pytest.raises(UsageError):
        period(text, TODAY)


# -- idle ---------------------------------------------------------------------------------------------


def test_idle_observe_and_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import time

    from tests.jobs.idle_fleet import Played, a_run, idle_batch

    now = int(time.time())
    begin = now - 8000
    folder, state = tmp_path / "now", str(tmp_path / "state")
    folder.mkdir()
    row = f"1|1|1001|alice|a|gpu|normal|RUNNING|{begin}|Unknown|2880|8|gres/gpu=2|n1\n"
    row += f"1.batch|1.batch||||||RUNNING|{begin}|Unknown||8|gres/gpu=2|n1\n"
    (folder / "jobs.psv").write_text("|".join(SACCT_COLUMNS) + "\n" + row)
    played = Played(replace(a_run(1), begin_unix=float(begin)), idle_batch, False)
    (tmp_path / "state/polls").mkdir(parents=True)
    (tmp_path / f"state/polls/poll-{now - 4000}.jsonl").write_bytes(encoded(played.record(4000)))
    (folder / "1.json").write_bytes(encoded(played.record(8000)))
    assert main(["idle", "observe", "--from", str(folder), "--state", state]) == 0
    out = capsys.readouterr().out
    assert "not_begun" in out and "idle" in out and "mode observe" in out
    assert main(["idle", "list", "--state", state, "--json"]) == 0
    (event,) = json.loads(capsys.readouterr().out)
    assert event["kind"] == "observed"
    assert main(["idle", "run", "--from", str(folder), "--state", state]) == 64
    assert "run asks Slurm itself" in capsys.readouterr().err
