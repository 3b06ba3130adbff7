"""`fairlead dashboards`: lists, writes whole files, and says in one line what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import ExitCode


def test_the_list_names_each_dashboard(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--list", "--json"]) == ExitCode.OK
    assert {board["name"] for board in json.loads(capsys.readouterr().out)} == {"fleet", "node", "gpu-health", "jobs", "drift"}


def test_the_files_are_written_whole_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["dashboards", "--write", str(tmp_path)]) == ExitCode.OK
        (tmp_path / "fleet.json").write_text("old")
    assert main(["dashboards", "--write", str(tmp_path)]) == ExitCode.OK
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "alerts.yml", "drift.json", "fleet.json", "gpu-health.json", "jobs.json", "node.json",
    ]  # fmt: skip
    assert json.loads((tmp_path / "fleet.json").read_text())["uid"] == "fairlead-fleet"


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--write", str(tmp_path), "--dry-run"]) == ExitCode.OK
    assert not list(tmp_path.iterdir()) and "fleet.json: would be written" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboards", "--write", "/no/such/folder"]) == ExitCode.NO_INPUT
    assert capsys.readouterr().err.splitlines()[0].endswith("/no/such/folder: no such folder")
