"""Tasks that sleep uninterruptibly, and steps that cannot be killed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.model.check_definition import Past
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Action, Level, Service
from fairlead.model.host_facts import Host, StuckTask, Tasks
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


def test_a_kernel_that_tells_of_no_more_hangs_is_said_and_is_no_fault() -> None:
    """Ten tasks that wait for a user's own server use up what the kernel tells: no user may make a node look broken by that."""
    (note,) = judged("stuck_tasks", host_node(hung_task_warnings=0))
    assert note.level is Level.OK and "hung_task_warnings" in note.summary and not note.needs_history
    for well in (10, 1, -1, NA):
        assert judged("stuck_tasks", host_node(hung_task_warnings=well)) == []
    blind = asleep(130, killed=True)
    assert isinstance(blind.host, Host)
    found = judged("stuck_tasks", replace(blind, host=replace(blind.host, hung_task_warnings=0)))
    assert sorted(f.level for f in found) == [Level.OK, Level.DRAIN], "the agent's own watch goes on"


@pytest.mark.parametrize("seconds", [1.0, 400.0])
def test_who_waits_for_a_vfork_child_or_a_server_is_left_out(seconds: float) -> None:
    assert judged("stuck_tasks", asleep(seconds, vfork=True)) == []
    assert judged("stuck_tasks", asleep(seconds, fuse=True, killed=True)) == []
