"""A host that was not read is unknown to each check of it."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.model.facts import Missing, unreadable
from fairlead.model.finding import Level
from tests.checks.hosts import host_node, judged

NA = unreadable("Input/output error")


@pytest.mark.parametrize("check", ["rdma_ports", "memory_errors", "disks", "fs_errors", "clock", "stuck_tasks"])
def test_a_host_that_was_not_read_is_unknown(check: str) -> None:
    node = host_node()
    blind = msgspec.structs.replace(node, host=Missing(NA.why, "not read"))
    assert [f.level for f in judged(check, blind)] == [Level.UNKNOWN]
