"""RDMA ports: state, rate and width, flaps, error rates, and their harmless twins."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.check import Past
from fairlead.model.facts import Nic, Node, unreadable
from fairlead.model.finding import Action, Level
from fairlead.model.host_facts import RdmaPort
from tests.checks.hosts import NOW, WELL, host_node, judged, levels, past, samples
from tests.checks.nodes import log, nic

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


def with_counters(*, downs: int = 1, **counters: Any) -> Node:
    base: RdmaPort = WELL.ports[0]  # type: ignore[index]
    return host_node(ports=(replace(base, counters={**base.counters, **counters}, carrier_downs={"ibp25s0": downs}),))


DOWN = "mlx5_core 0000:19:00.0 ibp25s0: Link down"


@pytest.mark.parametrize(
    ("node", "history", "times"),
    [
        (with_counters(link_downed=5), past(samples("mlx5_0/1", "link_downed", 2)), 3),
        (with_counters(link_downed=2), past(samples("mlx5_0/1", "link_downed", 250, 0)), 0),  # cleared: counts from zero
        (with_counters(link_downed=4), past(samples("mlx5_0/1", "link_downed", 250, 1)), 4),
        (with_counters(link_downed=2), past(samples("mlx5_0/1", "link_downed", 2, every=7000)), 0),
        (with_counters(downs=9), past(samples("ibp25s0", "carrier_down_count", 2, 5)), 7),
        (with_counters(downs=2), past(samples("ibp25s0", "carrier_down_count", 1)), 0),  # once: a cable, a switch
        (with_counters(), log(DOWN, DOWN, "mlx5_core 0000:19:00.0 mlx5_0: Port: 1 Link DOWN"), 3),
        (with_counters(), log(DOWN, DOWN, DOWN, seconds=NOW - 4000), 0),  # before the window
        (with_counters(), log(*["mlx5_core 0000:41:00.0 ibp65s0: Link down"] * 5), 0),  # another port
        (with_counters(), log(*["mlx5_core 0000:19:00.0 ibp25s0: Link up"] * 5), 0),
        (with_counters(link_downed=255, downs=9), past(samples("ibp25s0", "carrier_down_count", 2)), 7),  # one counter is full
    ],
)
def test_flaps(node: Node, history: Past, times: int) -> None:
    found = [f for f in judged("rdma_flaps", node, history) if f.level is not Level.OK]
    assert [f.summary for f in found] == [f"port mlx5_0/1 lost its link {times} times in 60 min: check_fabric"] * bool(times)


def test_flaps_that_cannot_be_counted_are_said() -> None:
    (full,) = judged("rdma_flaps", with_counters(link_downed=255))
    assert full.level is Level.OK and "stays at 255" in full.summary
    (late,) = judged("rdma_flaps", with_counters(link_downed=2), Past())
    assert late.needs_history
    assert levels(judged("rdma_flaps", with_counters(link_downed=NA))) == [(Level.UNKNOWN, "mlx5_0/1")]
    assert judged("rdma_flaps", host_node(), past(log=NA))[0].summary == "the kernel log cannot be read"
    assert judged("rdma_flaps", host_node()) == []


@pytest.mark.parametrize(
    ("counters", "history", "fast"),
    [
        ({"symbol_error": 500}, past(samples("mlx5_0/1", "symbol_error", 0)), "symbol_error"),
        ({"symbol_error": 500}, past(samples("mlx5_0/1", "symbol_error", 480)), "symbol_error"),
        ({"symbol_error": 500}, past(samples("mlx5_0/1", "symbol_error", 495)), ""),  # 30 an hour
        ({"symbol_error": 3}, past(samples("mlx5_0/1", "symbol_error", 60000, 0)), ""),  # cleared in between
        ({"symbol_error": 400}, past(samples("mlx5_0/1", "symbol_error", 60000, 0)), "symbol_error"),
        ({"symbol_error": 65535}, past(samples("mlx5_0/1", "symbol_error", 60000)), "symbol_error"),  # up to its end
        ({"link_error_recovery": 3}, past(samples("mlx5_0/1", "link_error_recovery", 1)), "link_error_recovery"),
        ({"link_error_recovery": 1}, past(samples("mlx5_0/1", "link_error_recovery", 0)), ""),  # one is no rate
        ({"packet_seq_err": 2**40 + 50}, past(samples("mlx5_0/1", "packet_seq_err", 2**40)), ""),
        ({"packet_seq_err": 2**40 + 50000}, past(samples("mlx5_0/1", "packet_seq_err", 2**40)), "packet_seq_err"),
        ({"port_rcv_errors": 14}, past(samples("mlx5_0/1", "port_rcv_errors", 14, 14, 14)), ""),
        ({"symbol_error": 500}, past(samples("mlx5_0/1", "symbol_error", 0, every=100)), ""),  # too close together
    ],
)
def test_error_rates(counters: dict[str, Any], history: Past, fast: str) -> None:
    found = [f for f in judged("rdma_errors", with_counters(**counters), history) if f.level is not Level.OK]
    assert [f.summary for f in found] == ([f"errors come too fast on port mlx5_0/1 ({fast}): check_fabric"] if fast else [])


def test_counters_that_say_nothing_are_said() -> None:
    (full,) = judged("rdma_errors", with_counters(symbol_error=65535), past(samples("mlx5_0/1", "symbol_error", 65535)))
    assert full.level is Level.OK and "cannot count any further" in full.summary
    assert judged("rdma_errors", with_counters(symbol_error=9), Past())[0].needs_history
    (blind,) = judged("rdma_errors", with_counters(symbol_error=NA, port_rcv_errors=NA))
    assert blind.level is Level.UNKNOWN and blind.summary.startswith("symbol_error, port_rcv_errors of port mlx5_0/1")
    assert judged("rdma_errors", host_node(), ignore=("mlx5_0",)) == [] == judged("rdma_errors", host_node())
