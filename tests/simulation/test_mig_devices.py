"""A MIG device answers as nvidia-smi shows it on a real GPU: what an instance has of its own, and NOT_SUPPORTED for the rest."""

from __future__ import annotations

import os
import time

import pynvml as n
import pytest

from tests.simulation.conftest import Machine

PROFILE_3G, PROFILE_1G = 9, 19  # profile ids of tests/lab/nvml/mig.c
MIB = 1 << 20


def make(gpu: object, profile: int) -> object:
    """Make a GPU instance with one compute instance that spans it."""
    instance = n.nvmlDeviceCreateGpuInstance(gpu, profile)
    slices = n.nvmlGpuInstanceGetInfo(instance).placement.size if profile == PROFILE_1G else 3
    spanning = {1: 0, 3: 2}[slices]
    return n.nvmlGpuInstanceCreateComputeInstance(instance, spanning)


@pytest.fixture
def divided(gpus: list, machine: Machine) -> list:
    """The MIG devices of GPU 0: one of three slices and one of one slice. GPU 1 stays whole."""
    n.nvmlDeviceSetMigMode(gpus[0], 1)
    make(gpus[0], PROFILE_3G)
    make(gpus[0], PROFILE_1G)
    return [n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], i) for i in range(2)]


def settle() -> None:
    """Wait until the library reads its control file again."""
    time.sleep(0.01)


def test_a_mig_device_has_a_name_ids_and_memory(divided: list, machine: Machine) -> None:
    large, small = divided
    name = machine.gpus[0]["name"]
    assert [n.nvmlDeviceGetName(d) for d in divided] == [f"{name} MIG 3g.40gb", f"{name} MIG 1g.10gb"]
    assert [(n.nvmlDeviceGetGpuInstanceId(d), n.nvmlDeviceGetComputeInstanceId(d)) for d in divided] == [(1, 0), (11, 0)]
    assert [n.nvmlDeviceGetMemoryInfo(d, n.nvmlMemory_v2).total for d in divided] == [4 * 9984 * MIB, 9984 * MIB]
    machine.faults.set(0, "mig.gi.11.used_bytes", 5 * MIB)
    machine.faults.set(0, "mig.gi.11.sram_uncorrected", 2)
    settle()
    assert [n.nvmlDeviceGetMemoryInfo(d).used for d in divided] == [0, 5 * MIB]
    assert [n.nvmlDeviceGetMemoryErrorCounter(d, 1, 0, n.NVML_MEMORY_LOCATION_SRAM) for d in divided] == [0, 2]
    machine.faults.set(0, "mig.gi.11.used_bytes", {"error": 999})
    settle()
    with pytest.raises(n.NVMLError_Unknown):
        n.nvmlDeviceGetMemoryInfo(small)
    assert n.nvmlDeviceGetMemoryInfo(large).used == 0


def test_a_uuid_leads_to_its_device(divided: list, gpus: list) -> None:
    uuids = [n.nvmlDeviceGetUUID(d) for d in divided]
    assert len(set(uuids)) == 2 and all(len(u) == len("MIG-") + 36 for u in uuids)
    for device, uuid in zip(divided, uuids, strict=True):
        found = n.nvmlDeviceGetHandleByUUID(uuid)
        assert n.nvmlDeviceGetName(found) == n.nvmlDeviceGetName(device)
        assert n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(found)) == n.nvmlDeviceGetUUID(gpus[0])
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetHandleByUUID("MIG-ffffffff-0000-0000-0000-000000000000")


def test_a_driver_counts_no_load_power_or_clock_of_an_instance(divided: list) -> None:
    calls = [
        n.nvmlDeviceGetUtilizationRates, n.nvmlDeviceGetPowerUsage, lambda d: n.nvmlDeviceGetTemperature(d, 0),
        lambda d: n.nvmlDeviceGetClockInfo(d, 1), n.nvmlDeviceGetRemappedRows,
        lambda d: n.nvmlDeviceGetMemoryErrorCounter(d, 0, 0, n.NVML_MEMORY_LOCATION_SRAM),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(n.NVMLError_NotSupported):
            call(divided[0])


def test_a_process_is_on_its_instance_and_in_the_gpus_list(divided: list, gpus: list, machine: Machine) -> None:
    for key, value in (("count", 1), ("0.pid", os.getpid()), ("0.used_bytes", MIB), ("0.gi", 11), ("0.ci", 0)):
        machine.faults.set(0, f"processes.{key}", value)
    settle()
    large, small = divided
    assert [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(small)] == [os.getpid()]
    assert n.nvmlDeviceGetComputeRunningProcesses(large) == []
    (process,) = n.nvmlDeviceGetComputeRunningProcesses(gpus[0])
    assert (process.gpuInstanceId, process.computeInstanceId) == (11, 0)
    made = n.nvmlDeviceGetGpuInstanceById(gpus[0], 11)
    with pytest.raises(n.NVMLError_InUse):
        n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(made, 0))
    free = n.nvmlDeviceGetGpuInstanceById(gpus[0], 1)
    n.nvmlComputeInstanceDestroy(n.nvmlGpuInstanceGetComputeInstanceById(free, 0))
    settle()
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetName(large)


def test_two_compute_instances_share_the_memory_of_their_gpu_instance(gpus: list, machine: Machine) -> None:
    n.nvmlDeviceSetMigMode(gpus[0], 1)
    instance = n.nvmlDeviceCreateGpuInstance(gpus[0], PROFILE_3G)
    for _ in range(2):
        n.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        settle()
    machine.faults.set(0, "mig.gi.1.used_bytes", MIB)
    settle()
    devices = [n.nvmlDeviceGetMigDeviceHandleByIndex(gpus[0], i) for i in range(2)]
    assert [n.nvmlDeviceGetName(d).rsplit(" ", 1)[1] for d in devices] == ["1c.3g.40gb"] * 2
    assert [(n.nvmlDeviceGetGpuInstanceId(d), n.nvmlDeviceGetComputeInstanceId(d)) for d in devices] == [(1, 0), (1, 1)]
    assert [n.nvmlDeviceGetMemoryInfo(d).used for d in devices] == [MIB, MIB]
    assert len({n.nvmlDeviceGetUUID(d) for d in devices}) == 2
