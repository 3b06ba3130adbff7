"""What people type: options anywhere, help of a command, names in any case, relative paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli import COMMANDS, main

CONF = "ClusterName=x\nSlurmctldHost=a\nNodeName=n1\nPartitionName=p Nodes=n1\n"
SITE = 'schema = 1\n[classes.a]\nnodes = "gpu[1-3]"\n'


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == said and said.startswith(f"usage: fairlead {name}")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["explain", "--json", "xid", "79"], ["explain", "xid", "79", "--json"]),
        (["explain", "xid", "--json", "79"], ["explain", "xid", "79", "--json"]),
        (["config", "check", "--json", "site.toml"], ["config", "check", "site.toml", "--json"]),
        (["config", "--json", "profiles"], ["config", "profiles", "--json"]),
        (["xid", "decode", "--json", "log"], ["xid", "decode", "log", "--json"]),
        (["replay", "--json", "log"], ["replay", "log", "--json"]),
        (["lint", "--json", "job.sh"], ["lint", "job.sh", "--json"]),
        (["nccl", "parse", "--json", "nccl.out"], ["nccl", "parse", "nccl.out", "--json"]),
    ],
)
def test_options_stand_anywhere(
    before: list[str], after: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.toml").write_text(SITE)
    Path("log").write_text("[    1.500000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    Path("job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:8\nsrun train\n")
    Path("nccl.out").write_text("# nccl-tests version 2.17.9\n# Avg bus bandwidth    : 9.84\n")
    codes, said = [], []
    for words in (before, after):
        codes.append(main(words))
        said.append(capsys.readouterr())
    assert codes[0] == codes[1] != 64 and said[0] == said[1] and said[0].out


@pytest.mark.parametrize("words", [["79"], ["XID", "79"], ["Xid", "79"], ["xid79"], ["xid:79"], ["xid 79"]])
def test_an_xid_is_found_however_it_is_typed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 0
    assert capsys.readouterr().out.startswith("Xid 79:")


def test_relative_paths_are_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    Path("slurm.conf").write_text(CONF)
    assert main(["doctor", "--slurm-conf", "slurm.conf", "--json"]) in (0, 1, 2)
    monkeypatch.setenv("SLURM_CONF", "slurm.conf")
    assert main(["doctor", "--json"]) in (0, 1, 2)
    assert str(tmp_path / "slurm.conf") in capsys.readouterr().out


def test_a_site_is_told_from_a_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("site.toml").write_text(SITE)
    assert main(["config", "show", "site.toml"]) == 64
    assert "config show --site site.toml --node NAME" in capsys.readouterr().err
    assert main(["config", "check", "--site", "site.toml"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        *(["collect", option, ""] for option in ("--from", "--running", "--backup", "--restore", "--units")),
        ["accept", "--fabric", "--judge", ""],
        ["provision", "--bundle="],
        ["idle", "act", "--from", ""],
    ],
)
def test_an_empty_path_is_not_an_absent_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A script whose variable is empty must not do what the command does without the option."""
    assert main(words) == 64
    assert "the name is empty" in capsys.readouterr().err
