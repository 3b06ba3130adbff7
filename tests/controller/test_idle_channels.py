"""What a site's program answers decides how sure it is that a message arrived. Only its own words with the id count."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.controller.idle_channels import SiteAct, SiteProgram
from tests.jobs.idle_fleet import a_run


def program(folder: Path, script: str) -> str:
    path = folder / "channel"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ('cat >/dev/null; echo "accepted $2"', "accepted"),
        ("exit 0", "sent"),
        ('echo "accepted another"', "sent"),
        ("exit 75", "refused"),
        ("exit 1", "unconfirmed"),
        ("kill -9 $$", "unconfirmed"),
        ('echo "accepted $2"; exit 1', "unconfirmed"),
        ("exec sleep 600", "unconfirmed"),
    ],
)
def test_deliver(tmp_path: Path, script: str, outcome: str) -> None:
    seconds = 0.5 if "sleep" in script else 60.0
    assert SiteProgram(program(tmp_path, script), seconds).deliver("id-1", a_run(7), "text") == outcome


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('echo "accepted $2"', "accepted"),
        ('echo "unknown $2"', "not_taken"),
        ('echo "unknown other"', "unconfirmed"),
        ('echo "unknown $2"; exit 1', "unconfirmed"),
        ("exit 0", "unconfirmed"),
    ],
)
def test_query(tmp_path: Path, script: str, found: str) -> None:
    assert SiteProgram(program(tmp_path, script), 60.0).query("id-1") == found


def test_a_program_that_is_not_there_has_taken_nothing(tmp_path: Path) -> None:
    assert SiteProgram(str(tmp_path / "none")).deliver("id-1", a_run(7), "text") == "refused"


def test_an_act_gets_the_job_and_no_environment_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    script = f'echo "$1 $2 $3 $4 ${{SECRET:-none}}" > {tmp_path}/said'
    assert SiteAct(program(tmp_path, script), "/usr/bin").act("id-1", a_run(7, requeue=True)) == "accepted"
    assert (tmp_path / "said").read_text() == "7 1790000000 id-1 requeue none\n"
