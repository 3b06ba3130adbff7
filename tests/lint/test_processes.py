"""Tests of one cluster or rack are run by one process (tests/conftest.py)."""

from __future__ import annotations

import pytest

from tests.conftest import unit

#: Fixtures that hold a cluster or a rack for many tests.
SHARED = {"up", "simulated", "real", "rack", "site", "admin"}


def test_no_cluster_or_rack_is_started_by_two_processes(request: pytest.FixtureRequest) -> None:
    users: dict[tuple[str, str, str], set[str]] = {}
    for item in request.session.items:
        if not isinstance(item, pytest.Function) or not any(item.get_closest_marker(name) for name in ("slurm", "rack")):
            continue
        for fixture in SHARED & {*item.fixturenames}:
            parameter = item.callspec.params.get(fixture, "") if hasattr(item, "callspec") else ""
            made = item._fixtureinfo.name2fixturedefs[fixture][-1]
            if made.scope == "function":
                continue
            made_in = made.baseid if made.scope != "module" else item.nodeid.partition("::")[0]
            users.setdefault((made_in, fixture, str(parameter)), set()).add(unit(item.nodeid))
    assert {shared: units for shared, units in users.items() if len(units) > 1} == {}


def test_units() -> None:
    assert (
        unit("tests/slurm/test_drain.py::test_a[bookworm-1]")
        == unit("tests/slurm/test_agent.py::test_b[bookworm]")
        == "slurm bookworm"
    )
    assert unit("tests/slurm/test_scontrol.py::test_pure") == "tests/slurm/test_scontrol.py"
    assert unit("tests/hooks/test_on_slurm.py::test_a[forky-options0-x]") == "hooks forky"
    assert unit("tests/faults/test_disk_faults.py::test_a[full]") == unit("tests/faults/test_hostile_jobs.py::test_b") == "faults"
    one, two = (unit(f"tests/rack/test_cluster.py::test_real_cpusets[{suite}]") for suite in ("bookworm", "trixie"))
    assert one != two
