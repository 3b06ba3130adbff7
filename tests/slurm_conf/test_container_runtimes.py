"""What doctor says of container runtimes that are configured: not there, too old, or known to lose the binding.

tests/slurm/test_container_jobs.py asks doctor on nodes with real runtimes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli import main
from fairlead.slurm.container_runtimes import parse_version, review_runtimes, wanted

PYXIS = "/usr/lib/slurm/spank_pyxis.so"
PLUGSTACK = f"required {PYXIS}\n"
OCI = 'RunTimeQuery="crun --rootless=true state %n"\nruntimerun = "/usr/bin/runc run %n"\n#RunTimeKill="youki"\n'
Found = dict[str, tuple[int, ...] | None]
THERE: Found = {PYXIS: (), "enroot": (4, 1, 2), "crun": (1, 21), "/usr/bin/runc": (1, 1, 15)}


def said(found: Found, *, plugstack: str = PLUGSTACK, enroot: bool = True, slurm: tuple[int, ...] = (24, 11, 5)) -> list[str]:
    remarks = review_runtimes(plugstack, OCI, enroot=enroot, slurm=slurm, found=THERE | found)
    return [f"{r.level} {r.what}" for r in remarks]


def test_what_is_looked_for() -> None:
    assert wanted(PLUGSTACK, OCI, enroot=True) == (PYXIS, "enroot", "crun", "/usr/bin/runc")
    assert wanted("", "", enroot=True) == ("enroot",)
    assert wanted(f"#{PLUGSTACK}optional /x/fairlead.so\n", "EnvExclude=^A\n", enroot=False) == ()


def test_hostile_names_are_not_looked_for() -> None:
    assert wanted("required /x/\x1b[31mpyxis.so\n", 'RunTimeRun="/tmp/\x1b[31mx run"\nRunTimeRun=\n', enroot=False) == ()
    assert wanted("", f"RunTimeRun={'x' * 300}\n", enroot=False) == ()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({}, []),
        ({"enroot": None}, ["wrong pyxis is configured, and enroot is not there"]),
        ({"enroot": (3, 0, 9)}, ["wrong enroot 3.0.9 is too old for pyxis"]),
        ({"enroot": ()}, []),
        ({PYXIS: None}, [f"wrong plugstack.conf: {PYXIS} is not there"]),
        ({"crun": None}, ["wrong oci.conf: crun is not there"]),
        ({"crun": (1, 28)}, ["note oci.conf: crun 1.28 gives a container all CPUs of the step"]),
        ({"/usr/bin/runc": (1, 3, 6)}, ["note oci.conf: runc 1.3.6 gives a container all CPUs of the step"]),
        ({"crun": ()}, []),
    ],
)
def test_each_flaw(found: Found, expected: list[str]) -> None:
    assert said(found) == expected


def test_a_slurm_that_is_too_old_and_a_declared_setting_without_enroot() -> None:
    assert said({}, slurm=(20, 11, 9)) == ["wrong oci.conf with Slurm 20.11, which is too old"]
    assert said({"enroot": None}, plugstack="") == ["warn the setting enroot is declared, and enroot is not there"]
    assert said({"enroot": None}, plugstack="", enroot=False) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("crun version 1.28\ncommit: 1a2b3c\n", (1, 28)),
        ("runc version 1.3.6+ds1\nspec: 1.2.1\n", (1, 3, 6)),
        ("4.1.2\n", (4, 1, 2)),
        ("", ()),
        ("crun version UNKNOWN\n", ()),
    ],
)
def test_the_release_in_what_a_program_prints(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


@given(st.text(), st.text())
def test_any_text_is_read(plugstack: str, oci: str) -> None:
    names = wanted(plugstack, oci, enroot=False)
    assert len(list(review_runtimes(plugstack, oci, enroot=False, slurm=None, found=dict.fromkeys(names)))) >= bool(names)
    parse_version(oci)


def test_the_command_looks_below_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc/slurm").mkdir(parents=True)
    (tmp_path / "etc/slurm/slurm.conf").write_text("ClusterName=c\n")
    (tmp_path / "etc/slurm/plugstack.conf").write_text(PLUGSTACK)
    (tmp_path / "etc/slurm/oci.conf").write_text(OCI)
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/runc").touch()
    assert main(["doctor", "--root", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    for line in (f"plugstack.conf: {PYXIS} is not there", "pyxis is configured, and enroot is not there", "crun is not there"):
        assert line in out
    assert "/usr/bin/runc is not there" not in out


def test_a_program_in_a_users_folder_is_not_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm would start such a program as the job's user, and doctor may run as root."""
    started = tmp_path / "started"
    (tmp_path / "crun").write_text(f"#!/bin/sh\n: >{started}\necho crun version 1.28\n")
    (tmp_path / "crun").chmod(0o755)
    (tmp_path / "slurm.conf").write_text("ClusterName=c\n")
    (tmp_path / "oci.conf").write_text(f'RunTimeRun="{tmp_path}/crun run"\nRunTimeQuery="../..{tmp_path}/crun state"\n')
    main(["doctor", "--slurm-conf", str(tmp_path / "slurm.conf")])
    assert not started.exists()
    assert f"oci.conf: {tmp_path}/crun" not in capsys.readouterr().out, "the file is there"
