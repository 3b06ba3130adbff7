"""A simulated GPU for the proof: the simulated NVML library, a libcuda.so.1 that computes on the CPU, and a short run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.faults import Faults
from tests.lab.nvml.library import build, write_conf
from tests.lab.trees import MACHINES, PROJECT

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
#: A run that shows the same as `make gpu`, but of seconds.
SHORT = (
    "--idle-seconds", "1", "--load-seconds", "1", "--counter-seconds", "0.2", "--sessions", "1", "--size", "256",
    "--interval-seconds", "0.5",
)  # fmt: skip


class Machine:
    """A machine with simulated H100s, on which the proof runs. ``faults`` breaks the NVML library."""

    def __init__(self, folder: Path, libraries: list[Path]) -> None:
        self.report_folder = folder / "report"
        self.tree = MACHINES / "hgx-h100.tuned"
        self.faults = Faults(folder / "control")
        self.faults.control.touch()
        self.environment = os.environ | {
            "PYTHONPATH": f"{PROJECT / 'agent'}:{PROJECT}",
            "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
            "FAIRLEAD_SIM_NVML": str(write_conf(self.tree, folder / "nvml.conf")),
            "FAIRLEAD_SIM_CONTROL": str(self.faults.control),
        }

    def command(self, *options: str) -> list[str]:
        """The command line of a short run."""
        words = [sys.executable, "-m", "tests.gpu", "--report", str(self.report_folder), "--root", str(self.tree)]
        return [*words, *SHORT, *options]

    def run(self, *options: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run the proof to its end."""
        return subprocess.run(
            self.command(*options), env=self.environment, cwd="/", capture_output=True, text=True, timeout=seconds, check=False
        )

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start the proof."""
        return subprocess.Popen(
            self.command(*options), env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def report(self) -> dict[str, Any]:
        """The report as JSON; each part by its name."""
        found: dict[str, Any] = json.loads((self.report_folder / "report.json").read_text())
        return found | {"parts": {part["name"]: part for part in found["parts"]}}

    def text(self) -> str:
        """The readable report."""
        return (self.report_folder / "report.txt").read_text()

    def set_values(self, key: str) -> list[str]:
        """What the control file says that was set, in this order, for one key of GPU 0."""
        words = (line.split() for line in self.faults.control.read_text().splitlines())
        return [line[2] for line in words if line[:2] == ["set", f"gpu.0.{key}"]]


@pytest.fixture(scope="session")
def nvml_folder(request: pytest.FixtureRequest) -> Path:
    """The folder of the simulated libnvidia-ml.so.1."""
    return build(Path(request.config.cache.mkdir("simulated-nvml"))).parent


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Path]:
    """Compiles one C file to a library of this name, and returns its folder."""

    def compile_it(source: Path, name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        subprocess.run(["gcc", *FLAGS, f"-Wl,-soname,{name}", "-o", str(folder / name), str(source)], check=True, timeout=60)
        return folder

    return compile_it


@pytest.fixture(scope="session")
def cuda_folder(compiled: Callable[[Path, str], Path]) -> Path:
    """The folder of the simulated libcuda.so.1."""
    return compiled(HERE / "simulated_cuda.c", "libcuda.so.1")


@pytest.fixture
def machine(tmp_path: Path, nvml_folder: Path, cuda_folder: Path) -> Iterator[Machine]:
    """A healthy machine; what hangs in it is let go at the end."""
    made = Machine(tmp_path, [nvml_folder, cuda_folder])
    yield made
    made.faults.clear()
