"""Which GPUs and MIG devices a job has, and which of their sums were read in this sweep."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.daemon.jobs.job_map import OnGpu, wanted_files
from fairlead.daemon.jobs.usage_readings import GpuReadings
from fairlead.host.job_records import Job
from fairlead.model.facts import Gpu, unreadable
from fairlead.model.gpu_activity import GpuActivity
from fairlead.model.gpu_state import MigDevice
from tests.checks import nodes

DEVICES = tuple(
    MigDevice(uuid=f"MIG-{gi}", gi=gi, ci=0, profile="1g.10gb", memory_used_bytes=gi, activity=GpuActivity(gpm_seconds=5.0))
    for gi in (7, 8)
)


def divided(position: int = 0, **changes: Any) -> Gpu:
    return nodes.gpu(position, mig_current=True, mig_devices=DEVICES, **changes)


def taken(*gpus: Gpu) -> GpuReadings:
    readings = GpuReadings()
    readings.take(nodes.node(*gpus), 10.0)
    return readings


def job(*gpus: int, names: tuple[str, ...] = ()) -> Job:
    return Job(id=7, uid=1000, gpus=frozenset(gpus), names=names)


def test_a_whole_gpu_is_found_by_its_index() -> None:
    found = taken().of_job(job(0, 2, 99), {0: nodes.ADDRESSES[3], 2: nodes.ADDRESSES[1]})
    assert [(r.gres_index, r.uuid, r.minor) for r in found] == [(0, "GPU-00000003", 3), (2, "GPU-00000001", 1)]


def test_a_mig_device_is_found_by_its_uuid() -> None:
    found = taken(divided()).of_job(job(3, 12, names=("MIG-8", "GPU-00000001")), {})
    assert [(r.gres_index, r.uuid, r.pci, r.mig) for r in found] == [
        (3, "MIG-8", nodes.ADDRESSES[0], "8/0/1g.10gb"),
        (12, "GPU-00000001", nodes.ADDRESSES[1], ""),
    ]
    assert (found[0].memory_used_bytes, found[0].activity.gpm_seconds) == (8, 5.0)


@pytest.mark.parametrize("names", [(), ("MIG-7", "MIG-8"), ("MIG-9",)])
def test_a_device_that_is_not_known_is_not_guessed(names: tuple[str, ...]) -> None:
    assert taken(divided()).of_job(job(0, names=names), {}) == []


def test_only_sums_that_were_read_in_this_sweep_are_fresh() -> None:
    gpus = [nodes.gpu(i, activity=GpuActivity(measured_seconds=5.0)) for i in range(8)]
    readings = GpuReadings()
    assert readings.take(nodes.node(*gpus), 10.0) and len(readings.fresh) == 8
    assert not readings.take(nodes.node(*gpus), 11.0)
    gpus[2] = nodes.gpu(2, activity=GpuActivity(measured_seconds=5.0, gap_seconds=1.0))
    assert readings.take(nodes.node(*gpus), 12.0)
    assert "GPU-00000002" in readings.fresh and len(readings.fresh) == 1
    assert not readings.take(replace(nodes.node(), gpus=unreadable("gone")), 13.0)


def test_what_a_driver_says_cannot_break_a_record() -> None:
    reading = taken(nodes.gpu(0, name="a\x1b[31m\n" + "x" * 500)).all["GPU-00000000"]
    assert reading.name.startswith("a__31m_") and len(reading.name) == 128


def test_files_for_exporters_name_mig_devices() -> None:
    gpu = taken(divided()).all["MIG-8"]
    files = wanted_files([OnGpu(7, 1000, gpu)], {nodes.ADDRESSES[0]: 4}, gpustat="/s", dcgm="/d")
    assert files == {"/s/MIG-8": "7 1000\n", "/s/4.8": "7 1000\n", "/d/4.8": "7\n"}


def test_no_file_names_a_user_who_is_not_known() -> None:
    gpu = taken().all["GPU-00000000"]
    assert wanted_files([OnGpu(7, None, gpu)], {}, gpustat="/s", dcgm="/d") == {}
