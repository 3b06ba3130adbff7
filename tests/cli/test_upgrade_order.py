"""The controller's programs come first: a newer release goes to the nodes only after them, unless an admin says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.cli import main, upgrade_order
from fairlead.cli.upgrade_order import refuse_nodes_first
from fairlead.controller import controller_release
from fairlead.controller.controller_release import ControllerRelease, older, read_note, write_note
from fairlead.errors import ProvisionError


@pytest.mark.parametrize(
    ("theirs", "ours", "is_older"),
    [
        ("0.1.0", "0.1.0", False),
        ("0.1.0", "0.1.1", True),
        ("0.9.0", "0.10.0", True),
        ("1.0", "1.0.0", False),
        ("0.10.0", "0.9.9", False),
        ("unknown", "0.1.0", False),
        ("0.1.0", "not a version", False),
    ],
)
def test_versions_are_compared_as_numbers(theirs: str, ours: str, is_older: bool) -> None:
    assert older(ControllerRelease(version=theirs), ours) is is_older


def test_a_machine_without_a_store_knows_nothing(tmp_path: Path) -> None:
    assert read_note(str(tmp_path)) is None
    refuse_nodes_first(str(tmp_path))
    refuse_nodes_first(str(tmp_path / "none"))


def test_a_store_without_a_note_is_said_and_refuses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody knows whether an older release wrote it, or a program that is gone."""
    (tmp_path / "jobs.sqlite").touch()
    refuse_nodes_first(str(tmp_path))
    assert "does not say which release of `fairlead collect` wrote it" in capsys.readouterr().err
    write_note(str(tmp_path))
    refuse_nodes_first(str(tmp_path))
    assert capsys.readouterr().err == ""


def test_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "controller-release.json").write_text('{"version":"0.0.1"}')
    with pytest.raises(ProvisionError, match=r"is 0\.0\.1: an older controller") as found:
        refuse_nodes_first(str(tmp_path))
    assert "systemctl start fairlead-collect" in found.value.hint and "--nodes-first" in found.value.hint


def test_a_store_that_cannot_be_read_is_said_and_refuses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "controller-release.json").mkdir()
    refuse_nodes_first(str(tmp_path))
    assert "is not known" in capsys.readouterr().err


def test_the_commands_refuse_before_a_node_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "controller-release.json").write_text('{"version":"0.0.1","release":"0.0.1-abc"}')
    monkeypatch.setattr(upgrade_order.refuse_nodes_first, "__defaults__", (str(tmp_path),))
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n[ansible]\nprivate_key = "/no/such/key"\n')
    assert main(["provision", "--site", str(site)]) == 69
    assert "`fairlead collect` here is 0.0.1-abc: an older controller refuses newer records" in capsys.readouterr().err
    assert main(["provision", "--site", str(site), "--nodes-first"]) == 66, "only the key is missing now"


def test_a_round_of_collect_writes_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_release, "running_release", lambda: "9.9.9-abc")
    write_note(str(tmp_path))
    found = read_note(str(tmp_path))
    assert found is not None and found.words == "9.9.9-abc" and found.unix > 1e9
