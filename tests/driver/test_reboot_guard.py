"""No reboot into a kernel without the module: what the guard refuses in a node's apply is what stops its maintenance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead.apply import apply
from fairlead.config import resolve_layers
from fairlead.errors import ExitCode
from fairlead.host.root import Root
from fairlead.provision.maintain import maintenance_steps
from fairlead.provision.maintain.maintenance_steps import ApplyOutcome, MaintenancePlan, MaintenanceStep, NodeWork
from fairlead.provision.maintain.node_access import apply_outcome
from fairlead.provision.provision_report import node_result
from tests.driver.test_plan import LOADED, NEW, SET, installed, kernel, write

RUNNING, FOLLOWING = "6.1.0-9-amd64", "6.1.0-50-amd64"
PLAN = MaintenancePlan(reason="driver 580", reboot=True)
WORK = NodeWork(node="gpu1", slurm="gpu1", step=MaintenanceStep.APPLYING, since=100.0, began=90.0, text="ours", drained=95.0)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The set is installed, the former module is loaded, and the running kernel has the new one: a reboot would do."""
    made = tmp_path / "tree"
    write(made, "sys/module/nvidia/version", f"{LOADED}\n")
    write(made, "proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {LOADED}  Release\n")
    write(made, "proc/sys/kernel/osrelease", f"{RUNNING}\n")
    installed(made)
    kernel(made, RUNNING)
    return made


def applied(tree: Path, *, check: bool = False) -> tuple[ExitCode, ApplyOutcome]:
    """What the node's own apply comes to on the admin host, on a drained node."""
    packages = [msgspec.to_builtins(p) for p in SET]
    driver: dict[str, Any] = {"version": NEW, "module": "open", "install": ["nvidia-open"], "packages": packages}
    document = resolve_layers("gpu1", [("test", {"settings": {"driver": driver}})])[0]
    report = apply(document, Root(str(tree)), dry_run=check, drained=True)
    result = node_result("gpu1", "runner_on_ok", "apply", {"changes": [], "apply": msgspec.to_builtins(report)})
    return report.exit_code, apply_outcome(result)


def test_a_kernel_without_the_module_stops_the_run_before_the_reboot(tree: Path) -> None:
    kernel(tree, FOLLOWING, module="")
    code, said = applied(tree)
    assert code is ExitCode.CONFIG
    move = maintenance_steps.applied(WORK, said, PLAN)
    assert move.step is MaintenanceStep.MARKING, move
    assert f"kernel {FOLLOWING} boots next and has no NVIDIA module, wanted {NEW}" in move.why
    # neither the journal's step nor its reason leaves room for a reboot from here
    assert MaintenanceStep.REBOOTING not in maintenance_steps.NEXT[MaintenanceStep.MARKING]
    assert "FAILED: apply: driver: " in maintenance_steps.marked(PLAN, move.why)


@pytest.mark.parametrize("built", [NEW, LOADED])
def test_only_the_module_of_this_version_lets_it_reboot(tree: Path, built: str) -> None:
    kernel(tree, FOLLOWING, module=built)
    _, said = applied(tree, check=True)  # the reload itself is for a machine that has modules
    move = maintenance_steps.applied(WORK, said, PLAN)
    assert move.step is (MaintenanceStep.REBOOTING if built == NEW else MaintenanceStep.MARKING), (said, move)
    assert built == NEW or f"has the NVIDIA module of {LOADED}" in move.why
