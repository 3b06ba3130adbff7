"""Ports that have to be active: their number, state, rate and width."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.facts import Nic, Node, unreadable
from fairlead.model.finding import Action, Level
from fairlead.model.host_facts import RdmaPort
from tests.checks.hosts import WELL, host_node, judged, levels
from tests.checks.nodes import nic

NA = unreadable("Input/output error")
IB = {"infiniband_ports": 2, "infiniband_rate_gbps": 400.0, "infiniband_width_lanes": 4}


def two(width: Any = 4, **second: Any) -> Node:
    """Two ports, the second as given."""
    base: RdmaPort = WELL.ports[0]  # type: ignore[index]
    other = replace(base, name="mlx5_1", pci="0000:41:00.0", width_lanes=width)
    ports: tuple[Nic, ...] = (nic(), nic("0000:41:00.0", name="mlx5_1", **second))
    return replace(host_node(ports=(base, other)), nics=ports)


@pytest.mark.parametrize(
    ("second", "width", "device", "words"),
    [
        ({"state": "DOWN", "physical_state": "Polling"}, 4, "mlx5_1/1", "mlx5_1/1 is DOWN (Polling): check_fabric"),
        ({"state": "INIT"}, 4, "mlx5_1/1", "is INIT (LinkUp)"),
        ({"state": "ACTIVE", "physical_state": "LinkErrorRecovery"}, 4, "mlx5_1/1", "is ACTIVE (LinkErrorRecovery)"),
        ({"rate_gbps": 200.0}, 2, "mlx5_1/1", "runs at 200 Gb/s, 400 declared"),
        ({}, 1, "mlx5_1/1", "is 1X, 4X declared"),
    ],
)
def test_a_port_that_is_needed_and_not_well(second: dict[str, Any], width: int, device: str, words: str) -> None:
    (found,) = judged("rdma_ports", two(width, **second), **IB)
    assert (found.level, found.device, found.action) == (Level.DRAIN, device, Action.CHECK_FABRIC)
    assert words in found.summary
    spare = judged("rdma_ports", two(width, **second), **{**IB, "infiniband_ports": 1})
    assert spare == [], "a port that the profile does not count is not judged"
    assert judged("rdma_ports", two(width, **second), **IB, ignore=("mlx5_1",))[0].summary.startswith("1 of 2 InfiniBand ports")


def test_well_ports_missing_ports_and_other_layers() -> None:
    assert judged("rdma_ports", two(), **IB) == []
    (gone,) = judged("rdma_ports", two(), **{**IB, "infiniband_ports": 3})
    assert gone.summary == "2 of 3 InfiniBand ports are there: check_hardware" and gone.evidence == ("there: mlx5_0/1, mlx5_1/1",)
    assert judged("rdma_ports", two(state="DOWN", physical_state="Disabled")) == [], "nothing declared: the number is not judged"
    assert judged("rdma_ports", replace(two(), nics=()), **IB)[0].summary.startswith("0 of 2")
    roce = {"ethernet_ports": 1, "ethernet_rate_gbps": 200.0}
    assert judged("rdma_ports", two(link_layer="Ethernet", rate_gbps=200.0), infiniband_ports=1, **roce) == []
    assert levels(judged("rdma_ports", two(link_layer="Ethernet", rate_gbps=100.0), **roce)) == [(Level.DRAIN, "mlx5_1/1")]
    assert judged("rdma_ports", two(virtual_function=True, state="DOWN"), infiniband_ports=1) == []


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (two(state=NA), "the state of port mlx5_1/1 cannot be read"),
        (two(physical_state=NA), "the physical state of port mlx5_1/1"),
        (two(rate_gbps=NA), "the rate of port"),
        (two(NA), "the width of port"),
        (two(link_layer=""), "the kind of port"),
        (replace(two(), host=NA), "the host cannot be read"),
    ],
)
def test_a_port_that_cannot_be_read_is_unknown(node: Node, words: str) -> None:
    found = judged("rdma_ports", node, **IB)
    assert any(f.level is Level.UNKNOWN and words in f.summary for f in found)
