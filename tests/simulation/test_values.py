"""Every value of nvml.json comes back from the library through unmodified nvidia-ml-py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pynvml as n
import pytest

from tests.lab.machines import read_nvml

TREES = (
    "hgx-h100", "hgx-h100.tuned", "hgx-a100", "l40s-pcie", "hgx-h100.xid79", "hgx-h100.row-remap-failed",
    "hgx-h100.width-x8", "hgx-h100.ecc-unreadable", "hgx-h100.numa-minus-1", "hgx-b200",
)  # fmt: skip


def _field(number: int, scope: int = 0) -> Callable[[Any], int]:
    def read(handle: Any) -> int:
        (value,) = n.nvmlDeviceGetFieldValues(handle, [(number, scope)])
        if value.nvmlReturn:
            raise n.NVMLError(value.nvmlReturn)
        wide = value.valueType == n.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return value.value.ullVal if wide else value.value.uiVal

    return read


def _cpus(handle: Any) -> str:
    words = list(n.nvmlDeviceGetCpuAffinity(handle, 4))
    bits = [w * 64 + b for w, word in enumerate(words) for b in range(64) if word >> b & 1]
    runs: list[list[int]] = []
    for bit in bits:
        if runs and runs[-1][1] == bit - 1:
            runs[-1][1] = bit
        else:
            runs.append([bit, bit])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _numa(handle: Any) -> int:
    (word,) = n.nvmlDeviceGetMemoryAffinity(handle, 1, n.NVML_AFFINITY_SCOPE_NODE)
    return int(word).bit_length() - 1


def _pci(handle: Any) -> str:
    return n.nvmlDeviceGetPciInfo(handle).busId[4:].lower()


def _ecc(kind: int, counter: int) -> Callable[[Any], int]:
    return lambda h: n.nvmlDeviceGetTotalEccErrors(h, kind, counter)


def _sram(member: str) -> Callable[[Any], int]:
    def read(handle: Any) -> int:
        status = n.c_nvmlEccSramErrorStatus_v1_t()
        status.version = n.nvmlEccSramErrorStatus_v1
        n.nvmlDeviceGetSramEccErrorStatus(handle, n.byref(status))
        return int(getattr(status, member))

    return read


def _fabric(member: str) -> Callable[[Any], Any]:
    def read(handle: Any) -> Any:
        info = n.c_nvmlGpuFabricInfo_v2_t()
        info.version = n.nvmlGpuFabricInfo_v2
        n.nvmlDeviceGetGpuFabricInfoV(handle, n.byref(info))
        return bytes(info.clusterUuid).hex() if member == "clusterUuid" else getattr(info, member)

    return read


NVLINK5 = {
    "malformed_packets": 206, "receive_errors": 208, "recoveries_failed": 214, "recoveries": 215, "effective_errors": 219,
    "effective_ber_code": 220, "symbol_ber_code": 222,
}  # fmt: skip


def _field_of(handle: Any, field: int, scope: int) -> int:
    value = n.nvmlDeviceGetFieldValues(handle, [(field, scope)])[0]
    if value.nvmlReturn:
        raise n.NVMLError(value.nvmlReturn)
    return value.value.ullVal


def _nvlink(link: int, what: str) -> Callable[[Any], Any]:
    counters = {"replay_errors": 0, "recovery_errors": 1, "crc_errors": 2}
    if what in NVLINK5:
        return lambda h: _field_of(h, NVLINK5[what], link)
    if what in counters:
        return lambda h: n.nvmlDeviceGetNvLinkErrorCounter(h, link, counters[what])
    if what == "remote":
        return lambda h: {2: "switch"}[n.nvmlDeviceGetNvLinkRemoteDeviceType(h, link)]
    return lambda h: getattr(n, f"nvmlDeviceGetNvLink{'State' if what == 'active' else 'Version'}")(h, link)


def _hertz(call: Callable[..., int], kind: int) -> Callable[[Any], int]:
    return lambda h: call(h, kind) * 1_000_000


def _mig(handle: Any) -> Any:
    """On a GPU without MIG; with it, see tests/settings/test_gpu_state_settings.py."""
    return n.nvmlDeviceGetMigMode(handle)


READERS: dict[str, Callable[[Any], Any]] = {
    "index": n.nvmlDeviceGetIndex,
    "pci": _pci,
    "pci_device_id": lambda h: n.nvmlDeviceGetPciInfo(h).pciDeviceId,
    "pci_subsystem_id": lambda h: n.nvmlDeviceGetPciInfo(h).pciSubSystemId,
    "uuid": n.nvmlDeviceGetUUID,
    "serial": n.nvmlDeviceGetSerial,
    "minor": n.nvmlDeviceGetMinorNumber,
    "name": n.nvmlDeviceGetName,
    "board_part_number": n.nvmlDeviceGetBoardPartNumber,
    "vbios_version": n.nvmlDeviceGetVbiosVersion,
    "inforom_image_version": n.nvmlDeviceGetInforomImageVersion,
    "architecture": n.nvmlDeviceGetArchitecture,
    "brand": n.nvmlDeviceGetBrand,
    "compute_capability.0": lambda h: n.nvmlDeviceGetCudaComputeCapability(h)[0],
    "compute_capability.1": lambda h: n.nvmlDeviceGetCudaComputeCapability(h)[1],
    "cores": n.nvmlDeviceGetNumGpuCores,
    "memory.total_bytes": lambda h: n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).total,
    "memory.reserved_bytes": lambda h: n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).reserved,
    "memory.used_bytes": lambda h: n.nvmlDeviceGetMemoryInfo(h, n.nvmlMemory_v2).used,
    "bar1.total_bytes": lambda h: n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Total,
    "bar1.used_bytes": lambda h: n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used,
    "persistence_mode": n.nvmlDeviceGetPersistenceMode,
    "compute_mode": n.nvmlDeviceGetComputeMode,
    "accounting_mode": n.nvmlDeviceGetAccountingMode,
    "mig_mode.current": lambda h: n.nvmlDeviceGetMigMode(h)[0],
    "mig_mode.pending": lambda h: n.nvmlDeviceGetMigMode(h)[1],
    "application_clocks.sm_hertz": lambda h: n.nvmlDeviceGetApplicationsClock(h, 0) * 10**6,
    "application_clocks.memory_hertz": lambda h: n.nvmlDeviceGetApplicationsClock(h, 2) * 10**6,
    "application_clocks.default_sm_hertz": lambda h: n.nvmlDeviceGetDefaultApplicationsClock(h, 0) * 10**6,
    "application_clocks.default_memory_hertz": lambda h: n.nvmlDeviceGetDefaultApplicationsClock(h, 2) * 10**6,
    "mig": _mig,
    "mig.instances": lambda h: [] if n.nvmlDeviceGetMigMode(h) == [0, 0] else None,
    "mig.profiles": lambda h: [] if n.nvmlDeviceGetMigMode(h) == [0, 0] else None,
    "ecc_mode.current": lambda h: n.nvmlDeviceGetEccMode(h)[0],
    "ecc_mode.pending": lambda h: n.nvmlDeviceGetEccMode(h)[1],
    "ecc.volatile_corrected": _ecc(0, 0),
    "ecc.volatile_uncorrected": _ecc(1, 0),
    "ecc.aggregate_corrected": _ecc(0, 1),
    "ecc.aggregate_uncorrected": _ecc(1, 1),
    "sram.volatile_corrected": _sram("volatileCor"),
    "sram.volatile_uncorrected_parity": _sram("volatileUncParity"),
    "sram.volatile_uncorrected_secded": _sram("volatileUncSecDed"),
    "sram.aggregate_corrected": _sram("aggregateCor"),
    "sram.aggregate_uncorrected_parity": _sram("aggregateUncParity"),
    "sram.aggregate_uncorrected_secded": _sram("aggregateUncSecDed"),
    "sram.threshold_exceeded": _sram("bThresholdExceeded"),
    "remap.corrected": lambda h: n.nvmlDeviceGetRemappedRows(h)[0],
    "remap.uncorrected": lambda h: n.nvmlDeviceGetRemappedRows(h)[1],
    "remap.pending": lambda h: n.nvmlDeviceGetRemappedRows(h)[2],
    "remap.failed": lambda h: n.nvmlDeviceGetRemappedRows(h)[3],
    "remap.histogram.0": lambda h: n.nvmlDeviceGetRowRemapperHistogram(h).max,
    "remap.histogram.1": lambda h: n.nvmlDeviceGetRowRemapperHistogram(h).high,
    "remap.histogram.2": lambda h: n.nvmlDeviceGetRowRemapperHistogram(h).partial,
    "remap.histogram.3": lambda h: n.nvmlDeviceGetRowRemapperHistogram(h).low,
    "remap.histogram.4": lambda h: n.nvmlDeviceGetRowRemapperHistogram(h).none,
    "retired_pages.single_bit": lambda h: len(n.nvmlDeviceGetRetiredPages(h, 0)),
    "retired_pages.double_bit": lambda h: len(n.nvmlDeviceGetRetiredPages(h, 1)),
    "retired_pages.pending": n.nvmlDeviceGetRetiredPagesPendingStatus,
    "pcie.gen_current": n.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie.gen_max": n.nvmlDeviceGetMaxPcieLinkGeneration,
    "pcie.width_current": n.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie.width_max": n.nvmlDeviceGetMaxPcieLinkWidth,
    "pcie.replays": n.nvmlDeviceGetPcieReplayCounter,
    "pcie.transmit_bytes": _field(197),
    "pcie.receive_bytes": _field(198),
    "temperature.gpu_celsius": lambda h: n.nvmlDeviceGetTemperature(h, 0),
    "temperature.slowdown_celsius": lambda h: n.nvmlDeviceGetTemperatureThreshold(h, 1),
    "temperature.shutdown_celsius": lambda h: n.nvmlDeviceGetTemperatureThreshold(h, 0),
    "temperature.memory_celsius": _field(82),
    "temperature.margin_celsius": n.nvmlDeviceGetMarginTemperature,
    "temperature.memory_max_celsius": lambda h: n.nvmlDeviceGetTemperatureThreshold(h, 2),
    "clock_events.sw_power_cap_nanoseconds": _field(74),
    "clock_events.thermal_nanoseconds": _field(75),
    "clock_events.sync_boost_nanoseconds": _field(76),
    "clock_events.board_limit_nanoseconds": _field(77),
    "clock_events.reliability_nanoseconds": _field(79),
    "power.draw_milliwatts": n.nvmlDeviceGetPowerUsage,
    "power.limit_milliwatts": n.nvmlDeviceGetPowerManagementLimit,
    "power.default_limit_milliwatts": n.nvmlDeviceGetPowerManagementDefaultLimit,
    "power.minimum_limit_milliwatts": lambda h: n.nvmlDeviceGetPowerManagementLimitConstraints(h)[0],
    "power.maximum_limit_milliwatts": lambda h: n.nvmlDeviceGetPowerManagementLimitConstraints(h)[1],
    "power.energy_millijoules": n.nvmlDeviceGetTotalEnergyConsumption,
    "clocks.sm_hertz": _hertz(n.nvmlDeviceGetClockInfo, n.NVML_CLOCK_SM),
    "clocks.memory_hertz": _hertz(n.nvmlDeviceGetClockInfo, n.NVML_CLOCK_MEM),
    "clocks.sm_max_hertz": _hertz(n.nvmlDeviceGetMaxClockInfo, n.NVML_CLOCK_SM),
    "clocks.memory_max_hertz": _hertz(n.nvmlDeviceGetMaxClockInfo, n.NVML_CLOCK_MEM),
    "throttle_reasons": n.nvmlDeviceGetCurrentClocksEventReasons,
    "utilization.gpu_percent": lambda h: n.nvmlDeviceGetUtilizationRates(h).gpu,
    "utilization.memory_percent": lambda h: n.nvmlDeviceGetUtilizationRates(h).memory,
    "performance_state": n.nvmlDeviceGetPerformanceState,
    "recovery_action": _field(230),
    "inforom_valid": lambda h: 1 if n.nvmlDeviceValidateInforom(h) is None else 0,
    "fabric.state": _fabric("state"),
    "fabric.status": _fabric("status"),
    "fabric.clique_id": _fabric("cliqueId"),
    "fabric.health_mask": _fabric("healthMask"),
    "fabric.cluster_uuid": _fabric("clusterUuid"),
    "cpu_affinity": _cpus,
    "numa": _numa,
    "processes": n.nvmlDeviceGetComputeRunningProcesses,
}
# The batch of field values says the same as the calls: field id by key.
FIELDS = {
    "ecc_mode.current": 1, "ecc_mode.pending": 2, "ecc.volatile_corrected": 3, "ecc.volatile_uncorrected": 4,
    "ecc.aggregate_corrected": 5, "ecc.aggregate_uncorrected": 6, "retired_pages.single_bit": 29,
    "retired_pages.double_bit": 30, "retired_pages.pending": 31, "power.energy_millijoules": 83, "pcie.replays": 94,
    "remap.corrected": 142, "remap.uncorrected": 143, "remap.pending": 144, "remap.failed": 145,
    "power.draw_milliwatts": 186, "power.default_limit_milliwatts": 189, "power.limit_milliwatts": 190,
    "clock_events.hw_thermal_slowdown_nanoseconds": 252, "clock_events.hw_power_brake_slowdown_nanoseconds": 253,
}  # fmt: skip


def leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key; an error stands for all that would be below it."""
    if isinstance(value, dict) and value.keys() != {"error"}:
        for key, below in value.items():
            yield from leaves(f"{prefix}.{key}" if prefix else key, below)
    elif isinstance(value, list) and value:
        for number, below in enumerate(value):
            yield from leaves(f"{prefix}.{number}", below)
    else:
        yield prefix, value


def readers(key: str) -> list[Callable[[Any], Any]]:
    """The calls that must give this key; for a key with an error in a parent's place, all calls below it."""
    if match := re.fullmatch(r"nvlink\.(\d+)\.(\w+)", key):
        return [_nvlink(int(match[1]), match[2])]
    if key == "nvlink":
        return [_nvlink(0, "active"), _nvlink(0, "crc_errors")]
    found = [read for name, read in READERS.items() if name == key or name.startswith(key + ".")]
    return found + [_field(number) for name, number in FIELDS.items() if name == key]


def answer(read: Callable[[Any], Any], handle: Any) -> Any:
    """What a call gives: a value, or the error as nvml.json writes it."""
    try:
        return read(handle)
    except n.NVMLError as problem:
        return {"error": problem.value}


@pytest.mark.parametrize("tree", TREES)
def test_every_value_of_the_tree_comes_back(tree, machine_of, load):
    machine = machine_of(tree)
    load(machine)
    n.nvmlInit()
    nvml = read_nvml(machine.tree)
    assert n.nvmlDeviceGetCount() == len(nvml["gpus"]) == 8
    assert n.nvmlSystemGetDriverVersion() == nvml["driver_version"]
    assert n.nvmlSystemGetNVMLVersion() == nvml["nvml_version"]
    assert n.nvmlSystemGetCudaDriverVersion() == nvml["cuda_driver_version"]
    differ, unread = [], set()
    for index, gpu in enumerate(nvml["gpus"]):
        handle = n.nvmlDeviceGetHandleByIndex(index)
        for key, value in leaves("", gpu):
            if key in ("processes", "nvlink") and value == []:
                continue  # an empty list: seen below
            calls = readers(key)
            if not calls:
                unread.add(key)
            differ += [(index, key, value, got) for call in calls if (got := answer(call, handle)) != value]
    assert not unread
    assert not differ


def test_an_empty_list_is_no_process_and_no_link(machine_of, load):
    load(machine_of("l40s-pcie"))
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    assert n.nvmlDeviceGetComputeRunningProcesses(handle) == []
    with pytest.raises(n.NVMLError_NotSupported):
        n.nvmlDeviceGetNvLinkState(handle, 0)


@pytest.mark.parametrize(
    ("tree", "levels"),
    [
        ("hgx-h100", [0, 40, 40, 40, 50, 50, 50, 50]),
        ("hgx-a100", [0, 10, 50, 50, 50, 50, 50, 50]),
        ("l40s-pcie", [0, 10, 10, 10, 50, 50, 50, 50]),
        ("hgx-h100.numa-minus-1", [0, 50, 50, 50, 50, 50, 50, 50]),
    ],
)
def test_the_distances_between_gpus_follow_the_tree(tree, levels, machine_of, load):
    load(machine_of(tree))
    n.nvmlInit()
    handles = [n.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    assert [n.nvmlDeviceGetTopologyCommonAncestor(handles[0], other) for other in handles] == levels


def test_a_gpu_is_found_by_every_name(gpus, machine):
    for index, gpu in enumerate(machine.gpus):
        for found in (
            n.nvmlDeviceGetHandleByUUID(gpu["uuid"]),
            n.nvmlDeviceGetHandleBySerial(gpu["serial"]),
            n.nvmlDeviceGetHandleByPciBusId(gpu["pci"]),
            n.nvmlDeviceGetHandleByPciBusId("0000" + gpu["pci"].upper()),
        ):
            assert n.nvmlDeviceGetIndex(found) == index
    with pytest.raises(n.NVMLError_NotFound):
        n.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")


def test_one_batch_of_fields_mixes_answers_and_errors(gpus):
    values = n.nvmlDeviceGetFieldValues(gpus[0], [82, 29, (161, 3), (163, 0xFFFFFFFF), (161, 18), 250])
    assert [v.nvmlReturn for v in values] == [
        0, n.NVML_ERROR_NOT_SUPPORTED, 0, 0, n.NVML_ERROR_INVALID_ARGUMENT, n.NVML_ERROR_NOT_SUPPORTED,
    ]  # fmt: skip
    assert values[0].value.uiVal == 40 and values[0].timestamp > 0


def test_bit_error_rates_are_packed_as_nvml_packs_them(machine_of, load):
    """NVML_NVLINK_BER_*: mantissa in bits 8 to 11, exponent in bits 0 to 7. Only NVLink 5 has these fields."""
    load(machine_of("hgx-b200"))
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    asked = [(n.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 0), (n.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, 17)]
    for value in n.nvmlDeviceGetFieldValues(handle, asked):
        assert value.nvmlReturn == 0 and (value.value.ullVal >> 8 & 15, value.value.ullVal & 255) == (15, 255)
    (value,) = n.nvmlDeviceGetFieldValues(handle, [(n.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 18)])
    assert value.nvmlReturn == n.NVML_ERROR_INVALID_ARGUMENT


def test_older_nvlinks_have_no_bit_error_rate(gpus):
    (value,) = n.nvmlDeviceGetFieldValues(gpus[0], [(n.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 0)])
    assert value.nvmlReturn == n.NVML_ERROR_NOT_SUPPORTED


def test_memory_of_version_1_counts_the_reserved_bytes_as_used(gpus, machine):
    old, new = n.nvmlDeviceGetMemoryInfo(gpus[0]), n.nvmlDeviceGetMemoryInfo(gpus[0], n.nvmlMemory_v2)
    assert old.used == new.used + new.reserved and old.free + old.used == old.total
    assert new.free + new.used + new.reserved == new.total == machine.gpus[0]["memory"]["total_bytes"]
