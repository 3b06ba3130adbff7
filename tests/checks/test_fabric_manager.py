"""The fabric manager runs, is a zombie, is not there, or cannot be looked for."""

from __future__ import annotations

import pytest

from fairlead.checks import fabric_manager
from fairlead.model.facts import Missing, unreadable
from fairlead.model.finding import Level
from tests.checks.drivers import judged
from tests.checks.nodes import node

FM = fabric_manager.STAT
SLEEPING = "2211 (nv-fabricmanage) S 1 2211 2211 0 -1 4194560"


@pytest.mark.parametrize(
    ("stat", "level"),
    [
        (SLEEPING, None),
        (SLEEPING.replace(" S ", " R "), None),
        (SLEEPING.replace(" S ", " D "), None),
        ("2211 (nv-fabric) Z) S 1 2211", None),  # a name with a bracket in it
        (SLEEPING.replace(" S ", " Z "), Level.DRAIN),
        (None, Level.DRAIN),
        ("", Level.DRAIN),
        (unreadable("EIO"), Level.UNKNOWN),
    ],
)
def test_the_fabric_manager(stat: str | Missing | None, level: Level | None) -> None:
    found = judged(fabric_manager, node(texts={FM: stat}), required=True)
    assert [f.level for f in found] == ([] if level is None else [level])
    assert judged(fabric_manager, node(texts={FM: stat})) == []  # a node without NVSwitches has none


def test_a_fabric_manager_that_was_not_looked_for_is_unknown() -> None:
    assert [f.level for f in judged(fabric_manager, node(), required=True)] == [Level.UNKNOWN]
