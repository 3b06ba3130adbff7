"""What a maintenance run refuses before anything is touched, and the words that it is asked in."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import config
from fairlead.cli.time_options import window
from fairlead.errors import UsageError
from fairlead.provision.maintain.begin_limits import NodeAvailability
from fairlead.provision.maintain.controller import Listing
from fairlead.provision.maintain.maintenance_plan import MaintenanceRequest, prepare, replanned
from fairlead.provision.maintain.maintenance_report import unended
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan
from fairlead.slurm.client import NodeState

IN_SLURM = ("gpu1", "gpu2")
LISTING = Listing(
    nodes={n: NodeState(name=n, states=frozenset({"IDLE"}), partitions=("main",)) for n in IN_SLURM},
    availability={n: NodeAvailability(name=n, partitions=("main",)) for n in IN_SLURM},
    unix=0.0,
)


@pytest.fixture
def site(tmp_path: Path) -> config.Site:
    (tmp_path / "site.toml").write_text('schema = 1\n[classes.h100]\nnodes = "gpu[1-3]"\nprofile = "hgx-h100"\n')
    return config.load_site(str(tmp_path / "site.toml"))


@pytest.mark.parametrize(
    ("nodelist", "more", "why"),
    [
        ("gpu[1-3]", {}, "gpu3: slurmctld has no such node in any partition"),
        ("gpu[1,7-9]", {}, "gpu[7-9]: not declared in "),
        ("gpu[1", {}, "gpu[1: "),
        ("gpu1", {"reason": "  "}, "--reason: say why"),
        ("gpu1", {"max_failed": 0}, "--max-failed: at least 1"),
        ("gpu1", {"batch": "0"}, "--batch '0' is neither"),
        ("gpu1", {"floors": ("main=2",)}, "--floor main=2: main has 2 nodes: no node could ever be started"),
    ],
)
def test_what_makes_no_sense_is_refused(site: config.Site, nodelist: str, more: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as told:
        prepare(site, MaintenanceRequest(**{"nodelist": nodelist, "reason": "new driver", **more}), LISTING)
    assert why in str(told.value) and "\n" not in str(told.value)
    assert len(prepare(site, MaintenanceRequest(nodelist="gpu[1-2]", reason="new driver"), LISTING).works) == 2


def test_only_take_over_takes_up_a_drain_of_maintenance_that_no_run_knows(site: config.Site) -> None:
    reason = "fairlead:maintain:abcdef123456 driver 570"
    drained = NodeState(name="gpu1", states=frozenset({"IDLE", "DRAIN"}), reason=reason, reason_user="root", partitions=("main",))
    listing = Listing(
        nodes={**LISTING.nodes, "gpu1": drained},
        availability={
            **LISTING.availability,
            "gpu1": NodeAvailability(name="gpu1", partitions=("main",), out=True, maintained=True),
        },
        unix=0.0,
    )
    for over, took in ((False, ["", ""]), (True, [reason, ""])):
        prepared = prepare(site, MaintenanceRequest(nodelist="gpu[1-2]", reason="new driver", take_over=over), listing)
        assert [work.replaced_reason for work in prepared.works] == took


@pytest.mark.parametrize(("ago", "fresh"), [(0.0, True), (60.0, False)])
def test_an_old_listing_is_not_acted_on(ago: float, fresh: bool) -> None:
    assert replace(LISTING, unix=1000.0 - ago).fresh(1000.0) is fresh


def test_limits_that_are_given_to_resume_replace_those_of_the_run() -> None:
    plan = MaintenancePlan(reason="new driver", batch=1, floors={"main": 1, "gpu": 3}, max_wait=60.0)
    changed = {"batch": "50%", "floors": ["main=0"], "verify_seconds": 30.0}
    new = replanned(plan, changed, 8, lambda: LISTING.availability)
    assert new == replace(plan, batch=4, floors={"main": 0, "gpu": 3}, verify_seconds=30.0)
    for wrong, why in (
        ({"batch": "x"}, "--batch 'x'"),
        ({"max_failed": 0}, "--max-failed"),
        ({"floors": ["x=1"]}, "--floor x=1"),
    ):
        with pytest.raises(UsageError, match=why):
            replanned(plan, wrong, 8, lambda: LISTING.availability)


def test_the_words_of_a_window() -> None:
    now = time.time()
    assert window("2h", "--window")[0] == 0 and window("2h", "--window")[1] == pytest.approx(now + 7200, abs=60)
    opens, closes = window("30m/8h", "--window")
    assert opens == pytest.approx(now + 1800, abs=60) and closes == pytest.approx(opens + 8 * 3600)
    opens, closes = window("2026-01-01T22:00/2999-01-01T06:00", "--window")
    assert opens < now < closes  # under way
    for wrong in ("2h/", "/2h", "x", "2999-01-01/2998-01-01", "2020-01-01/2h", "2020-01-01", "2h/2020-01-01"):
        with pytest.raises(UsageError, match="--window"):
            window(wrong, "--window")


def test_how_to_go_on_is_said() -> None:
    assert unended("r1", full="", closed="") == "stopped; go on with --resume r1, or --abort r1"
    assert unended("r1", full="", closed="the window has ended") == (
        "the window has ended; go on with --resume r1 --window [BEGIN/]END, or --abort r1"
    )
    assert unended("r1", full="m.db: full", closed="").startswith(
        "m.db: full: no further node was started; make room there; go on with"
    )
