"""The loaded driver against the wanted version or branch."""

from __future__ import annotations

import pytest

from fairlead.checks import driver_version
from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from tests.checks.drivers import judged, of_driver
from tests.checks.nodes import node


@pytest.mark.parametrize(
    ("wanted", "level"),
    [
        (None, None),
        ("570.172.08", None),
        ("570.172", None),
        ("570", None),
        ("57", Level.DRAIN),
        ("570.17", Level.DRAIN),
        ("575", Level.DRAIN),
    ],
)
def test_the_wanted_driver(wanted: str | None, level: Level | None) -> None:
    assert [f.level for f in judged(driver_version, node(), wanted=wanted)] == ([] if level is None else [level])


def test_a_driver_without_a_version() -> None:
    missing = of_driver(module_version=unreadable("not loaded"))
    assert [f.level for f in judged(driver_version, missing, wanted="570")] == [Level.UNKNOWN]
    assert judged(driver_version, missing) == []
