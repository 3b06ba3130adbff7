"""driver_library, driver_version, fabric_manager, imex, gpu_direct_rdma: the driver's software beside NVML's answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import driver_library, driver_version, fabric_manager, gpu_direct_rdma, imex
from fairlead.model.check import Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode
from fairlead.model.gpu_load import Software
from fairlead.policy import Order, PolicyState, Rules, decide
from fairlead.policy.rules import DRIVER_CHECKS, CheckPolicy
from fairlead.policy.state import Now
from tests.checks.nodes import BOOT, NA, node

FM = fabric_manager.STAT
SLEEPING = "2211 (nv-fabricmanage) S 1 2211 2211 0 -1 4194560"
NODES = "# the rack\n10.0.0.1\n10.0.0.2\n"


def of_driver(**changes: Any) -> Node:
    return node(driver=replace(node().driver, **changes))


def with_software(**changes: Any) -> Node:
    return of_driver(software=replace(node().driver.software, **changes))


def judged(module: Any, facts: Node, **params: Any) -> list[Finding]:
    return list(module.judge(facts, Past(available=True), module.Params(**params)))


# -- driver_library --------------------------------------------------------------------------------


def test_versions_that_fit() -> None:
    assert judged(driver_library, node()) == []
    assert judged(driver_library, with_software(library_file=None)) == []  # a file whose name holds no version
    assert driver_library.check.mode is Mode.ENFORCE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library_version": "575.57.08"}, "its library is 575.57.08"),
        ({"software": Software(library_file="575.57.08")}, "the library on disk is 575.57.08"),
        (
            {"library_version": NA, "software": Software(library_file="575.57.08"), "init_code": 18},
            "the library on disk is 575.57.08",
        ),
        ({"library_version": NA, "software": Software(library_file=None), "init_code": 18}, "NVML does not fit"),
    ],
)
def test_a_library_that_does_not_fit(changes: dict[str, Any], words: str) -> None:
    (finding,) = judged(driver_library, of_driver(**changes))
    assert finding.level is Level.DRAIN
    assert finding.action is Action.REBOOT_NODE
    assert words in finding.summary


def test_no_version_is_not_a_fitting_one() -> None:
    (finding,) = judged(driver_library, of_driver(module_version=unreadable("not loaded")))
    assert finding.level is Level.UNKNOWN
    (finding,) = judged(driver_library, of_driver(library_version=NA, software=Software()))
    assert finding.level is Level.UNKNOWN
    (finding,) = judged(driver_library, of_driver(library_version=NA))
    assert finding.level is Level.UNKNOWN, "NVML answers, but not this"
    mute = replace(of_driver(library_version=NA, nvml_version=NA, cuda_version=NA), gpus=NA)
    assert judged(driver_library, mute) == []  # its file fits; that NVML is mute is another check's
    assert {f.summary for f in judged(driver_library, of_driver(nvml_version=NA, cuda_version=NA))} == {
        "NVML does not say NVML's version",
        "NVML does not say CUDA's version",
    }


def test_an_upgrade_in_maintenance_drains_nothing() -> None:
    """The same findings, with apply or a maintenance reservation and without."""
    findings = judged(driver_library, with_software(library_file="575.57.08"))
    policies = {"driver_library": CheckPolicy(mode=Mode.ENFORCE)}
    now = Now(boot_seconds=5000.0, wall_seconds=1e9, boot_id=BOOT, applying=True)
    held = decide(findings, policies, PolicyState(), now, Rules())
    assert held.order is not Order.DRAIN
    assert held.why_held == ("apply or maintenance is running",)
    assert decide(findings, policies, PolicyState(), replace(now, applying=False), Rules()).order is Order.DRAIN
    assert {"driver_library", "driver_version", "fabric_manager", "gpu_fabric"} <= DRIVER_CHECKS


# -- driver_version --------------------------------------------------------------------------------


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


# -- fabric_manager --------------------------------------------------------------------------------


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


# -- imex ------------------------------------------------------------------------------------------


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


# -- gpu_direct_rdma -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("have", "params", "level"),
    [
        ({"peermem": True}, {}, None),
        ({"peermem": False}, {}, None),  # open modules, Linux 6.1: DMA-BUF
        ({"peermem": False}, {"peermem": True}, Level.DRAIN),
        ({"peermem": False, "open_module": False}, {}, Level.DRAIN),
        ({"peermem": False, "kernel": (5, 11)}, {}, Level.DRAIN),
        ({"peermem": False, "kernel": (5, 12)}, {}, None),
        ({"peermem": False, "open_module": NA}, {}, Level.UNKNOWN),
        ({"peermem": NA, "open_module": False}, {}, Level.UNKNOWN),
        ({"peermem": True, "open_module": NA, "kernel": NA}, {}, None),
    ],
)
def test_adapters_reach_gpu_memory(have: dict[str, Any], params: dict[str, Any], level: Level | None) -> None:
    found = judged(gpu_direct_rdma, with_software(**have), required=True, **params)
    assert [f.level for f in found] == ([] if level is None else [level])
    assert judged(gpu_direct_rdma, with_software(**have), **params) == []
