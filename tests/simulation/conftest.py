"""The simulated library, and one machine to ask it about."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pynvml
import pytest

from tests.lab.faults import Faults
from tests.lab.machines import read_nvml
from tests.lab.nvml.library import build, write_conf
from tests.lab.trees import MACHINES

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Machine:
    """One simulated machine: its tree, the library's files, and what a client process needs in its environment."""

    tree: Path
    library: Path
    conf: Path
    faults: Faults

    @property
    def environment(self) -> dict[str, str]:
        """For a client: the library's folder and its two files."""
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAIRLEAD_SIM_NVML": str(self.conf),
            "FAIRLEAD_SIM_CONTROL": str(self.faults.control),
            "PYTHONPATH": str(ROOT),
        }

    @property
    def gpus(self) -> list[dict]:
        """The GPUs of its nvml.json."""
        return read_nvml(self.tree)["gpus"]


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The compiled library, kept in pytest's cache between runs."""
    return build(Path(request.config.cache.mkdir("simulated-nvml")))


@pytest.fixture
def machine_of(library: Path, tmp_path: Path) -> Callable[[str], Machine]:
    """Make a machine of a committed tree."""

    def make(tree: str) -> Machine:
        conf = write_conf(MACHINES / tree, tmp_path / "nvml.conf")
        return Machine(MACHINES / tree, library, conf, Faults(tmp_path / "nvml.control"))

    return make


@pytest.fixture
def machine(machine_of: Callable[[str], Machine]) -> Machine:
    """A healthy 8-GPU H100 machine."""
    return machine_of("hgx-h100.tuned")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Machine], None]]:
    """Load the library into this process, under unmodified nvidia-ml-py, for one machine."""
    loaded: list[Machine] = []

    def start(machine: Machine) -> None:
        for key in ("FAIRLEAD_SIM_NVML", "FAIRLEAD_SIM_CONTROL"):
            monkeypatch.setenv(key, machine.environment[key])
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(machine.library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        loaded.append(machine)

    yield start
    with contextlib.suppress(pynvml.NVMLError_Uninitialized):
        while loaded:
            pynvml.nvmlShutdown()


@pytest.fixture
def gpus(machine: Machine, load: Callable[[Machine], None]) -> list:
    """Handles of the healthy machine's GPUs, in this process."""
    load(machine)
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
