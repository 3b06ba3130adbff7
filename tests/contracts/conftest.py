"""The wheel of this checkout, built once, and environments into which it is installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*words: str | Path, code: int = 0) -> str:
    """Run a program in /. Return its standard output; fail where it ends with another code."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=240, check=False, cwd="/")
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def install(wheel: Path, folder: Path, dependencies: Path) -> Path:
    """Make a virtual environment with the wheel and, by a .pth file, what lies in ``dependencies``. Return its folder."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    site = next(folder.glob("lib/python3*/site-packages"))
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    words = ("install", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "pip", "--python", folder / "bin/python", *words)
    return folder


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that one of the processes of this run makes, for all of them."""
    of_run = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder = of_run / f"contracts-{name}"
    with open(of_run / f"contracts-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, as `python -m build` makes it."""
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir")
    (made,) = once(tmp_path_factory, "dist", lambda out: run(*build, out, PROJECT)).glob("fairlead-*.whl")
    return made


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the three dependencies that a node has."""
    nodes_have = tmp_path_factory.mktemp("dependencies")
    here = Path(next(p for p in sys.path if (Path(p) / "msgspec").is_dir()))
    for name in ("msgspec", "prometheus_client", "pynvml.py"):
        (nodes_have / name).symlink_to(here / name)
    return install(wheel, tmp_path_factory.mktemp("clean") / "venv", nodes_have)


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and everything that `pip install 'fairlead[provision]'` brings along."""
    here = Path(next(p for p in sys.path if (Path(p) / "msgspec").is_dir()))
    return once(tmp_path_factory, "admin", lambda folder: install(wheel, folder / "venv", here)) / "venv"
