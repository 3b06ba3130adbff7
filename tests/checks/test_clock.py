"""A clock that nothing sets, that is wrong, or that jumped."""

from __future__ import annotations

import pytest

from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import Clock
from tests.checks.hosts import host_node, judged, past, samples

NA = unreadable("Input/output error")


def clock(offset: float = 1.7e9, *, synchronised: bool = True, error: float = 0.02) -> Node:
    return host_node(
        clock=Clock(synchronised=synchronised, maximum_error_seconds=error, estimated_error_seconds=0.0, offset_seconds=offset)
    )


def history(*offsets: float, every: float = 60.0) -> Past:
    return past(samples("clock", "offset_seconds", *offsets, every=every))


@pytest.mark.parametrize(
    ("node", "known", "fault"),
    [
        (clock(), history(1.7e9, 1.7e9), None),
        (clock(synchronised=False), past(), "unsynchronised"),
        (clock(error=7.5), past(), "error"),
        (clock(1.7e9 + 30), history(1.7e9, 1.7e9), "step"),
        (clock(1.7e9 - 30), history(1.7e9, 1.7e9), "step"),
        (clock(1.7e9 + 30), history(1.7e9, 1.7e9 + 30, 1.7e9 + 30), "step"),  # still told for a while
        (clock(1.7e9 + 0.5), history(1.7e9), None),  # slewed
        (clock(1.7e9 + 4), history(1.7e9, every=3500.0), None),  # 1100 ppm over an hour without a sample
        (clock(1.7e9 + 30), history(1.7e9, every=7000.0), None),  # no sample in the window to compare with
    ],
)
def test_clock(node: Node, known: Past, fault: str | None) -> None:
    assert [(f.level, f.fault) for f in judged("clock", node, known)] == ([(Level.WARN, fault)] if fault else [])


def test_a_clock_that_nobody_has_to_set_and_one_that_cannot_be_read() -> None:
    assert judged("clock", clock(synchronised=False, error=16.0), synchronised=False) == []
    assert [f.level for f in judged("clock", host_node(clock=NA))] == [Level.UNKNOWN]
