"""pcie_nic: the links of RDMA adapters, their width always and their speed where it is declared."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks.pcie_nic import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, PcieLink, unreadable
from fairlead.model.finding import Finding, Level
from tests.checks.nodes import GEN5, endpoint, nic, node, port

ADAPTER = "0000:19:00.0"
X8 = replace(GEN5, width_current=8)
NOTHING = replace(GEN5, width_current=0, width_max=0)


def adapter(link: PcieLink, above: PcieLink = GEN5) -> Node:
    device = endpoint(ADAPTER, vendor=0x15B3, class_code=0x020700, link=link)
    return replace(node(), nics=(nic(), nic(name="mlx5_9", port=2)), pci=(*node().pci, port(ADAPTER, above), device))


def judged(machine: Node, **params: Any) -> list[Finding]:
    return list(check.findings(machine, Past(), Params(**params)))


@pytest.mark.parametrize(
    ("machine", "params", "said"),
    [
        (adapter(GEN5), {}, None),
        (adapter(X8), {}, (Level.DRAIN, "is x8, x16 possible")),
        (adapter(X8), {"width": 8}, None),
        (adapter(X8), {"width": 16}, (Level.DRAIN, "is x8, x16 declared")),
        (adapter(X8, replace(GEN5, width_max=8)), {}, None),
        (adapter(replace(GEN5, gen_current=1)), {}, None),
        (adapter(GEN5), {"gen": 6}, (Level.DRAIN, "is generation 5, 6 declared")),
        (adapter(replace(GEN5, gen_current=unreadable("x"))), {"gen": 5}, (Level.UNKNOWN, "has a speed that cannot be read")),
        (adapter(replace(GEN5, width_current=unreadable("x"))), {}, (Level.UNKNOWN, "cannot be read")),
        (adapter(NOTHING, NOTHING), {}, (Level.UNKNOWN, "is x0, of how many cannot be read")),
        (replace(adapter(NOTHING, NOTHING), virtual=True), {}, None),  # an EFA or a virtual function in its guest
        (replace(adapter(X8), virtual=True), {"width": 16}, (Level.DRAIN, "is x8, x16 declared")),
        (replace(node(), nics=(nic(),)), {}, (Level.UNKNOWN, "cannot be read")),
        (replace(adapter(X8), nics=(nic(virtual_function=True), nic(rdma=False, name="eth0"))), {}, None),
    ],
)
def test_the_link_of_an_adapter(machine: Node, params: dict[str, Any], said: tuple[Level, str] | None) -> None:
    told = [(f.level, f.device, f.summary.partition(f"adapter {ADAPTER} ")[2]) for f in judged(machine, **params)]
    assert told == (
        [] if said is None else [(said[0], ADAPTER, said[1] + (": check_hardware" if told[0][0] is Level.DRAIN else ""))]
    )
