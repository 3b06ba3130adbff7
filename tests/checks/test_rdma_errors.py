"""Errors of ports as rates, and counters that say nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.check_definition import Past
from fairlead.model.facts import Node
from fairlead.model.finding import Level
from fairlead.model.host_facts import RdmaPort
from tests.checks.hosts import WELL, host_node, judged, past, samples
from tests.checks.nodes import NA


def with_counters(*, downs: int = 1, **counters: Any) -> Node:
    base: RdmaPort = WELL.ports[0]  # type: ignore[index]
    return host_node(ports=(replace(base, counters={**base.counters, **counters}, carrier_downs={"ibp25s0": downs}),))


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


def test_a_counter_that_a_guest_may_lack() -> None:
    counters = {**WELL.ports[0].counters, "rx_icrc_encapsulated": NA}  # type: ignore[index]
    machine = host_node(ports=(replace(WELL.ports[0], counters=counters),))  # type: ignore[index]
    assert [f.level for f in judged("rdma_errors", machine)] == [Level.UNKNOWN]
    assert judged("rdma_errors", replace(machine, virtual=True)) == []
