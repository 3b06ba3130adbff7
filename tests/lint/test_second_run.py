"""Of what failed in `make test`, only a test of real Slurm or of the rack may pass when it runs again, and it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
INI = "[pytest]\nmarkers =\n    slurm: real Slurm\n    rack: the rack\n    root: needs root\n"
#: Fails the first time, and passes when it is run again.
ONCE = """
@pytest.mark.{mark}
def test_{name}() -> None:
    there = pathlib.Path({name!r}).exists()
    pathlib.Path({name!r}).touch()
    assert there
"""
ALWAYS = "@pytest.mark.slurm\ndef test_always() -> None:\n    assert False\n"


def outcome(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_it.py").write_text("import pathlib\nimport pytest\n" + text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_run", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "PYTHONPATH": str(PROJECT)}
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")])
@pytest.mark.parametrize("mark", ["slurm", "rack"])
def test_a_race_is_named_and_fails_nothing(tmp_path: Path, mark: str, options: tuple[str, ...]) -> None:
    code, said = outcome(tmp_path, ONCE.format(mark=mark, name="race"), *options)
    assert code == 0
    assert "RACE test_it.py::test_race" in said
    assert "1 failed" in said, "what failed first is shown as well"


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, ONCE.format(mark="slurm", name="race") + ALWAYS)
    assert (code, "RACE" in said) == (1, False)


def test_no_other_test_is_run_again(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, ONCE.format(mark="slurm", name="race") + ONCE.format(mark="root", name="plain"))
    assert (code, "runs again" in said) == (1, False)


def test_many_failures_are_no_race(tmp_path: Path) -> None:
    code, said = outcome(tmp_path, "".join(ONCE.format(mark="slurm", name=f"race{n}") for n in range(4)))
    assert (code, "runs again" in said) == (1, False)
