"""Links that were lost, by three counters, within the window."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.check_definition import KernelRecord, Past
from fairlead.model.facts import Node
from fairlead.model.finding import Level
from fairlead.model.host_facts import RdmaPort
from tests.checks.hosts import NOW, WELL, host_node, judged, levels, past, samples
from tests.checks.nodes import BOOT, NA, log


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


def test_links_that_went_down_in_the_log_while_they_trained() -> None:
    def flaps(first: float) -> Past:
        text = "mlx5_core 0000:19:00.0 ibp25s0: Link down"
        return Past(
            available=True,
            records=tuple(KernelRecord(sequence=i, seconds=first + i, priority=4, text=text, boot_id=BOOT) for i in range(3)),
        )

    facts = replace(host_node(), uptime_seconds=1000.0)
    assert judged("rdma_flaps", facts, flaps(20.0)) == []
    assert [f.level for f in judged("rdma_flaps", facts, flaps(400.0))] == [Level.DRAIN]
