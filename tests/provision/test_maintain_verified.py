"""After the reboot: a node that has become another is applied once more; what is then not as declared has failed."""

from __future__ import annotations

import pytest

from fairlead.provision.maintain.maintenance_steps import (
    ApplyOutcome,
    MaintenancePlan,
    MaintenanceStep,
    NodeWork,
    applied,
    verified,
)

REBOOT = MaintenancePlan(reason="driver 580", reboot=True)


@pytest.mark.parametrize(
    ("back", "again", "said", "plan", "step"),
    [
        (True, False, ApplyOutcome(), REBOOT, MaintenanceStep.RESUMING),
        (True, False, ApplyOutcome(changed=("nccl: differs",)), REBOOT, MaintenanceStep.APPLYING),
        (True, True, ApplyOutcome(changed=("nccl: differs",)), REBOOT, MaintenanceStep.MARKING),
        (False, False, ApplyOutcome(changed=("nccl: differs",)), MaintenancePlan(reason="x"), MaintenanceStep.MARKING),
        (True, False, ApplyOutcome(waiting=("pcie_acs: a job",)), REBOOT, MaintenanceStep.MARKING),
        (True, True, ApplyOutcome(pending=("kernel_cmdline: iommu=pt",)), REBOOT, MaintenanceStep.MARKING),
        (
            False,
            False,
            ApplyOutcome(pending=("kernel_cmdline: iommu=pt",)),
            MaintenancePlan(reason="x"),
            MaintenanceStep.RESUMING,
        ),
    ],
)
def test_is_it_as_declared(back: bool, again: bool, said: ApplyOutcome, plan: MaintenancePlan, step: MaintenanceStep) -> None:
    work = NodeWork(node="n1", slurm="n1", step=MaintenanceStep.VERIFYING, boot_after="b2" if back else "", again=again)
    move = verified(work, said, plan)
    assert move.step is step and work.at(move.step, 1.0).step is step
    told = (*said.changed, *said.waiting, *said.pending)
    assert not told or step is MaintenanceStep.RESUMING or told[0] in move.why


def test_a_node_that_is_applied_again_is_not_rebooted_again() -> None:
    assert applied(NodeWork(node="n1", slurm="n1"), ApplyOutcome(), REBOOT).step is MaintenanceStep.REBOOTING
    assert (
        applied(NodeWork(node="n1", slurm="n1", boot_after="b2", again=True), ApplyOutcome(), REBOOT).step
        is MaintenanceStep.VERIFYING
    )
