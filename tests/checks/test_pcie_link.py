"""pcie_link: width at any time, speed only when the GPU is busy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.pcie_link import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.device import readable_fields
from fairlead.model.facts import CLASS_UNREADABLE, Node, PcieLink, unreadable
from fairlead.model.finding import Finding, Level, Service
from tests.checks.hosts import judged as judged_node
from tests.checks.nodes import ADDRESSES, GEN5, NA, UNSUPPORTED, endpoint, gpu, node, port

DECLARED = Params(gpu_width=16, gpu_gen=5)


def judged(machine: Node, params: Params = DECLARED, past: Past | None = None) -> list[Finding]:
    return list(check.findings(machine, past or Past(), params))


def linked(nvml: PcieLink, sysfs: PcieLink | None = None, parent: PcieLink = GEN5, busy: int = 0) -> Node:
    here = ADDRESSES[1]
    devices = tuple(d for d in node().pci if here not in d.path and d.address != port(here).address)
    return node(
        gpu(1, pcie=nvml, utilization_percent=busy), pci=(*devices, port(here, parent), endpoint(here, link=sysfs or nvml))
    )


X8 = replace(GEN5, width_current=8)
IDLE = replace(GEN5, gen_current=1)


@pytest.mark.parametrize("params", [DECLARED, Params()])
@pytest.mark.parametrize("busy", [0, 100])
def test_half_the_width_is_a_finding_busy_or_not(params: Params, busy: int) -> None:
    (finding,) = judged(linked(X8, busy=busy), params)
    assert (finding.level, finding.device, finding.service) == (Level.DRAIN, ADDRESSES[1], Service.DRAIN_AFTER_JOB)
    assert "is x8, x16" in finding.summary


def test_generation_1_at_idle_is_healthy_and_under_load_is_not() -> None:
    assert judged(linked(IDLE, busy=19)) == []
    (finding,) = judged(linked(IDLE, busy=20))
    assert "generation 1 under load, 5 expected" in finding.summary
    assert judged(linked(IDLE, busy=20), Params(load_percent=50)) == []


def test_a_slot_that_can_do_less_is_no_fault_unless_the_profile_says_more() -> None:
    narrow = replace(GEN5, width_max=8, gen_max=4)
    machine = linked(replace(X8, gen_current=4), parent=narrow, busy=90)
    assert judged(machine, Params()) == []
    assert len(judged(machine)) == 2


def test_sysfs_stands_in_for_nvml_and_the_smaller_counts() -> None:
    machine = linked(GEN5, sysfs=X8)
    assert [f.level for f in judged(machine)] == [Level.DRAIN]
    blind = node(gpu(1, pcie=NA))
    assert judged(blind) == []


def test_unreadable_everywhere() -> None:
    dark = tuple(replace(d, link=unreadable("Unknown")) if d.address == ADDRESSES[1] else d for d in node().pci)
    machine = node(gpu(1, pcie=NA), pci=dark)
    assert [f.level for f in judged(machine)] == [Level.UNKNOWN]
    assert [f.level for f in judged(machine, past=Past(available=True, readable=readable_fields(node())))] == [Level.DRAIN]
    assert judged(node(gpu(1, pcie=UNSUPPORTED), pci=dark)) == []
    assert [f.level for f in judged(node(gpus=unreadable("x")))] == [Level.UNKNOWN]


def test_utilisation_that_is_not_known_leaves_speed_alone() -> None:
    machine = linked(IDLE, busy=50)
    assert judged(replace(machine, gpus=tuple(replace(g, utilization_percent=NA) for g in machine.gpus))) == []


def test_what_is_of_no_class_and_what_cannot_say_its_class() -> None:
    """An EC2 instance has a function of class 0 (PIIX4 ACPI, "non-VGA unclassified device")."""

    def beside(class_code: int, vendor: int = 0x8086) -> Node:
        return replace(node(), pci=(*node().pci, endpoint("0000:00:01.3", vendor=vendor, class_code=class_code)))

    assert judged(beside(0)) == []
    assert [f.level for f in judged(beside(CLASS_UNREADABLE))] == [Level.UNKNOWN]
    assert [f.level for f in judged(beside(0, vendor=0))] == [Level.UNKNOWN]


HERE = ADDRESSES[5]


@pytest.mark.parametrize(("mask", "bad"), [(0x0, True), (0x1, False)])
def test_pcie_speed_under_mig(mask: int, bad: bool) -> None:
    slow = gpu(5, mig_current=True, utilization_percent=NA, throttle_reasons=mask, pcie=replace(GEN5, gen_current=1))
    assert [f.device for f in judged_node("pcie_link", node(slow))] == [HERE] * bad
