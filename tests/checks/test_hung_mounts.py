"""Declared mounts that hang, fail, or are not there."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import MountPoint, Space
from tests.checks.hosts import host_node, judged

NA = unreadable("Input/output error")


def space(path: str = "/", **changes: Any) -> Node:
    made = {"total_bytes": 1000, "available_bytes": 700, "total_inodes": 1000, "free_inodes": 900, **changes}
    return host_node(spaces=(Space(path=path, **made),))


HOME = {"paths": ("/home",)}


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, None),
        ({"total_bytes": NA, "waiting_seconds": 42.0}, Level.DRAIN),
        ({"waiting_seconds": 42.0}, Level.DRAIN),  # it answered before
        ({"waiting_seconds": 3.0}, None),  # asked just now
        ({"total_bytes": NA, "waiting_seconds": 5.0}, Level.UNKNOWN),  # and never answered: a single look at a dead server
        ({"total_bytes": NA, "failed": "stat ended with 1: Stale file handle"}, Level.DRAIN),
        ({"total_bytes": NA}, Level.UNKNOWN),
    ],
)
def test_mounts_that_hang(changes: dict[str, Any], level: Level | None) -> None:
    assert [f.level for f in judged("hung_mounts", space("/home", **changes), **HOME)] == ([level] if level is not None else [])
    assert judged("hung_mounts", space("/home", **changes)) == []


def test_mounts_that_are_not_there() -> None:
    (found,) = judged("hung_mounts", space("/scratch"), paths=("/scratch",))
    assert (found.level, found.summary) == (Level.DRAIN, "/scratch is not mounted")
    automount = MountPoint(path="/net", device="0:52", kind="autofs", source="auto.net", read_only=False)
    below = host_node(
        mounts=(automount,), spaces=(Space(path="/net/a", total_bytes=1, available_bytes=1, total_inodes=0, free_inodes=0),)
    )
    assert judged("hung_mounts", below, paths=("/net/a",)) == []
    assert [f.level for f in judged("hung_mounts", host_node(mounts=NA, spaces=NA), **HOME)] == [Level.UNKNOWN] * 2
