"""gpu_count: what is missing is named, and what the driver does not say is never taken for health."""

from __future__ import annotations

from msgspec.structs import replace

from fairlead.checks.gpu_count import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Action, Finding, Level
from tests.checks.nodes import ADDRESSES, endpoint, gpu, node

EIGHT = Params(expected=8)


def judged(machine: Node, params: Params = EIGHT) -> list[Finding]:
    return list(check.findings(machine, Past(), params))


def without(*addresses: str) -> Node:
    whole = node()
    return replace(
        whole,
        gpus=tuple(g for g in whole.gpus if g.pci not in addresses),
        pci=tuple(d for d in whole.pci if d.address not in addresses),
    )


def test_eight_of_eight() -> None:
    assert judged(node()) == []
    assert judged(node(), Params()) == []


def test_a_lost_gpu_is_named() -> None:
    (finding,) = judged(node(gpu(2, lost=True)))
    assert (finding.level, finding.device, finding.action) == (Level.DRAIN, ADDRESSES[2], Action.REBOOT_NODE)
    assert finding.summary == f"GPU {ADDRESSES[2]} is lost: reboot_node"


def test_a_gpu_that_is_gone_altogether() -> None:
    (finding,) = judged(without(ADDRESSES[0]))
    assert finding.summary == "7 of 8 GPUs on the PCI bus: reboot_node"
    assert ADDRESSES[0] not in finding.evidence[0] and ADDRESSES[1] in finding.evidence[0]
    assert judged(without(ADDRESSES[0]), Params()) == []


def test_a_gpu_the_driver_does_not_list() -> None:
    machine = replace(node(), gpus=node().gpus[1:])
    (finding,) = judged(machine)
    assert finding.device == ADDRESSES[0] and "does not list it" in finding.summary
    assert judged(machine, Params()) == [finding]


def test_a_gpu_that_left_the_bus_but_is_still_listed() -> None:
    machine = replace(node(), pci=tuple(d for d in node().pci if d.address != ADDRESSES[3]))
    assert {f.device for f in judged(machine)} == {"", ADDRESSES[3]}


def test_the_driver_says_nothing() -> None:
    machine = replace(node(), gpus=unreadable("NVML: driver not loaded (9)"))
    (finding,) = judged(machine)
    assert finding.level is Level.UNKNOWN and "driver not loaded" in finding.summary
    assert {f.level for f in judged(replace(without(ADDRESSES[0]), gpus=unreadable("x")))} == {Level.UNKNOWN, Level.DRAIN}


def test_no_pci_at_all_is_unknown_but_the_driver_s_list_still_counts() -> None:
    machine = replace(node(), pci=(), gpus=node().gpus[:7])
    assert {f.level for f in judged(machine)} == {Level.UNKNOWN, Level.DRAIN}


def test_more_than_declared_is_a_wrong_profile() -> None:
    (finding,) = judged(node(), Params(expected=4))
    assert (finding.level, finding.action) == (Level.WARN, Action.PROVISION)


def test_virtual_functions_and_other_devices_are_not_gpus() -> None:
    more = (
        replace(endpoint("0000:1b:00.4"), virtual_function=True),
        endpoint("0000:05:00.0", class_code=0x068000),
        endpoint("0000:19:00.0", vendor=0x15B3, class_code=0x020700),
    )
    assert judged(replace(node(), pci=(*node().pci, *more))) == []
