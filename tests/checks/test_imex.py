"""IMEX: its daemon, its list of nodes, its channels."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import imex
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Level
from tests.checks.drivers import judged, with_software
from tests.checks.nodes import NA

SLEEPING = "2211 (nv-fabricmanage) S 1 2211 2211 0 -1 4194560"
NODES = "# the rack\n10.0.0.1\n10.0.0.2\n"


def domain(*, channels: int | Missing = 1, **texts: str | Missing | None) -> Node:
    given = {imex.STAT: SLEEPING, imex.NODES: NODES, **{getattr(imex, name): text for name, text in texts.items()}}
    return replace(with_software(imex_channels=channels), texts=given)


@pytest.mark.parametrize(
    ("facts", "params", "words"),
    [
        (domain(), {}, ""),
        (domain(), {"nodes_expected": 2}, ""),
        (domain(STAT=None), {}, "nvidia-imex does not run"),
        (domain(STAT=None, NODES=None), {"daemon": False}, ""),
        (domain(NODES=None), {}, "is not there"),
        (domain(NODES="# none\n"), {}, "names no node"),
        (domain(), {"nodes_expected": 18}, "names 2 nodes, 18 expected"),
        (domain(channels=0), {}, "0 of 1 IMEX channels"),
        (domain(channels=0), {"channels_min": 0}, ""),
    ],
)
def test_imex(facts: Node, params: dict[str, Any], words: str) -> None:
    found = judged(imex, facts, required=True, **params)
    assert [f.level for f in found] == ([Level.DRAIN] if words else [])
    assert all(words in f.summary for f in found)
    assert judged(imex, facts, **params) == []


def test_imex_that_cannot_be_read() -> None:
    found = judged(imex, domain(STAT=NA, NODES=NA, channels=NA), required=True)
    assert [f.level for f in found] == [Level.UNKNOWN] * 3
