"""Commands of the admin host find Slurm's commands where the admin's own shell finds them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from fairlead.cli.slurm_options import add_bin_dir


def bin_dir(*words: str) -> str:
    parser = argparse.ArgumentParser()
    add_bin_dir(parser)
    return str(parser.parse_args(words).bin_dir)


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    folder = tmp_path / "opt/slurm/bin"
    folder.mkdir(parents=True)
    (folder / "scontrol").write_text("#!/bin/sh\n")
    (folder / "scontrol").chmod(0o755)
    return folder


def test_the_scontrol_in_path_says_where_slurms_commands_are(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"/nonexistent:{slurm}:/usr/bin")
    assert bin_dir() == str(slurm)
    assert bin_dir("--bin-dir", "/elsewhere") == "/elsewhere"


def test_a_folder_that_depends_on_the_current_folder_does_not_count(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(slurm)
    for path in (".", "", ":.:"):
        monkeypatch.setenv("PATH", path)
        assert bin_dir() == "/usr/bin"


def test_without_a_scontrol_in_path_it_is_the_folder_of_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bin_dir() == "/usr/bin"
