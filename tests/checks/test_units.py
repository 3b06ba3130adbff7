"""systemd units that are wanted, and units that failed."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.model.facts import unreadable
from fairlead.model.finding import Level
from fairlead.model.host_facts import UnitState
from tests.checks.hosts import host_node, judged, levels

NA = unreadable("Input/output error")


def unit(active: str = "active", sub: str = "running", load: str = "loaded", name: str = "slurmd.service") -> UnitState:
    return UnitState(name=name, load=load, active=active, sub=sub)


@pytest.mark.parametrize(
    ("units", "level"),
    [
        ((unit(),), None),
        ((unit("reloading", "reload"),), None),
        ((unit("failed", "failed"),), Level.DRAIN),
        ((unit("inactive", "dead"),), Level.DRAIN),
        ((unit("activating", "auto-restart"),), Level.DRAIN),
        ((unit("inactive", "dead", load="not-found"),), Level.DRAIN),
        ((unit(name="munge.service"),), Level.DRAIN),
        ((), Level.UNKNOWN),
        (NA, Level.UNKNOWN),
    ],
)
def test_units(units: Any, level: Level | None) -> None:
    found = judged("units", host_node(units=units), wanted=("slurmd.service",))
    assert levels(found) == ([(level, "" if level is Level.UNKNOWN else "slurmd.service")] if level is not None else [])
    assert judged("units", host_node(units=units)) == []


def test_units_that_failed_and_are_not_wanted() -> None:
    others = (unit(), unit("failed", "failed", name="apt-daily.service"), unit("failed", "failed", name="user@1000.service"))
    assert levels(judged("units", host_node(units=others), failed=True)) == [(Level.WARN, "apt-daily.service")]
    assert judged("units", host_node(units=others), wanted=("slurmd.service",)) == []
