"""What the checks and the metrics say of single MIG instances."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.core import Metric

from fairlead.checks import ecc, gpu_leftovers, mig_mode
from fairlead.daemon.publishing import mig_metrics
from fairlead.daemon.publishing.gpu_labels import LABELS
from fairlead.model.facts import Gpu
from fairlead.model.finding import Action, Finding, Level
from fairlead.model.gpu_state import MigDevice, MigInstance
from tests.checks.loaded import judged
from tests.checks.nodes import NA, STATE, UNSUPPORTED, gpu

GIB = 1 << 30


def device(gi: int = 9, ci: int = 0, **changes: Any) -> MigDevice:
    values = {"profile": "1g.10gb", "start": gi - 7, "size": 1, "memory_total_bytes": 10 * GIB, "memory_used_bytes": 0}
    values |= {"sram_uncorrected": 0, "processes": (), **changes}
    return MigDevice(uuid=f"MIG-{gi}-{ci}", gi=gi, ci=ci, **values)


def on(*devices: MigDevice, **changes: Any) -> Gpu:
    return gpu(3, mig_current=True, mig_pending=True, mig_devices=devices, **changes)


def words(found: list[Finding]) -> list[tuple[Level, Action, str]]:
    return [(f.level, f.action, f.summary) for f in found]


@pytest.mark.parametrize(
    ("changed", "levels"),
    [
        ((device(),), []),
        ((device(memory_used_bytes=5 * GIB, processes=(4000,)),), []),
        ((device(memory_used_bytes=GIB // 2),), []),
        ((device(memory_used_bytes=5 * GIB),), [Level.DRAIN]),
        ((device(memory_used_bytes=5 * GIB), device(10, memory_used_bytes=6 * GIB)), [Level.DRAIN, Level.DRAIN]),
        # The process of another instance does not have this instance's memory; that of a sibling compute instance may.
        ((device(memory_used_bytes=5 * GIB), device(10, processes=(4000,))), [Level.DRAIN]),
        ((device(memory_used_bytes=5 * GIB), device(ci=1, memory_used_bytes=5 * GIB, processes=(4000,))), []),
        ((device(memory_used_bytes=NA),), [Level.UNKNOWN]),
        ((device(memory_used_bytes=5 * GIB, processes=NA),), [Level.UNKNOWN]),
        ((device(memory_used_bytes=UNSUPPORTED),), []),
    ],
)
def test_memory_of_an_instance_needs_a_process_there(changed: tuple[MigDevice, ...], levels: list[Level]) -> None:
    found = judged(gpu_leftovers, on(*changed, memory_used_bytes=12 * GIB))
    assert [f.level for f in found] == levels
    if levels[:1] == [Level.DRAIN]:
        assert found[0].summary.startswith(f"memory of MIG instance 9 (1g.10gb) of GPU {found[0].device} is in use"), found[0]


def test_sram_errors_name_their_instance() -> None:
    healthy = on(device(), device(10))
    assert judged(ecc, healthy) == []
    found = judged(ecc, on(device(), device(10, sram_uncorrected=2), device(10, 1, sram_uncorrected=2, profile="1c.2g.20gb")))
    said = f"2 uncorrectable SRAM errors in MIG instance 10 (1g.10gb) of GPU {healthy.pci} since the driver loaded: reset_gpu"
    assert words(found) == [(Level.DRAIN, Action.RESET_GPU, said)]
    assert judged(ecc, on(device(sram_uncorrected=NA))) == [], "the counters of the whole GPU are judged"


def test_an_instance_without_a_compute_instance_is_reported() -> None:
    state = replace(STATE, mig_instances=(MigInstance("3g.40gb", 0, 1), MigInstance("1g.10gb", 4, 0)))
    found = judged(mig_mode, on(state=state))
    assert [(f.level, f.action) for f in found] == [(Level.WARN, Action.PROVISION)]
    assert "no compute instance" in found[0].summary and found[0].evidence_id == "1g.10gb at memory slice 4"
    whole = replace(STATE, mig_instances=(MigInstance("3g.40gb", 0, 2),))
    assert judged(mig_mode, on(state=whole)) == []


def samples(made: list[Metric]) -> dict[str, list[tuple[str, float]]]:
    return {m.name: [(s.labels["mig_uuid"], s.value) for s in m.samples] for m in made}


def test_metrics_have_a_series_for_each_value_that_was_read() -> None:
    labels = ("0000:61:00.0", "3", "GPU-3")
    known = device(memory_used_bytes=5, sram_uncorrected=1)
    unread = device(10, memory_used_bytes=NA, memory_total_bytes=NA, sram_uncorrected=NA, profile=NA)
    made = list(mig_metrics.families([(on(known, unread), labels), (gpu(4, mig_devices=NA), labels)]))
    assert samples(made) == {
        "fairlead_mig_info": [("MIG-9-0", 1.0), ("MIG-10-0", 1.0)],
        "fairlead_mig_memory_used_bytes": [("MIG-9-0", 5.0)],
        "fairlead_mig_memory_size_bytes": [("MIG-9-0", 10.0 * GIB)],
        "fairlead_mig_ecc_sram_uncorrected_errors": [("MIG-9-0", 1.0)],
    }, "a value that was not read is absent, and never 0"
    (first, second) = made[0].samples
    where = {"profile": "1g.10gb", "start": "2", "size": "1"}
    assert first.labels == {**dict(zip(LABELS, labels, strict=True)), "mig_uuid": "MIG-9-0", "gi": "9", "ci": "0", **where}
    assert second.labels["profile"] == ""
