"""nvml_responsive: which call hangs, and on which GPU."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.nvml_responsive import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, StuckCall, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode
from tests.checks.nodes import ADDRESSES, NA, gpu, node

CALL = StuckCall(call="nvmlDeviceGetTemperature", gpu=ADDRESSES[3], seconds=11.0, process_state="D")


def judged(machine: Node) -> list[Finding]:
    return list(check.findings(machine, Past(), Params()))


def test_healthy() -> None:
    assert judged(node()) == []


@pytest.mark.parametrize(
    ("state", "seconds", "level"),
    [
        ("D", 5.0, Level.UNKNOWN),
        ("D", 10.0, Level.DRAIN),
        ("S", 10.0, Level.UNKNOWN),
        ("R", 29.0, Level.UNKNOWN),
        ("S", 30.0, Level.DRAIN),
        ("X", 29.0, Level.UNKNOWN),
        ("X", 30.0, Level.DRAIN),
    ],
)
def test_a_call_that_does_not_come_back(state: str, seconds: float, level: Level) -> None:
    machine = node(stuck=replace(CALL, process_state=state, seconds=seconds), gpus=unreadable("late"))
    (finding,) = judged(machine)
    assert (finding.level, finding.device) == (level, ADDRESSES[3])
    assert "nvmlDeviceGetTemperature" in finding.summary and ADDRESSES[3] in finding.summary


def test_a_worker_that_cannot_run_at_all_is_no_fault_of_the_driver() -> None:
    dead = replace(CALL, call="", gpu="", process_state="X", seconds=9000.0)
    (finding,) = judged(node(stuck=dead, gpus=unreadable("the NVML worker ended with status 1")))
    assert (finding.level, finding.summary) == (Level.UNKNOWN, "the NVML worker died")
    assert "the NVML worker ended with status 1" in finding.evidence


def test_waiting_longer_is_the_same_evidence() -> None:
    texts = {(f.summary, f.evidence_id) for s in (40.0, 50.0) for f in judged(node(stuck=replace(CALL, seconds=s)))}
    assert len(texts) == 1


def test_a_call_about_the_whole_system() -> None:
    (finding,) = judged(node(stuck=replace(CALL, call="nvmlInit", gpu=""), gpus=unreadable("late")))
    assert finding.summary == "nvmlInit does not come back (driver hangs): reboot_node"


def test_no_driver() -> None:
    driver = replace(node().driver, module_version=unreadable("no such file"), library_version=unreadable("9"))
    (finding,) = judged(node(driver=driver, gpus=unreadable("NVML: driver not loaded (9)")))
    assert (finding.level, finding.action) == (Level.DRAIN, Action.PROVISION)
    assert "NVML: driver not loaded (9)" in finding.evidence


def test_nvml_gives_no_list() -> None:
    (finding,) = judged(node(gpus=unreadable("NVML: library version mismatch (18)")))
    assert (finding.level, finding.evidence) == (Level.DRAIN, ("NVML: library version mismatch (18)",))


def test_a_gpu_that_answers_nothing_is_named_a_lost_one_is_left_to_gpu_count() -> None:
    mute = gpu(4, memory_used_bytes=NA, temperature_celsius=NA, performance_state=NA)  # the worker remembers who it is
    (finding,) = judged(node(mute))
    assert (finding.level, finding.device) == (Level.DRAIN, ADDRESSES[4])
    assert judged(node(replace(mute, lost=True))) == []
    assert judged(node(gpu(4, uuid=NA, temperature_celsius=NA))) == []


def test_it_enforces() -> None:
    assert check.mode is Mode.ENFORCE


def test_a_node_without_an_nvidia_gpu_needs_no_driver() -> None:
    unloaded = replace(node().driver, module_version=unreadable("not loaded"), library_version=NA)
    machine = node(driver=unloaded, gpus=unreadable("NVML: no library"))
    assert [f.level for f in judged(machine)] == [Level.DRAIN]
    assert [f.level for f in judged(replace(machine, pci=()))] == [Level.UNKNOWN]  # nothing of the bus is known
    none = tuple(d for d in machine.pci if d.class_code >> 8 != 0x0302)
    assert [f.level for f in judged(replace(machine, pci=none))] == [Level.UNKNOWN]  # gpu_count says how many there should be
