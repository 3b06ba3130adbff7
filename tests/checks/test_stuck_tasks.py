"""Tasks that sleep uninterruptibly, and steps that cannot be killed."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.check import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Action, Level, Service
from fairlead.model.host_facts import StuckTask, Tasks
from tests.checks.hosts import NOW, host_node, judged
from tests.checks.nodes import log

NA = unreadable("Input/output error")


def asleep(seconds: float, **changes: Any) -> Node:
    return host_node(tasks=Tasks(total=900, seen=400, stuck=(StuckTask(pid=4711, seconds=seconds, **changes),)))


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (asleep(1), None),  # what every disk read looks like
        (asleep(299), None),
        (asleep(300), Level.WARN),
        (asleep(300, kernel=True), Level.WARN),
        (asleep(60, killed=True), None),
        (asleep(130, killed=True, job=12, step="0"), Level.DRAIN),
        (host_node(tasks=NA), Level.UNKNOWN),
    ],
)
def test_sleeping_tasks(node: Node, level: Level | None) -> None:
    assert [f.level for f in judged("stuck_tasks", node)] == ([level] if level is not None else [])


def test_an_unkillable_step_is_named_and_nothing_a_user_chose() -> None:
    (found,) = judged("stuck_tasks", asleep(130, killed=True, job=12, step="0"))
    assert found.summary == "1 tasks of job 12 cannot be killed: reboot_node"
    assert (found.evidence, found.action, found.service) == (
        ("process 4711 (job 12 step 0)",),
        Action.REBOOT_NODE,
        Service.DRAIN_NOW,
    )
    assert judged("stuck_tasks", asleep(3), Past())[0].needs_history
    record = "INFO: task evil; resume me:1234 blocked for more than 120 seconds."
    (told,) = judged("stuck_tasks", host_node(), log(record))
    assert told.level is Level.WARN and "evil" not in told.summary + str(told.evidence)
    assert judged("stuck_tasks", host_node(), log(record, seconds=NOW - 4000)) == []
    assert judged("stuck_tasks", asleep(300, kernel=True), kernel_threads=False) == []
