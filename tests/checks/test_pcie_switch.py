"""The link of a PCIe switch towards the processor: its width, and its speed while a GPU below it is busy."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import config
from fairlead.judge import judge, quick_checks
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, PcieLink
from fairlead.model.finding import Level
from tests.checks.hosts import judged, levels
from tests.checks.nodes import ADDRESSES, GEN5, NA, endpoint, gpu, nic, node, port

HERE = ADDRESSES[5]


ROOT, SWITCH = "0000:10:01.0", "0000:11:00.0"


def behind_a_switch(uplink: PcieLink | Any, root: PcieLink = GEN5, *, busy: int = 0, **more: Any) -> Node:
    """GPU 5 and an adapter below a switch below a root port."""
    top = replace(port(HERE, root), address=ROOT, path=("pci0000:10", ROOT), bridge_role="root_port")
    switch = replace(top, address=SWITCH, path=(*top.path, SWITCH), bridge_role="switch_upstream", link=uplink)
    down = replace(port(HERE), path=(*switch.path, port(HERE).address))
    below = replace(endpoint(HERE), path=(*down.path, HERE))
    others = tuple(d for d in node().pci if d.address not in (HERE, down.address))
    machine = node(gpu(5, utilization_percent=busy), pci=(*others, top, switch, down, below))
    return replace(machine, **more)


@pytest.mark.parametrize(
    ("machine", "level"),
    [
        (behind_a_switch(GEN5), None),
        (behind_a_switch(replace(GEN5, width_current=8)), Level.DRAIN),
        (behind_a_switch(replace(GEN5, width_current=8), replace(GEN5, width_max=8)), None),  # the slot can do no more
        (behind_a_switch(replace(GEN5, gen_current=1)), None),  # nothing runs
        (behind_a_switch(replace(GEN5, gen_current=3), busy=100), Level.DRAIN),
        (behind_a_switch(NA), Level.UNKNOWN),
        (behind_a_switch(NA, virtual=True), None),  # made up by the hypervisor
    ],
)
def test_the_switch_above_a_gpu(machine: Node, level: Level | None) -> None:
    assert levels(judged("pcie_switch", machine)) == ([(level, SWITCH)] if level is not None else [])
    assert judged("pcie_link", machine) == []


def test_a_switch_that_was_read_while_nothing_ran() -> None:
    """Links of bridges are read on thorough looks only: between these, one read at idle would stand beside a GPU busy now."""
    known = config.profile_document("n1", "hgx-h100")
    machine = behind_a_switch(replace(GEN5, gen_current=1), busy=100)

    def found(facts: Node) -> list[str]:
        judged_by = None if facts.thorough else quick_checks(known)
        return [f.device for f in judge(known, facts, Past(available=True), judged_by) if f.check == "pcie_switch"]

    assert found(replace(machine, thorough=False)) == []
    assert found(replace(machine, thorough=True)) == [SWITCH]


def test_the_switch_above_an_adapter_only() -> None:
    address = "0000:19:00.0"
    machine = behind_a_switch(replace(GEN5, width_current=4))
    above = next(d for d in machine.pci if d.address == SWITCH)
    adapter = replace(endpoint(address, vendor=0x15B3, class_code=0x020700), path=(*above.path, address))
    devices = tuple(d for d in machine.pci if d.address != HERE)
    found = judged("pcie_switch", replace(machine, gpus=machine.gpus[:5], nics=(nic(),), pci=(*devices, adapter)))  # type: ignore[index]
    assert levels(found) == [(Level.DRAIN, SWITCH)]
