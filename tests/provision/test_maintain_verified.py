"""After the reboot: a node that has become another is applied once more; what is then not as declared has failed."""

from __future__ import annotations

import pytest

from fairlead.provision.maintain.maintenance_steps import Applied, Plan, Step, Work, applied, verified

REBOOT = Plan(reason="driver 580", reboot=True)


@pytest.mark.parametrize(
    ("back", "again", "said", "plan", "step"),
    [
        (True, False, Applied(), REBOOT, Step.RESUMING),
        (True, False, Applied(changed=("nccl: differs",)), REBOOT, Step.APPLYING),
        (True, True, Applied(changed=("nccl: differs",)), REBOOT, Step.MARKING),
        (False, False, Applied(changed=("nccl: differs",)), Plan(reason="x"), Step.MARKING),
        (True, False, Applied(waiting=("pcie_acs: a job",)), REBOOT, Step.MARKING),
        (True, True, Applied(pending=("kernel_cmdline: iommu=pt",)), REBOOT, Step.MARKING),
        (False, False, Applied(pending=("kernel_cmdline: iommu=pt",)), Plan(reason="x"), Step.RESUMING),
    ],
)
def test_is_it_as_declared(back: bool, again: bool, said: Applied, plan: Plan, step: Step) -> None:
    work = Work(node="n1", slurm="n1", step=Step.VERIFYING, boot_after="b2" if back else "", again=again)
    move = verified(work, said, plan)
    assert move.step is step and work.at(move.step, 1.0).step is step
    told = (*said.changed, *said.waiting, *said.pending)
    assert not told or step is Step.RESUMING or told[0] in move.why


def test_a_node_that_is_applied_again_is_not_rebooted_again() -> None:
    assert applied(Work(node="n1", slurm="n1"), Applied(), REBOOT).step is Step.REBOOTING
    assert applied(Work(node="n1", slurm="n1", boot_after="b2", again=True), Applied(), REBOOT).step is Step.VERIFYING
