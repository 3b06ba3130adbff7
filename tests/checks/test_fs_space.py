"""Bytes and inodes that declared file systems have left."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import Space
from tests.checks.hosts import host_node, judged

NA = unreadable("Input/output error")


def space(path: str = "/", **changes: Any) -> Node:
    made = {"total_bytes": 1000, "available_bytes": 700, "total_inodes": 1000, "free_inodes": 900, **changes}
    return host_node(spaces=(Space(path=path, **made),))


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (space(), None),
        (space(available_bytes=90), Level.WARN),
        (space(available_bytes=5), Level.DRAIN),
        (space(free_inodes=90), Level.WARN),
        (space(free_inodes=0), Level.DRAIN),
        (space(total_inodes=0, free_inodes=0), None),  # btrfs, NFS
        (space(available_bytes=NA, total_bytes=NA), Level.UNKNOWN),
        (space(waiting_seconds=14.0), None),
        (space(waiting_seconds=75.0), Level.UNKNOWN),  # what it said before it hung
        (space("/tmp"), Level.UNKNOWN),
        (host_node(spaces=NA), Level.UNKNOWN),
    ],
)
def test_room(node: Node, level: Level | None) -> None:
    assert [f.level for f in judged("fs_space", node, paths=("/",))] == ([level] if level is not None else [])
    assert judged("fs_space", node) == [], "only what is declared: a full tmpfs is nobody's fault"
