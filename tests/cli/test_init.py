"""`fairlead init` from the command line: the file that it writes is right, and what goes wrong is one line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("ClusterShell")

from fairlead.cli import main
from tests.provision.hardware_ssh import program

TREES = {**{f"n{n}": "hgx-h100" for n in (1, 2, 3)}, "a1": "hgx-a100", "l1": "l40s-pcie"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_three_kinds_of_nodes_become_a_site_that_config_check_passes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ssh = program(here, TREES)
    assert main(["init", "n[1-3],a1,l1,gone", "--ssh", str(ssh), "--user", "admin"]) == 0
    said = capsys.readouterr().out
    assert "hgx-h100: n[1-3]: profile hgx-h100, fabric infiniband\n" in said
    assert "no class: gone: ssh: connect to host gone port 22: No route to host\n" in said
    assert main(["config", "check", "site.toml"]) == 0
    found = tomllib.loads((here / "site.toml").read_text())
    assert {name: entry["nodes"] for name, entry in found["classes"].items()} == {
        "hgx-a100": "a1", "l40s-pcie": "l1", "hgx-h100": "n[1-3]",
    }  # fmt: skip
    assert found["ansible"] == {"user": "admin"}


def test_what_was_found_is_right_too_once_a_person_confirms_it(here: Path) -> None:
    assert main(["init", "n1,a1,l1", "--ssh", str(program(here, TREES))]) == 0
    site = here / "site.toml"
    site.write_text(site.read_text().replace("# ? ", ""))
    assert main(["config", "check", "site.toml"]) == 0


def test_a_file_that_exists_is_never_replaced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "site.toml").write_text("mine")
    assert main(["init", "n1", "--ssh", str(program(here, TREES))]) == 64
    assert "site.toml exists already" in capsys.readouterr().err and (here / "site.toml").read_text() == "mine"


def test_dry_run_and_json_write_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ssh = str(program(here, TREES))
    assert main(["init", "n1", "--ssh", ssh, "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] is None and said["classes"][0]["profile"] == "hgx-h100" and tomllib.loads(said["text"])["schema"] == 1
    assert not (here / "site.toml").exists()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["n1", "--out", "/nonexistent/site.toml"], 66, "/nonexistent: no such folder"),
        (["gone[1-2]"], 68, "none of 2 nodes answered; gone1: ssh: connect to host"),
        (["n[1-"], 64, "n[1-: "),
        (["n1;reboot"], 64, "'n1;reboot' is not the name of a node"),
        (["n1", "--user", "a b"], 78, "the command line: "),
        (["--bin-dir", "/nonexistent"], 69, "/nonexistent/sinfo: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, line: str) -> None:
    assert main(["init", *words, "--ssh", str(program(here, {"n1": "hgx-h100"}))]) == code
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("fairlead init: ") and line in first
    assert not (here / "site.toml").exists()


def test_an_address_of_slurm_never_becomes_an_option_of_ssh(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that registers itself may choose its NodeAddr."""
    sinfo = here / "sinfo"
    words = 'mark=${7#NodeList:}; mark=${mark%%,*}; printf "n1%s-oProxyCommand=x%sgpu:8%s\\n" "$mark" "$mark" "$mark"'
    sinfo.write_text(
        f'#!/bin/sh\nwhile [ $# -gt 0 ]; do case $1 in NodeList:*) set -- 1 2 3 4 5 6 "$1"; {words}; exit;; esac; shift; done\n'
    )
    sinfo.chmod(0o755)
    assert main(["init", "--dry-run", "--bin-dir", str(here), "--ssh", str(program(here, {"n1": "hgx-h100"}))]) == 64
    assert "n1: its NodeAddr is no address that ssh can take" in capsys.readouterr().err
