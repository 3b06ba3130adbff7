"""The NVML worker against the simulated library: what it reads, and what becomes of it when the driver misbehaves."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import HostError
from fairlead.host import gpu
from fairlead.host.nvml import NvmlResult, Worker
from fairlead.host.tree_snapshot import without_activity
from fairlead.model.facts import Gpu, Missing
from tests.host.conftest import simulate
from tests.lab.faults import Faults
from tests.lab.trees import MACHINES


@pytest.fixture
def worker(faults: Faults) -> Iterator[Worker]:
    made = Worker(deadline_seconds=20)
    yield made
    made.close()


@pytest.fixture
def hasty(faults: Faults) -> Iterator[Worker]:
    """A worker whose deadline is short, and which is not killed for long; warmed up."""
    made = Worker(deadline_seconds=20, kill_after_seconds=60)
    healthy(made)
    made.deadline_seconds = 0.3
    yield made
    made.kill_after_seconds = 0.0
    made.close()


def healthy(worker: Worker) -> dict[str, Any]:
    result = worker.sweep()
    assert isinstance(result.raw, dict), result
    assert result.stuck is None
    return result.raw


def gpus(worker: Worker) -> tuple[Gpu, ...]:
    found = gpu.gpus(healthy(worker))
    assert isinstance(found, tuple), found
    return found


def until(worker: Worker, holds: Callable[[NvmlResult], bool], seconds: float = 90.0) -> NvmlResult:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = worker.sweep()
        if holds(result):
            return result
        time.sleep(0.05)
    raise AssertionError(f"never held; last: {result}")


@pytest.mark.parametrize("machine", ["hgx-h100", "hgx-a100", "l40s-pcie"])
def test_what_it_reads_is_what_the_tree_says(
    machine: str, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(machine, library, tmp_path, monkeypatch)
    worker = Worker()
    try:
        raw = without_activity(healthy(worker))
    finally:
        worker.close()
    tree = json.loads((MACHINES / machine / "nvml.json").read_text())
    assert gpu.gpus(raw) == gpu.gpus(tree)
    assert gpu.driver(raw, "x") == gpu.driver(tree, "x")
    for read, recorded in zip(raw["gpus"], tree["gpus"], strict=True):
        differing = {k: (read[k], recorded.get(k)) for k in read if read[k] != recorded.get(k)}
        assert differing == {}


def test_second_sweep_sees_changed_counters(worker: Worker, faults: Faults) -> None:
    before = gpus(worker)
    faults.set(2, "ecc.volatile_uncorrected", 3)
    faults.set(5, "remap.failed", 1)
    faults.set(1, "pcie.width_current", 8)
    faults.set(4, "nvlink.7.active", 0)
    faults.set(6, "fabric.state", 1)  # judged on thorough looks, like clocks and links: read anew for each of them
    faults.set(7, "application_clocks.sm_hertz", 990_000_000)
    time.sleep(0.01)
    after = gpus(worker)
    assert [g.uuid for g in after] == [g.uuid for g in before]
    assert after[2].ecc.volatile_uncorrected == 3  # type: ignore[union-attr]
    assert after[5].remap.failed is True  # type: ignore[union-attr]
    assert after[1].pcie.width_current == 8  # type: ignore[union-attr]
    assert after[4].nvlinks[7].active is False  # type: ignore[index]
    assert (after[6].load.fabric.state, after[7].state.application_sm_hertz) == (1, 990_000_000)  # type: ignore[union-attr]
    assert after[0] == before[0]


def test_nvlink_errors_within_seconds(worker: Worker, faults: Faults) -> None:
    gpus(worker)
    faults.set(4, "nvlink.7.crc_errors", 12)
    until(worker, lambda r: isinstance(r.raw, dict) and r.raw["gpus"][4]["nvlink"][7]["crc_errors"] == 12)


def test_nvlink_errors_by_counters_where_there_are_no_fields(worker: Worker, faults: Faults) -> None:
    faults.error(None, "nvmlDeviceGetFieldValues", 13)
    faults.set(4, "nvlink.7.replay_errors", 5)
    found = gpus(worker)
    assert found[4].nvlinks[7].replay_errors == 5  # type: ignore[index]
    assert found[4].nvlinks[6].replay_errors == 0  # type: ignore[index]
    assert isinstance(found[4].recovery_action, Missing)


def test_lost_gpu_keeps_its_name_and_the_others_their_values(worker: Worker, faults: Faults) -> None:
    before = gpus(worker)
    faults.lost(3)
    time.sleep(0.01)
    after = gpus(worker)
    assert [g.lost for g in after] == [False, False, False, True, False, False, False, False]
    assert (after[3].pci, after[3].uuid, after[3].serial, after[3].minor) == (
        before[3].pci, before[3].uuid, before[3].serial, before[3].minor
    )  # fmt: skip
    assert isinstance(after[3].temperature_celsius, Missing)
    assert isinstance(after[3].ecc, Missing)
    assert "GPU_IS_LOST (15)" in after[3].temperature_celsius.detail
    assert [g for g in after if not g.lost] == [g for g in before if g.index != 3]
    faults.clear()
    time.sleep(0.01)
    assert gpus(worker) == before


def test_gpu_whose_handle_is_gone_is_still_known(worker: Worker, faults: Faults) -> None:
    before = gpus(worker)
    faults.handle_lost(6)
    time.sleep(0.01)
    gpus(worker)  # notices it is lost
    after = gpus(worker)  # asks for handles anew, and gets none
    assert after[6].lost
    assert after[6].pci == before[6].pci
    assert after[6].uuid == before[6].uuid


def test_gpu_lost_before_the_worker_began(worker: Worker, faults: Faults) -> None:
    faults.handle_lost(6)
    found = gpus(worker)
    assert len(found) == 8
    assert found[6].lost
    assert found[6].pci == ""
    assert isinstance(found[6].uuid, Missing)


def test_error_of_one_value_on_one_gpu(worker: Worker, faults: Faults) -> None:
    gpus(worker)
    faults.error(4, "nvmlDeviceGetTemperature", 999)
    time.sleep(0.01)
    found = gpus(worker)
    assert isinstance(found[4].temperature_celsius, Missing)
    assert found[4].temperature_celsius.detail == "NVML UNKNOWN (999)"
    assert not found[4].lost
    assert found[3].temperature_celsius == 34
    faults.error(4, "nvmlDeviceGetTemperature", 0)
    time.sleep(0.01)
    assert gpus(worker)[4].temperature_celsius == 34


def test_field_error_leaves_the_rest_of_the_batch(worker: Worker, faults: Faults) -> None:
    faults.set(1, "ecc.aggregate_corrected", {"error": 999})
    found = gpus(worker)
    assert isinstance(found[1].ecc.aggregate_corrected, Missing)  # type: ignore[union-attr]
    assert found[1].ecc.volatile_corrected == 0  # type: ignore[union-attr]
    assert found[1].pcie.replays == 0  # type: ignore[union-attr]


def test_driver_not_loaded_then_loaded(worker: Worker, faults: Faults) -> None:
    faults.error(None, "nvmlInit", 9)
    raw = healthy(worker)
    found = gpu.gpus(raw)
    assert isinstance(found, Missing)
    assert found.detail == "NVML DRIVER_NOT_LOADED (9) from nvmlInit_v2"
    faults.error(None, "nvmlInit", 0)
    until(worker, lambda r: isinstance(r.raw, dict) and "gpus" in r.raw)


def test_driver_unloaded_under_us(worker: Worker, faults: Faults) -> None:
    before = gpus(worker)
    faults.error(None, "nvmlDeviceGetCount", 1)
    time.sleep(0.01)
    assert isinstance(gpu.gpus(healthy(worker)), Missing)
    faults.error(None, "nvmlDeviceGetCount", 0)
    result = until(worker, lambda r: isinstance(r.raw, dict) and "gpus" in r.raw)
    assert gpu.gpus(result.raw) == before


def test_no_library(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nonexistent")
    worker = Worker()
    try:
        found = gpu.gpus(worker.sweep().raw)
    finally:
        worker.close()
    assert isinstance(found, Missing)
    assert "LIBRARY_NOT_FOUND (12)" in found.detail


def hung(worker: Worker, faults: Faults) -> NvmlResult:
    """What a sweep says once the worker waits in the call that hangs: on a busy machine it is on its way there for a while."""
    faults.hang("nvmlDeviceGetPowerUsage", 5)
    return until(worker, lambda r: r.stuck is not None and r.stuck.call == "nvmlDeviceGetPowerUsage")


def test_hang_is_named_and_a_late_answer_heals(hasty: Worker, faults: Faults) -> None:
    pid = hasty.pid
    result = hung(hasty, faults)
    assert isinstance(result.raw, Missing)
    assert result.stuck is not None
    assert (result.stuck.call, result.stuck.gpu) == ("nvmlDeviceGetPowerUsage", "0000:c3:00.0")
    assert result.stuck.process_state in ("S", "R", "D")
    again = hasty.sweep()
    assert again.stuck is not None
    assert again.stuck.seconds > result.stuck.seconds
    faults.lift()
    recovered = until(hasty, lambda r: isinstance(r.raw, dict))
    assert recovered.stuck is None
    assert hasty.pid == pid


def test_hung_worker_is_killed_once_and_replaced(hasty: Worker, faults: Faults) -> None:
    pid = hasty.pid
    hung(hasty, faults)
    hasty.kill_after_seconds = 0.6
    until(hasty, lambda r: hasty.pid != pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    hasty.kill_after_seconds = 60
    faults.lift()
    until(hasty, lambda r: isinstance(r.raw, dict))


def test_a_hang_keeps_its_name_and_its_age_over_killed_workers(hasty: Worker, faults: Faults) -> None:
    hung(hasty, faults)
    hasty.kill_after_seconds = 0.6
    pids, ages = set(), []
    deadline = time.monotonic() + 90
    while len(pids) < 3 and time.monotonic() < deadline:
        result = hasty.sweep()
        pids.add(hasty.pid)
        assert isinstance(result.raw, Missing)
        assert result.stuck is not None, result
        assert (result.stuck.call, result.stuck.gpu) == ("nvmlDeviceGetPowerUsage", "0000:c3:00.0")
        ages.append(result.stuck.seconds)
        time.sleep(0.02)
    assert len(pids) >= 3, "the worker was not replaced"
    assert ages == sorted(ages)
    hasty.kill_after_seconds = 60
    faults.lift()
    assert until(hasty, lambda r: isinstance(r.raw, dict)).stuck is None


def test_slow_driver_is_not_hung(worker: Worker, faults: Faults) -> None:
    faults.delay("nvmlDeviceGetPowerUsage", 20)
    assert len(gpus(worker)) == 8


def test_crash_is_reported_and_the_worker_started_anew(worker: Worker, faults: Faults) -> None:
    gpus(worker)
    faults.crash("nvmlDeviceGetUtilizationRates", 2)
    time.sleep(0.01)
    result = worker.sweep()
    assert isinstance(result.raw, Missing)
    assert "SIGABRT" in result.raw.detail
    assert "nvmlDeviceGetUtilizationRates" in result.raw.detail
    assert result.stuck is not None
    assert (result.stuck.gpu, result.stuck.process_state) == ("0000:52:00.0", "X")
    assert worker.crashes == 1
    faults.clear()
    assert gpu.gpus(until(worker, lambda r: isinstance(r.raw, dict)).raw)


def test_a_worker_that_dies_again_and_again_is_said_from_the_first_time_on(worker: Worker, faults: Faults) -> None:
    gpus(worker)
    faults.crash("nvmlDeviceGetUtilizationRates", 2)
    time.sleep(0.01)
    seconds, end = [], time.monotonic() + 90
    while (worker.crashes < 2 or seconds[-1] <= 2) and time.monotonic() < end:  # deaths, and sweeps while it waits for a start
        result = worker.sweep()
        assert isinstance(result.raw, Missing) and result.stuck is not None
        assert (result.stuck.call, result.stuck.process_state) == ("nvmlDeviceGetUtilizationRates", "X")
        seconds.append(result.stuck.seconds)
        time.sleep(0.1)
    assert worker.crashes >= 2 and seconds == sorted(seconds) and seconds[-1] > 2
    faults.clear()
    worker.hurry()
    assert until(worker, lambda r: isinstance(r.raw, dict)).stuck is None


def test_a_worker_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    result = Worker().sweep()
    assert isinstance(result.raw, Missing) and "cannot be started" in result.raw.detail
    assert result.stuck is not None and (result.stuck.call, result.stuck.process_state) == ("", "X")


def test_worker_killed_from_outside(worker: Worker) -> None:
    gpus(worker)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    result = until(worker, lambda r: isinstance(r.raw, Missing))
    assert "SIGKILL" in result.raw.detail  # type: ignore[union-attr]
    until(worker, lambda r: isinstance(r.raw, dict))


def test_sweep_while_something_else_is_watched(worker: Worker, faults: Faults) -> None:
    """The daemon's loop: poll() does not block while the driver takes its time."""
    gpus(worker)
    faults.hang("nvmlDeviceGetPowerUsage")
    time.sleep(0.01)
    worker.start_sweep()
    turns = 0
    while (result := worker.poll()) is None:
        readable, _, _ = select.select([worker.fileno()], [], [], 0.02)
        turns += not readable
        assert worker.next_poll() < float("inf")
        if turns == 3:
            faults.lift()
    assert isinstance(result.raw, dict)
    assert turns >= 3
    assert worker.poll() is None
    assert worker.next_poll() == float("inf")


def test_set_persistence_reads_back(worker: Worker) -> None:
    before = gpus(worker)
    worker.set(before[1].pci, "persistence", 1)
    assert [g.persistence for g in gpus(worker)] == [False, True, False, False, False, False, False, False]


def test_set_refused(worker: Worker, faults: Faults) -> None:
    faults.error(1, "nvmlDeviceSetPersistenceMode", 4)
    with pytest.raises(HostError, match=r"cannot set persistence to 1: NVML NO_PERMISSION \(4\)"):
        worker.set("0000:43:00.0", "persistence", 1)
    with pytest.raises(HostError, match="FUNCTION_NOT_FOUND"):
        worker.set("0000:43:00.0", "warp_speed", 1)
    with pytest.raises(HostError, match="cannot set"):
        worker.set("0000:ff:00.0", "persistence", 1)


def test_set_that_hangs_comes_back(worker: Worker, faults: Faults) -> None:
    gpus(worker)
    faults.hang("nvmlDeviceSetPersistenceMode", 1)
    time.sleep(0.01)
    with pytest.raises(HostError, match="nvmlDeviceSetPersistenceMode has not come back"):
        worker.set("0000:43:00.0", "persistence", 1, deadline_seconds=2.0)
    faults.lift()


def test_release_lets_go_of_the_device(worker: Worker) -> None:
    gpus(worker)
    pid = worker.pid
    worker.release()
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)
    result = worker.sweep()
    assert isinstance(result.raw, Missing)
    assert "let go of" in result.raw.detail
    worker.reattach()
    assert len(gpus(worker)) == 8


def test_worker_inherits_no_descriptor(worker: Worker, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as secret:
        os.set_inheritable(secret.fileno(), True)
        gpus(worker)
        targets = [os.readlink(f"/proc/{worker.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{worker.pid}/fd")]
    assert os.fspath(tmp_path / "secret") not in targets


def test_worker_ends_with_its_parent(faults: Faults) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        worker = Worker()
        worker.sweep()
        os.write(write, f"{worker.pid}\n".encode())
        os._exit(0)  # no close(): as after SIGKILL
    os.close(write)
    pid = int(os.read(read, 100))
    os.close(read)
    os.waitpid(child, 0)
    end = time.monotonic() + 90
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
