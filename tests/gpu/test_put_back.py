"""What the proof changes is put back: at once, after a killed worker, after Ctrl-C, after a killed run. Else it is shouted."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import changed_settings
from tests.gpu.conftest import Machine

pytestmark = pytest.mark.root  # NVML's setters need root, also the simulated ones
SETTINGS = ("--parts", "settings")
LIMIT = "power.limit_milliwatts"


def until(met: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def slow_to_read(machine: Machine) -> None:
    """Keep the power limit changed for a second, because NVML takes that long to read it."""
    machine.faults.delay("nvmlDeviceGetPowerManagementLimit", 1000, 0)


def workers_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_each_setting_is_changed_and_is_again_what_it_was(machine: Machine) -> None:
    assert machine.run(*SETTINGS).returncode == 0
    assert machine.set_values("persistence_mode") == ["0", "1"]
    assert machine.set_values(LIMIT) == ["650000", "700000"]
    assert machine.set_values("locked.sm") == [str(990 << 16 | 990), "0"]
    assert machine.set_values("application_clocks.sm_hertz") == ["1830000000", "1980000000"]


@pytest.mark.slow
def test_the_lock_that_a_person_names_is_put_back(machine: Machine) -> None:
    assert machine.run(*SETTINGS, "--locked-clocks", "1200-1500").returncode == 0
    assert machine.set_values("locked.sm") == [str(990 << 16 | 990), str(1200 << 16 | 1500)]


@pytest.mark.slow
def test_no_settings_changes_nothing(machine: Machine) -> None:
    before = machine.faults.control.read_text()
    assert machine.run("--parts", "settings", "calls", "--no-settings").returncode == 0
    assert list(machine.report()["parts"]) == ["calls"] and machine.faults.control.read_text() == before


@pytest.mark.parametrize(("code", "words"), [(4, "not permitted"), pytest.param(3, "not supported", marks=pytest.mark.slow)])
def test_what_nvml_does_not_permit_is_said_and_the_others_are_tried(machine: Machine, code: int, words: str) -> None:
    machine.faults.error(None, "nvmlDeviceSetPowerManagementLimit", code)
    assert machine.run(*SETTINGS).returncode == 0
    assert f"power_limit_milliwatts: {words}" in machine.text()
    assert machine.set_values(LIMIT) == [] and machine.set_values("locked.sm")[-1] == "0"


def test_a_gpu_on_which_nothing_is_permitted_proves_nothing(machine: Machine) -> None:
    for call in ("PersistenceMode", "PowerManagementLimit", "GpuLockedClocks", "ApplicationsClocks"):
        machine.faults.error(None, f"nvmlDeviceSet{call}", 4)
    done = machine.run(*SETTINGS)
    assert (done.returncode, machine.report()["parts"]["settings"]["result"]) == (1, "not run")


def test_a_change_that_nvml_refuses_differs_and_needs_no_putting_back(machine: Machine) -> None:
    machine.faults.error(None, "nvmlDeviceSetPersistenceMode", 999)
    done = machine.run(*SETTINGS)
    assert done.returncode == 1 and "NOT PUT BACK" not in done.stderr
    assert "persistence was refused" in machine.report()["parts"]["settings"]["why"]


def test_a_lock_that_cannot_be_put_back_is_shouted_and_put_back_by_the_next_run(machine: Machine) -> None:
    machine.faults.error(None, "nvmlDeviceResetGpuLockedClocks", 999)
    done = machine.run(*SETTINGS)
    assert done.returncode == 1
    alarm = "NOT PUT BACK: locked_clocks of GPU 0000:1b:00.0 must be off"
    assert alarm in done.stderr and "Run: nvidia-smi -i 0000:1b:00.0 -rgc" in done.stderr
    assert machine.text().startswith(alarm), "it is the first thing that a person reads"
    assert machine.report()["parts"]["settings"]["result"] == "failed"
    assert machine.set_values("application_clocks.sm_hertz") == [], "nothing more is changed then"
    machine.faults.error(None, "nvmlDeviceResetGpuLockedClocks", 0)
    assert machine.run("--parts", "calls").returncode == 0
    assert machine.set_values("locked.sm")[-1] == "0" and "put back after an earlier run: locked_clocks" in machine.text()
    assert not (machine.report_folder / "changed-settings.json").exists()


@pytest.mark.slow
def test_a_lock_that_stays_although_nvml_says_that_it_is_gone_is_shouted(machine: Machine) -> None:
    """The clock itself shows whether a lock has gone: after the reset it stays where the lock was."""
    machine.faults.delay("nvmlDeviceGetClockInfo", 500, 0)
    process = machine.start(*SETTINGS)
    until(lambda: len(machine.set_values("locked.sm")) == 1, "the lock")
    machine.faults.set(0, "clocks.sm_hertz", 990_000_000)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "NOT PUT BACK: locked_clocks" in errors and "NVML reads 990000000" in errors


def test_a_worker_that_is_killed_while_a_setting_is_changed(machine: Machine) -> None:
    slow_to_read(machine)
    process = machine.start(*SETTINGS)
    until(lambda: machine.set_values(LIMIT) == ["650000"], "the power limit")
    for pid in workers_of(process.pid):
        os.kill(pid, signal.SIGKILL)
    machine.faults.delay("nvmlDeviceGetPowerManagementLimit", 0, 0)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert machine.set_values(LIMIT) == ["650000", "700000"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_run_that_is_interrupted_puts_back_first(machine: Machine, number: signal.Signals) -> None:
    slow_to_read(machine)
    process = machine.start(*SETTINGS)
    until(lambda: machine.set_values(LIMIT) == ["650000"], "the power limit")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "INTERRUPTED" in errors and "NOT PUT BACK" not in errors
    assert machine.set_values(LIMIT) == ["650000", "700000"] and not machine.report()["complete"]


def test_a_run_that_is_killed_leaves_a_journal_from_which_the_next_run_puts_back(machine: Machine) -> None:
    slow_to_read(machine)
    process = machine.start(*SETTINGS)
    until(lambda: machine.set_values(LIMIT) == ["650000"], "the power limit")
    process.kill()
    process.communicate(timeout=60)
    listed = json.loads((machine.report_folder / "changed-settings.json").read_text())
    assert [(entry["what"], entry["before"]) for entry in listed] == [("power_limit_milliwatts", 700_000)]
    machine.faults.hang("nvmlInit")  # a driver that hangs now
    done = machine.run("--parts", "calls", "--deadline-seconds", "1")
    assert done.returncode == 69 and "Run: nvidia-smi -i 0000:1b:00.0 -pl 700" in done.stderr
    machine.faults.clear()
    machine.faults.set(0, LIMIT, 650_000)
    assert machine.run("--parts", "calls").returncode == 0
    assert machine.set_values(LIMIT)[-1] == "700000"


def test_a_file_that_is_no_journal_is_not_overwritten(machine: Machine) -> None:
    machine.report_folder.mkdir()
    path = machine.report_folder / "changed-settings.json"
    path.write_text("[{")
    done = machine.run(*SETTINGS)
    assert done.returncode == 65 and "is no journal" in done.stderr and path.read_text() == "[{"
    path.unlink()
    path.mkdir()
    done = machine.run(*SETTINGS)
    assert done.returncode == 65 and "Is a directory" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("trial", "command"),
    [
        (changed_settings.Trial("0000:1b:00.0", "persistence", 0, 1), "nvidia-smi -i 0000:1b:00.0 -pm 1"),
        (changed_settings.Trial("0000:1b:00.0", "locked_clocks", "990-990", "1200-1500"),
         "nvidia-smi -i 0000:1b:00.0 -lgc 1200,1500"),
        (changed_settings.Trial("0000:1b:00.0", "application_clocks", "2619,1830", "2619,1980"),
         "nvidia-smi -i 0000:1b:00.0 -ac 2619,1980"),
    ],
)  # fmt: skip
def test_the_command_with_which_a_person_puts_back(trial: changed_settings.Trial, command: str) -> None:
    assert trial.by_hand == command
