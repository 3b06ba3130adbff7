"""fairlead report over recorded inputs: text, JSON and the page; each figure with its definition, count and exposure."""

from __future__ import annotations

import json
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from fairlead.cli.fleet_period import timeframe
from fairlead.cli.usage_records import SERVICE
from fairlead.errors import UsageError
from fairlead.provision.service_record_ssh import COMMAND, OLDER_COMMAND
from tests.fleet.recorded import write_folder
from tests.fleet.simulated_year import Planted, year

NOW = 1_793_500_000.0  # 2026-11-01
TITLES = (
    "Incidents by class", "Incidents by cause", "Availability", "Job time lost", "MTTF of a job of N nodes", "Trend by month",
    "Lemons", "Early warning", "Score card of the early warning", "The incidents",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = year(40, (Planted("a", (3,), 20, 60, 2),), driver_day=200)
    return write_folder(tmp_path_factory.mktemp("fleet") / "f", made, hours=24)


def run(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["report", "2026-Q3", "--from", str(folder), *more]) == 0
    return capsys.readouterr().out


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(folder, capsys)
    lines = [line for line in out.splitlines() if line in TITLES]
    assert lines == list(TITLES)
    for words in (
        "40 nodes with a service record",
        "fewer than 5: no rate",
        "expected by chance alone",
        "gpu0004",
        "rows remapped",
    ):
        assert words in out, words
    assert "driver 570.86.15 to 580.11.02" in out and "node-days" in out


def test_json_has_each_figure_with_its_exposure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data: dict[str, Any] = json.loads(run(folder, capsys, "--json"))
    (figures,) = data["classes"]
    assert figures["rate"]["count"] == len(data["incidents"]) and figures["rate"]["node_days"] == pytest.approx(40 * 92, rel=0.01)
    low, high = figures["rate"]["interval"]
    assert low < figures["rate"]["per_1000_node_days"] < high
    assert {c["per_1000_node_days"] is None for c in figures["causes"] if c["count"] < 5} == {True}
    assert set(data["definitions"]) == set(TITLES) and data["availability"]["of_owned"] > 0.9
    assert data["card"]["score"] is None or data["card"]["better_than_counting"]
    assert [d["signal"] for d in data["distances"]] == ["rows"] * 2


class Page(HTMLParser):
    """Collects what a page would load or run, and the words in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [tag] if tag in ("script", "link", "img", "iframe", "object") else []
        self.loads += [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in ("meta", "path", "rect", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "rect", "circle"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_loads_nothing_and_shows_no_markup_of_a_node(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    run(folder, capsys, "--html", str(page))
    found = Page(page.read_text())
    assert found.loads == [] and found.open == [] and all(title in found.words for title in TITLES)
    assert page.read_text().count("<svg") == 3
    assert main(["report", "2026-Q3", "--from", str(folder), "--html", str(page)]) == 64, "a file is never replaced"
    (folder / "groups.psv").write_text("gpu0001|switch <script>alert(1)</script>\n")
    hostile = tmp_path / "hostile.html"
    run(folder, capsys, "--html", str(hostile))
    assert Page(hostile.read_text()).loads == []


def test_a_folder_without_jobs_and_events_says_so(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "nodes").symlink_to(folder / "nodes")
    assert main(["report", "2026-Q3", "--from", str(bare)]) == 0
    captured = capsys.readouterr()
    assert "no job is known" in captured.err and "no job is known" in captured.out
    assert "the nodes' own records" in captured.out.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("quarter", "2026-07-01", "2026-10-01"),
        ("2026-Q1", "2026-01-01", "2026-04-01"),
        ("month", "2026-10-01", "2026-11-01"),
        ("2026-08", "2026-08-01", "2026-09-01"),
        ("2026-08-03/2026-08-05", "2026-08-03", "2026-08-05"),
    ],
)
def test_periods(text: str, begin: str, end: str) -> None:
    from fairlead.cli.time_options import local

    frame = timeframe(text, date(2026, 11, 1), NOW)
    assert (local(frame.begin_unix)[:10], local(frame.end_unix)[:10]) == (begin, end)
    assert len(frame.months) == 12 and frame.months[-1][0] == local(frame.end_unix - 1)[:7]


@pytest.mark.parametrize("text", ["", "2026-Q5", "tomorrow", "2027-01", "2026-10-05/2026-10-01"])
def test_no_periods(text: str) -> None:
    with pytest.raises(UsageError):
        timeframe(text, date(2026, 11, 1), NOW)


def test_a_limited_login_answers_what_collect_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from fairlead.provision.ssh_fetch import parts_of

    assert set(SERVICE) == {COMMAND, OLDER_COMMAND}
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", OLDER_COMMAND)
    monkeypatch.setattr(
        "fairlead.cli.usage_records.SERVICE", {OLDER_COMMAND: (str(tmp_path / "audit.jsonl"), str(tmp_path / "no"))}
    )
    (tmp_path / "audit.jsonl").write_text("{}\n")
    assert main(["usage-records", "--asked"]) == 0
    parts = parts_of(capfdbinary.readouterr().out)
    assert parts is not None and parts[str(tmp_path / "audit.jsonl")].strip() == b"{}"
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", OLDER_COMMAND + " /etc/shadow")
    assert main(["usage-records", "--asked"]) == 64
