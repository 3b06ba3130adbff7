"""As much memory, as many CPUs and hardware threads as declared."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from tests.checks.hosts import host_node, judged

NA = unreadable("Input/output error")


@pytest.mark.parametrize(
    ("params", "changes", "level"),
    [
        ({"memory_bytes_min": 1 << 40}, {}, None),
        ({"memory_bytes_min": 3 << 40}, {}, Level.DRAIN),
        ({"memory_bytes_min": 1 << 40}, {"memory_bytes": NA}, Level.UNKNOWN),
        ({"cpus_expected": 112}, {}, None),
        ({"cpus_expected": 112}, {"cpus_online": 111}, Level.DRAIN),
        ({"cpus_expected": 112}, {"cpus_online": 224}, Level.WARN),
        ({"cpus_expected": 112}, {"cpus_online": NA}, Level.UNKNOWN),
        ({"smt": False}, {}, None),
        ({"smt": True}, {}, Level.DRAIN),
        ({"smt": False}, {"smt": "notsupported"}, None),
        ({"smt": False}, {"smt": NA}, Level.UNKNOWN),
        ({}, {"memory_bytes": NA, "cpus_online": NA, "smt": NA}, None),  # nothing declared
    ],
)
def test_sizes(params: dict[str, Any], changes: dict[str, Any], level: Level | None) -> None:
    assert [f.level for f in judged("cpu_memory", host_node(**changes), **params)] == ([level] if level is not None else [])
