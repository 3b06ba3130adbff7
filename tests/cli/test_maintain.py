"""`fairlead maintain`: what the command line refuses, before anything is touched, and what it shows of a journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli import main, why_text
from fairlead.cli.audited import AuditOutcome
from fairlead.cli.drain import tell
from fairlead.drains.outcome import Outcome, Result
from fairlead.errors import ExitCode
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan, MaintenanceStep, NodeWork


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a nodelist, or one of"),
        (["gpu1", "--list"], "give a nodelist, or one of"),
        (["--resume", "--dry-run"], "--dry-run: only a new run takes this"),
        (["--resume", "--reason", "x", "--reboot"], "--reason, --reboot: only a new run takes this"),
        (["--abort", "--floor", "main=1"], "--floor: only a new run and --resume take this"),
        (["--show", "--batch", "2"], "--batch: only a new run and --resume take this"),
    ],
)
def test_words_that_make_no_sense(words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["maintain", *words, "--journal", str(tmp_path / "m.db")]) == ExitCode.USAGE
    assert said in capsys.readouterr().err and not (tmp_path / "m.db").exists()


def test_without_a_journal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["maintain", "--list", "--journal", str(tmp_path / "m.db")]) == ExitCode.NO_INPUT
    assert "no maintenance has run here" in capsys.readouterr().err


def test_runs_and_their_steps_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "m.db")
    journal = Journal(path)
    run = journal.begin(MaintenancePlan(reason="driver 580"), [NodeWork(node="n1", slurm="n1")], site="s", who="ann@adm1")
    failed = NodeWork(
        node="n1", slurm="n1", step=MaintenanceStep.FAILED, since=2.0, began=1.0, ended=2.0, mark="why", detail="no disk"
    )
    journal.put(run.id, 0, failed)
    assert main(["maintain", "--list", "--journal", path]) == ExitCode.OK
    assert f"{run.id}  unfinished" in capsys.readouterr().out
    journal.end(run.id, "ended")
    journal.close()
    assert main(["maintain", "--show", "--journal", path]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "by ann@adm1: driver 580; ended" in out and "n1: failed, drained, and stays so: no disk" in out
    assert main(["maintain", "--show", run.id, "--journal", path, "--json"]) == ExitCode.OK
    said = json.loads(capsys.readouterr().out)
    assert (said["nodes"][0]["reason"], said["steps"][0]["step"]) == ("why", "failed")
    assert main(["maintain", "--resume", run.id, "--journal", path]) == ExitCode.USAGE
    assert "nothing to go on with" in capsys.readouterr().err


def test_why_sends_a_drain_of_maintenance_to_the_admin_host() -> None:
    slurm = {"state": "IDLE+DRAIN", "reason": "fairlead:maintain:abcdef123456 driver 580", "reason_user": "root"}
    said = " ".join(why_text.steps("gpu1", {"state": "ok", "status": {}}, slurm, why_text.ORPHAN))
    assert "leave it to `fairlead maintain` on the admin host" in said and "--adopt" not in said


def test_a_drain_of_maintenance_is_explained_on_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    """`fairlead resume` there does not lift it, and says who does."""
    found = Result(outcome=Outcome.ORPHAN, detail="DRAIN+IDLE by root: fairlead:maintain:abcdef123456 driver 580")
    assert tell("gpu1", found, as_json=False, note=AuditOutcome()) == ExitCode.TRY_AGAIN
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("gpu1: orphan: DRAIN+IDLE by root: fairlead:maintain:") and "fairlead maintain --resume" in second
