"""What the proof refuses to begin on: a driver that is missing, crashes or hangs, a GPU in use. It says so in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.conftest import Machine

SEGFAULT = """
__attribute__((visibility("default"))) int nvmlInitWithFlags(unsigned int flags) { return *(volatile int *)(long)flags; }
__attribute__((visibility("default"))) int nvmlInit_v2(void) { return *(volatile int *)0; }
"""


def refused(machine: Machine, code: int, *words: str, options: tuple[str, ...] = ()) -> None:
    before = machine.faults.control.read_text()
    done = machine.run("--deadline-seconds", "3", *options)
    assert done.returncode == code, done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in (*words, "Nothing was changed.")), done.stderr
    assert not machine.report_folder.exists() and machine.faults.control.read_text() == before


def test_a_library_that_crashes_its_process(machine: Machine, compiled: Callable[[Path, str], Path], tmp_path: Path) -> None:
    source = tmp_path / "segfault.c"
    source.write_text(SEGFAULT)
    machine.environment["LD_LIBRARY_PATH"] = str(compiled(source, "libnvidia-ml.so.1"))
    refused(machine, 69, "ended by SIGSEGV in nvmlInit_v2", "install the driver again")


def test_a_driver_that_crashes_later(machine: Machine) -> None:
    machine.faults.crash("nvmlDeviceGetTemperature", 0)
    refused(machine, 69, "ended by SIGABRT in nvmlDeviceGetTemperature of 0000:1b:00.0")


def test_a_driver_that_hangs(machine: Machine) -> None:
    machine.faults.hang("nvmlInit")
    refused(machine, 69, "nvmlInit_v2 has not come back", "a reboot")


def test_no_driver(machine: Machine) -> None:
    machine.environment["LD_LIBRARY_PATH"] = "/nonexistent"
    refused(machine, 69, "LIBRARY_NOT_FOUND (12)", "run this on a machine with an NVIDIA GPU")


def test_no_such_gpu(machine: Machine) -> None:
    refused(machine, 66, "none has index 9", options=("--gpu", "9"))


def test_a_gpu_that_a_process_uses(machine: Machine) -> None:
    for key, value in (("0.pid", 4711), ("0.type", "C"), ("0.used_bytes", 1 << 30), ("count", 1)):
        machine.faults.set(0, f"processes.{key}", value)
    refused(machine, 75, "GPU 0000:1b:00.0 is in use: process 4711; wait until it is free")


def test_a_gpu_whose_memory_somebody_uses_whom_nvml_does_not_list(machine: Machine) -> None:
    machine.faults.set(0, "memory.used_bytes", 8 << 30)
    refused(machine, 75, "is in use: 8192 MiB of its memory, by no process that NVML lists")


@pytest.mark.slow
def test_a_gpu_in_use_is_used_if_a_person_insists_and_another_one_is_free(machine: Machine) -> None:
    machine.faults.set(0, "memory.used_bytes", 8 << 30)
    assert machine.run("--parts", "calls", "--in-use").returncode == 0
    assert machine.run("--parts", "calls", "--gpu", "1").returncode == 0


@pytest.mark.parametrize("options", [("--size", "100"), ("--parts", "no-such-part"), ("--gpu", "x"), ("--locked-clocks", "1200")])
def test_a_wrong_command_line(machine: Machine, options: tuple[str, ...]) -> None:
    done = machine.run(*options)
    assert done.returncode == 64 and done.stdout == "" and not machine.report_folder.exists()
