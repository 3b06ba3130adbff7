"""The NVIDIA module and its library: versions that fit, versions that do not, versions that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.checks import driver_library
from fairlead.model.facts import unreadable
from fairlead.model.finding import Action, Level, Mode
from fairlead.model.gpu_load import Software
from fairlead.policy import Order, PolicyState, Rules, decide
from fairlead.policy.decision_rules import DRIVER_CHECKS, CheckPolicy
from fairlead.policy.policy_state import Now
from tests.checks.drivers import judged, of_driver, with_software
from tests.checks.nodes import BOOT, NA, node


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
    assert held.why_suppressed == ("apply or maintenance is running",)
    assert decide(findings, policies, PolicyState(), replace(now, applying=False), Rules()).order is Order.DRAIN
    assert {"driver_library", "driver_version", "fabric_manager", "gpu_fabric"} <= DRIVER_CHECKS
