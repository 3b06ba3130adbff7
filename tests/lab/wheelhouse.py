"""Wheels of fairlead's three dependencies for the Python of a root: nodes of the lab have no way out."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.lab.roots import LabError, lab_dir, locked, root

PROJECT = Path(__file__).resolve().parents[2]


def python_of(suite: str) -> str:
    """The version of the root's own Python, as "3.11"."""
    found = sorted(p.name.removeprefix("python") for p in (root(suite) / "usr/bin").glob("python3.*") if p.name[9:].isdigit())
    if not found:
        raise LabError(f"the root of {suite} has no python3")
    return found[-1]


def wheelhouse(suite: str) -> Path:
    """A folder of wheels, downloaded once by pip. Raises LabError with pip's last line."""
    version = python_of(suite)
    wanted: list[str] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]
    folder = lab_dir() / "wheels" / f"py{version}"
    with locked(f"wheels-{version}"):
        if (folder / ".done").exists() and (folder / ".done").read_text() == "\n".join(wanted):
            return folder
        print(f"lab: downloading wheels for Python {version}: {', '.join(wanted)}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        machine = os.uname().machine
        platforms = [f"--platform=manylinux_2_{n}_{machine}" for n in (17, 27, 28, 34, 35, 36)]
        platforms += [f"--platform=manylinux2014_{machine}"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", f"--python-version={version}"]
        done = subprocess.run(
            [*command, "--implementation=cp", *platforms, "--dest", str(folder), *wanted],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()
            raise LabError(f"pip could not download wheels for Python {version}: {last[-1] if last else done.returncode}")
        (folder / ".done").write_text("\n".join(wanted))
    return folder
