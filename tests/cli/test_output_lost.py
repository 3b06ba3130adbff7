"""Standard output that is closed, full or read by nobody: every command ends with a documented code, a line and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.cli import COMMANDS
from tests.lab.trees import MACHINES

PROJECT = Path(__file__).resolve().parents[2]
TREE = str(MACHINES / "hgx-h100")
#: Commands that print something on any machine; the others print their help.
SAYS: dict[str, tuple[str, ...]] = {
    "version": ("version",),
    "check": ("check", "--root", TREE, "--profile", "hgx-h100", "--json"),
    "explain": ("explain", "list"),
    "config": ("config", "schema"),
    "topology": ("topology", "--root", TREE),
    "env": ("env", "list"),
    "status": ("status", "--run-dir", "/nonexistent"),
    "bind": ("bind", "--root", TREE, "--tasks", "8", "--cpus", "0-111"),
    "slurm-config": ("slurm-config", "gres", TREE),
    "lint": ("lint", "job.sh"),
}
ALL = {name: SAYS.get(name, (name, "--help")) for name in COMMANDS} | {"": ("--help",)}
#: The exit code of a command that ends with 0 otherwise.
CODES = {"closed": 69, "full": 69, "reader gone": 141}


def run(words: tuple[str, ...], output: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:8\nexport NCCL_DEBUG=INFO\nsrun train\n")
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "fairlead", *words]
    command = ["bash", "-c", 'exec "$@" >&-', "bash", *command] if output == "closed" else command
    reading, writing = os.pipe()
    os.close(reading)  # the reader has gone before the command writes
    try:
        with open("/dev/full", "w", encoding="ascii") as full:
            out = writing if output == "reader gone" else full
            return subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, env=env, cwd=folder, timeout=120, check=False
            )
    finally:
        os.close(writing)


#: Each way of losing the output of a command that says something, and one of a command's help, the next one of the next help:
#: `make test-all` tries every pair.
PAIRS = [
    pytest.param(name, output, marks=[] if name in SAYS or at % len(CODES) == number else pytest.mark.slow)
    for at, name in enumerate(ALL)
    for number, output in enumerate(CODES)
]


@pytest.mark.parametrize(("name", "output"), PAIRS)
def test_output_that_is_lost(name: str, output: str, tmp_path: Path) -> None:
    done = run(ALL[name], output, tmp_path)
    codes = {CODES[output]} | ({1, 2, 3} if name in ("check", "status", "lint") and output != "reader gone" else set())
    assert done.returncode in codes, done
    said = done.stderr.splitlines()
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr, done.stderr
    if output == "reader gone":
        assert said == [], "whoever closed the pipe knows it"
    else:
        assert len(said) == 2 and said[0].startswith(f"fairlead {ALL[name][0]}: standard output: "), said
        assert said[1].startswith("  next: "), said


def test_every_stream_closed_is_no_bug(tmp_path: Path) -> None:
    """The next file that is opened would get the number of a stream, and a child process would write into it."""
    command = [sys.executable, "-m", "fairlead", *SAYS["check"]]
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent")}
    shell = ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *command]
    done = subprocess.run(shell, env=env, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode in (69, 1, 2, 3)


def test_a_name_that_the_locale_has_no_letter_for_is_printed(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(PROJECT / "agent"), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "fairlead", "lint", "größe.sh"]
    (tmp_path / "größe.sh").write_text("#!/bin/sh\nexport NCCL_IB_DISABLE=1\nsrun x\n")
    done = subprocess.run(command, capture_output=True, env=env, cwd=tmp_path, timeout=120, check=False)
    assert b"Traceback" not in done.stderr and b"gr\\xf6\\xdfe.sh" in done.stdout, done
