"""What has become of our drain in Slurm, as the policy's state takes it up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.daemon.loop.policy_input import after_slurm
from fairlead.daemon.slurmctld.slurm_state import SlurmState
from fairlead.model.finding import Finding, Level
from fairlead.policy import PolicyState
from fairlead.policy.policy_state import Track, identity

BOOT, EARLIER = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
FOUND = Finding(check="xid", level=Level.DRAIN, device="gpu1", summary="Xid 79", evidence_id=f"{BOOT}:7")
STATE = PolicyState(boot_id=BOOT, tracks={"xid/gpu1": Track(level=Level.DRAIN, bad=(FOUND,))})
DRAINED = SlurmState(drained=True, reason="fairlead:xid:abc Xid 79", known=(identity(FOUND),))


def bad(state: PolicyState) -> tuple[Finding, ...]:
    return state.tracks["xid/gpu1"].bad


def test_a_persons_resume_acknowledges_what_was_known() -> None:
    after = after_slurm(STATE, DRAINED, replace(DRAINED, drained=False, acknowledged=1), BOOT)
    assert after.acknowledged == (identity(FOUND),) and bad(after) == ()


def test_a_drain_that_slurmctld_lost_drains_again_for_what_is_not_known() -> None:
    after = after_slurm(STATE, DRAINED, replace(DRAINED, drained=False, lost=1, known=()), BOOT)
    assert after.acknowledged == () and bad(after) == (FOUND,)


@pytest.mark.parametrize("lost", [0, 1])
def test_records_of_an_earlier_boot_drain_no_more_once_the_drain_is_gone(lost: int) -> None:
    after = after_slurm(STATE, DRAINED, replace(DRAINED, drained=False, lost=lost, known=()), EARLIER)
    assert bad(after) == () and after.tracks["xid/gpu1"].level is Level.WARN


def test_while_our_drain_is_set_nothing_changes() -> None:
    assert after_slurm(STATE, SlurmState(), DRAINED, EARLIER) is STATE
    assert after_slurm(STATE, DRAINED, replace(DRAINED, confirmed=2), EARLIER) is STATE
