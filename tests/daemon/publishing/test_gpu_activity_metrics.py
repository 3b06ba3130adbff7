"""What GPUs did as counters, absent where it is not known, and the one gauge with a job in its labels."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fairlead.daemon.publishing.metrics import MetricsInput
from fairlead.model.facts import Node, unreadable
from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_load import REASONS, ClockEvents, LoadSeen
from fairlead.model.gpu_state import MigDevice
from fairlead.model.node_jobs import GpuOfJob
from tests.daemon.publishing.test_metrics_text import node_of, series

HOPPER = GpuActivity(
    measured_seconds=100.0, gap_seconds=2.0, busy_seconds=75.5, spot_seconds=1.0, gpm_seconds=99.0, sm_active_seconds=40.0,
    tensor_active_seconds=0.0, dram_active_seconds=9.0, energy_joules=5000.0, energy_gap_seconds=0.0, energy_counter_joules=9e6,
    pcie_transmit_bytes=1, pcie_receive_bytes=2, nvlink_transmit_bytes=2**40, nvlink_receive_bytes=4,
)  # fmt: skip
AMPERE = GpuActivity(measured_seconds=7.0, busy_seconds=0.0)


def machine(**instance: Any) -> Node:
    node = node_of()
    assert isinstance(node.gpus, tuple)
    first, second, *rest = node.gpus
    divided = (MigDevice(uuid="MIG-1", gi=1, ci=0, activity=GpuActivity(gpm_seconds=10.0, sm_active_seconds=4.0)),)
    return replace(node, gpus=(replace(first, activity=HOPPER, mig_devices=divided), replace(second, activity=AMPERE), *rest))


def test_each_sum_is_a_counter_and_what_is_not_known_has_no_series() -> None:
    node = machine()
    assert isinstance(node.gpus, tuple)
    found = series(MetricsInput(version="1", node=node))
    by = {
        name: {s.labels["pci"]: s.value for s in samples} for name, samples in found.items() if name.startswith("fairlead_gpu_")
    }
    first, second = node.gpus[0].pci, node.gpus[1].pci
    assert by["fairlead_gpu_busy_seconds_total"] == {first: 75.5, second: 0.0}
    assert by["fairlead_gpu_measured_seconds_total"] == {first: 100.0, second: 7.0}
    assert by["fairlead_gpu_tensor_active_seconds_total"] == {first: 0.0}
    assert by["fairlead_gpu_energy_joules_total"] == {first: 5000.0}
    assert by["fairlead_gpu_nvlink_transmit_bytes_total"] == {first: 2.0**40}
    names = {name for name in GpuActivity.__struct_fields__ if name != "energy_counter_joules"}
    assert {f"fairlead_gpu_{name}_total" for name in names} <= by.keys()


def test_an_instance_has_the_gpm_sums_with_its_uuid() -> None:
    node = machine()
    assert isinstance(node.gpus, tuple)
    found = series(MetricsInput(version="1", node=node))
    (sample,) = found["fairlead_mig_sm_active_seconds_total"]
    assert sample.value == 4.0 and sample.labels["mig_uuid"] == "MIG-1" and sample.labels["pci"] == node.gpus[0].pci
    assert "fairlead_mig_tensor_active_seconds_total" not in found


def test_throttled_seconds_are_counters_by_reason() -> None:
    """The driver's own counters, and those of this agent under load. A counter that the driver does not have has no series."""
    node = node_of()
    assert isinstance(node.gpus, tuple)
    first, *rest = node.gpus
    seconds = tuple({"sw_power_cap": 4.0}.get(name, 0.0) for _, name in REASONS)
    seen = LoadSeen(busy_seconds=60.0, reasons_seconds=seconds)
    load = replace(first.load, events=ClockEvents(sw_power_cap_seconds=9.5), seen=seen)
    found = series(MetricsInput(version="1", node=replace(node, gpus=(replace(first, load=load), *rest))))

    def of(name: str) -> dict[str, float]:
        return {s.labels.get("reason", ""): s.value for s in found[name] if s.labels["pci"] == first.pci}

    assert of("fairlead_gpu_clock_event_seconds_total") == {"sw_power_cap": 9.5}
    assert of("fairlead_gpu_loaded_clock_event_seconds_total") == {"sw_power_cap": 4.0}
    assert of("fairlead_gpu_loaded_seconds_total") == {"": 60.0}


def test_a_job_is_a_label_of_one_gauge_only() -> None:
    node = machine()
    assert isinstance(node.gpus, tuple)
    first, second = node.gpus[:2]
    job_gpus = (
        GpuOfJob(812, second.pci),
        GpuOfJob(812, "0000:ff:00.0"),
        GpuOfJob(4294967295, second.pci),
        GpuOfJob(9, first.pci, "MIG-1"),
    )
    found = series(MetricsInput(version="1", node=node, jobs=3, job_gpus=job_gpus))
    label = {"pci": second.pci, "index": "1", "uuid": second.uuid, "mig_uuid": ""}  # to Prometheus, "" is no label
    assert [(s.labels, s.value) for s in found["fairlead_job_gpu"]] == [
        ({"job": "812", **label}, 1.0),
        ({"job": "4294967295", **label}, 1.0),
        ({"job": "9", "pci": first.pci, "index": "0", "uuid": first.uuid, "mig_uuid": "MIG-1"}, 1.0),
    ]
    assert [name for name, samples in found.items() if any("job" in s.labels for s in samples)] == ["fairlead_job_gpu"]


def test_without_a_list_of_gpus_there_are_no_counters() -> None:
    node = replace(machine(), gpus=unreadable("NVML does not answer"))
    assert not [
        n
        for n in series(MetricsInput(version="1", node=node, job_gpus=(GpuOfJob(1, "0000:1b:00.0"),)))
        if "busy" in n or "job_gpu" in n
    ]
