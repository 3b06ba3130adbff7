"""MIG devices are facts: one for each compute instance, with what NVML says of it, and Missing where NVML says nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.host import gpu
from fairlead.host.nvml import Worker
from fairlead.host.redact import Redactor
from fairlead.host.tree_snapshot import without_activity
from fairlead.model.facts import Gpu, Missing
from fairlead.model.gpu_state import MigDevice, MigInstance
from tests.host.conftest import simulate
from tests.lab.faults import Faults
from tests.lab.nvml.library import write_conf
from tests.lab.trees import MACHINES

FIRST = "0000:1b:00.0"
SLICE = 9984 << 20  # bytes of a memory slice of the simulated GPUs
UNSUPPORTED, UNKNOWN = 3, 999


@pytest.fixture
def worker(faults: Faults) -> Iterator[Worker]:
    worker = Worker(30)
    yield worker
    worker.close()


def read(worker: Worker) -> tuple[dict[str, Any], tuple[Gpu, ...]]:
    raw = worker.sweep().raw
    assert isinstance(raw, dict), raw
    found = gpu.gpus(raw)
    assert not isinstance(found, Missing)
    return raw, found


def devices(worker: Worker) -> tuple[MigDevice, ...]:
    found = read(worker)[1][0].mig_devices
    assert not isinstance(found, Missing), found
    return found


def test_each_compute_instance_is_one_fact(worker: Worker, faults: Faults) -> None:
    assert [g.mig_devices for g in read(worker)[1]] == [()] * 8
    worker.set(FIRST, "mig", "3g.40gb,1g.10gb")
    faults.set(0, "mig.gi.11.used_bytes", 7 << 20)
    faults.set(0, "mig.gi.11.sram_uncorrected", 1)
    for key, value in (("count", 1), ("0.pid", os.getpid()), ("0.used_bytes", 7 << 20), ("0.gi", 11), ("0.ci", 0)):
        faults.set(0, f"processes.{key}", value)
    raw, gpus = read(worker)
    large, small = devices(worker)
    assert (large.profile, large.gi, large.ci, large.start, large.size) == ("3g.40gb", 1, 0, 0, 4)
    assert (small.profile, small.gi, small.ci, small.start, small.size) == ("1g.10gb", 11, 0, 4, 1)
    assert (large.memory_total_bytes, large.memory_used_bytes, large.sram_uncorrected) == (4 * SLICE, 0, 0)
    assert (small.memory_total_bytes, small.memory_used_bytes, small.sram_uncorrected) == (SLICE, 7 << 20, 1)
    assert (large.processes, small.processes) == ((), (os.getpid(),))
    assert large.uuid.startswith("MIG-") and len({large.uuid, small.uuid}) == 2
    assert gpus[0].state.mig_instances == (MigInstance("3g.40gb", 0, 1, 4, 1), MigInstance("1g.10gb", 4, 1, 1, 11))
    assert [g.mig_devices for g in gpus[1:]] == [()] * 7
    assert raw["gpus"][0]["processes"][0]["gi"] == 11
    faults.set(0, "processes.count", 0)
    worker.sweep()
    worker.set(FIRST, "mig", "off")
    assert devices(worker) == ()


def test_what_an_instance_does_not_answer_is_missing_there_only(worker: Worker, faults: Faults) -> None:
    worker.set(FIRST, "mig", "3g.40gb,1g.10gb")
    faults.set(0, "mig.gi.11.used_bytes", {"error": UNKNOWN})
    worker.sweep()
    large, small = devices(worker)
    assert isinstance(small.memory_used_bytes, Missing) and "UNKNOWN" in small.memory_used_bytes.detail
    assert large.memory_used_bytes == 0 and small.sram_uncorrected == 0
    faults.error(0, "nvmlDeviceGetMigDeviceHandleByIndex", UNKNOWN)
    worker.sweep()
    assert isinstance(read(worker)[1][0].mig_devices, Missing), "not (): the devices are not known"


def test_a_lost_gpu_has_no_devices_that_are_known(worker: Worker, faults: Faults) -> None:
    worker.set(FIRST, "mig", "7g.80gb")
    assert len(devices(worker)) == 1
    faults.lost(0)
    worker.sweep()
    lost = read(worker)[1][0]
    assert lost.lost and isinstance(lost.mig_devices, Missing)


def divided_tree(worker: Worker, faults: Faults) -> dict[str, Any]:
    worker.set(FIRST, "mig", "3g.40gb,2g.20gb")
    faults.set(0, "mig.gi.5.used_bytes", 3 << 20)
    worker.sweep()
    return read(worker)[0]


def test_a_tree_with_instances_gives_the_same_instances_again(
    worker: Worker, faults: Faults, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine tree describes instances: the simulated library that is made from the tree gives the tree's values."""
    raw = without_activity(divided_tree(worker, faults))
    folder = tmp_path / "again"
    folder.mkdir()
    simulate("hgx-h100", library, folder, monkeypatch)
    tree = tmp_path / "tree"
    shutil.copytree(MACHINES / "hgx-h100/sys", tree / "sys", symlinks=True)
    uuid = "MIG-0a1b2c3d-1111-5222-8333-444455556666"
    raw["gpus"][0]["mig_devices"][1]["uuid"] = uuid
    (tree / "nvml.json").write_text(json.dumps(raw))
    monkeypatch.setenv("FAIRLEAD_SIM_NVML", str(write_conf(tree, folder / "nvml.conf")))
    second = Worker(30)
    try:
        assert without_activity(read(second)[0])["gpus"][0] == raw["gpus"][0]
    finally:
        second.close()


def test_a_redacted_tree_has_other_mig_uuids(worker: Worker, faults: Faults) -> None:
    raw = divided_tree(worker, faults)
    said = [d["uuid"] for d in raw["gpus"][0]["mig_devices"]]
    redacted = Redactor(raw).value(raw)
    invented = [d["uuid"] for d in redacted["gpus"][0]["mig_devices"]]
    assert all(u.startswith("MIG-00000000-0000-4000-8000-") for u in invented) and len(set(invented)) == 2
    assert not any(u.removeprefix("MIG-") in json.dumps(redacted) for u in said)
