"""A machine to read: trees of tests/machines, the simulated NVML library, and small trees made on the spot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.faults import Faults
from tests.lab.nvml.library import build, write_conf
from tests.lab.trees import MACHINES


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The folder of the simulated libnvidia-ml.so.1, kept in pytest's cache between runs."""
    return build(Path(request.config.cache.mkdir("simulated-nvml"))).parent


@pytest.fixture
def faults(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Eight simulated H100s for processes started by the test, and what can be broken about them."""
    return simulate("hgx-h100", library, tmp_path, monkeypatch)


def simulate(machine: str, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    control = folder / "control"
    control.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", os.fspath(library))
    monkeypatch.setenv("FAIRLEAD_SIM_NVML", os.fspath(write_conf(MACHINES / machine, folder / "nvml.conf")))
    monkeypatch.setenv("FAIRLEAD_SIM_CONTROL", os.fspath(control))
    return Faults(control)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """An empty machine tree."""
    folder = tmp_path / "tree"
    folder.mkdir()
    yield folder


def write(tree: Path, path: str, content: str | bytes) -> None:
    """A file of a tree, by its path on the node."""
    at = tree / path.lstrip("/")
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content.encode() if isinstance(content, str) else content)
