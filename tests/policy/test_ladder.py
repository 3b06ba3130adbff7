"""Strikes and the ladder: the same fault on the same board, again after its step was taken, wants the next step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level, Mode, Service
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Rules, acknowledge, decide
from fairlead.policy.ladder import STEPS, order_of
from fairlead.policy.policy_state import remembered_findings
from fairlead.policy.state_requests import Clear, apply

CHECKS = {n: CheckPolicy(mode=Mode.ENFORCE) for n in ("xid", "gpu_count", "row_remap")} | {"ecc": CheckPolicy()}
GPU, OTHER = "0000:1b:00.0", "0000:43:00.0"
SERIALS = {GPU: "S1", OTHER: "S2"}


def fault(check: str = "xid", action: Action = Action.RESET_GPU, device: str = GPU, **changes: object) -> Finding:
    made = Finding(
        check=check,
        level=Level.DRAIN,
        device=device,
        summary=f"broken: {action.value}",
        action=action,
        fault="95",
        evidence_id="e",
    )
    return replace(made, **changes)


class Machine:
    """A node whose agent's orders Slurm carries out at once. One sweep per 15 s."""

    def __init__(self, rules: Rules | None = None, **checks: CheckPolicy) -> None:
        self.rules = rules or Rules(strikes_max=0)
        self.checks = CHECKS | checks
        self.state = PolicyState()
        self.wall, self.boot_seconds, self.boot = 1e9, 1000.0, 1
        self.serials = dict(SERIALS)
        self.drained = self.returned = False
        self.last: Decision | None = None

    def sweep(self, *findings: Finding, **changes: object) -> Decision:
        self.wall += 15
        self.boot_seconds += 15
        now = Now(
            boot_seconds=self.boot_seconds,
            wall_seconds=self.wall,
            boot_id=f"b{self.boot}",
            drained=self.drained,
            returned=self.returned,
            serials=self.serials,
            gpus=frozenset(self.serials),
        )
        decision = decide(findings, self.checks, self.state, replace(now, **changes), self.rules)
        self.state, self.last = decision.state, decision
        self.drained = (self.drained or decision.order is Order.DRAIN) and decision.order is not Order.RESUME
        self.returned = decision.order is Order.RESUME
        return decision

    def well(self) -> Decision:
        """Three clean sweeps, and one in which a resume has been carried out."""
        for _ in range(3):
            decision = self.sweep()
        self.sweep()
        return decision

    def reboot(self) -> None:
        self.boot += 1
        self.wall += 300
        self.boot_seconds = 60.0

    def resume_by_a_person(self) -> None:
        self.state = acknowledge(self.state, remembered_findings(self.state))
        self.drained, self.returned = False, True


def actions(decision: Decision) -> list[Action]:
    return [f.action for f in decision.counted]


def test_the_first_time_it_is_what_the_check_says() -> None:
    decision = Machine().sweep(fault())
    assert actions(decision) == [Action.RESET_GPU] and decision.escalations == {}


def test_back_in_service_and_again_wants_the_next_step() -> None:
    node = Machine()
    node.sweep(fault(evidence_id="e1"))
    assert node.well().order is Order.RESUME
    again = node.sweep(fault(evidence_id="e2"))
    assert actions(again) == [Action.REBOOT_NODE]
    assert again.reason_summary == "broken: reboot_node (again after reset_gpu)"
    assert actions(node.sweep(fault(evidence_id="e3"))) == [Action.REBOOT_NODE], "one episode, however many records"


def test_the_whole_ladder_and_from_hardware_on_a_person_resumes() -> None:
    node, seen = Machine(Rules(strikes_max=0, reboots_max=0)), []
    for turn in range(5):
        decision = node.sweep(fault(action=Action.RESTART_APP, evidence_id=f"e{turn}"))
        seen += actions(decision)
        if order_of(seen[-1]) >= order_of(Action.CHECK_HARDWARE):
            well = node.well()
            assert (well.order, well.text.partition(":")[0]) == (Order.KEEP, "drained by fairlead, xid.95 on 0000")
            assert f"wants {seen[-1].value}: resume by hand" in well.text
            node.resume_by_a_person()
            node.well()
        else:
            assert node.well().order is Order.RESUME
    assert seen == list(STEPS)


def test_a_boot_is_a_reboot_taken_whatever_was_asked_for() -> None:
    node = Machine()
    node.sweep(fault())
    node.reboot()
    again = node.sweep(fault())
    assert actions(again) == [Action.CHECK_HARDWARE] and "again after reboot_node" in again.text


def test_evidence_of_the_last_boot_is_not_the_fault_again() -> None:
    node = Machine()
    node.sweep(fault(evidence_id="b1:7"))
    node.reboot()
    for _ in range(2):
        assert node.sweep().counted == (fault(evidence_id="b1:7"),), "stands until it is seen clean, with its old step"
    assert node.sweep().order is Order.RESUME


def test_a_boot_does_not_untie_what_wants_hardware() -> None:
    node = Machine()
    node.sweep(fault())
    node.reboot()
    node.sweep(fault())
    node.reboot()
    assert (node.well().order, node.drained) == (Order.KEEP, True)
    node.resume_by_a_person()
    assert node.well().order is Order.KEEP and not node.drained
    assert actions(node.sweep(fault(evidence_id="new"))) == [Action.CONTACT_SUPPORT]


def test_another_board_in_its_place_starts_at_the_bottom_and_is_not_tied() -> None:
    node = Machine()
    node.sweep(fault())
    node.reboot()
    node.sweep(fault())
    node.reboot()
    node.serials[GPU] = "S9"
    assert node.well().order is Order.RESUME
    assert actions(node.sweep(fault(evidence_id="e9"))) == [Action.RESET_GPU]


@pytest.mark.parametrize("times", [1, 3])
def test_a_drain_that_is_lost_or_taken_is_no_return_to_service(times: int) -> None:
    """slurmctld has lost it, or a person has put their words over it: nobody has taken the step."""
    node = Machine()
    node.sweep(fault())
    for _ in range(times):
        node.drained = False  # and no resume
        assert actions(node.sweep(fault())) == [Action.RESET_GPU]
    node.drained = False
    for _ in range(3):
        node.sweep(hold=True)  # under the person's words it is well again, and then comes again
    assert actions(node.sweep(fault())) == [Action.RESET_GPU]
    node.drained, node.returned = False, True  # the person whose words stood there resumes it
    for _ in range(3):
        node.sweep(hold=True)
    assert actions(node.sweep(fault(evidence_id="again"))) == [Action.REBOOT_NODE]


def test_what_wants_a_person_still_does_after_its_drain_was_lost() -> None:
    node = Machine()
    for _ in range(3):
        node.sweep(fault())
        node.reboot()
    assert (node.well().order, node.drained) == (Order.KEEP, True)
    node.drained = False
    node.sweep(fault(evidence_id="new"))
    assert node.well().order is Order.KEEP, "slurmctld has lost the drain: no person has resumed the node"
    node.resume_by_a_person()
    assert node.well().order is Order.KEEP and not node.drained


def test_a_moved_board_takes_its_place_on_the_ladder_along() -> None:
    node = Machine()
    node.sweep(fault())
    node.well()
    node.reboot()
    node.serials = {GPU: "S2", OTHER: "S1"}
    assert actions(node.sweep(fault(device=OTHER))) == [Action.REBOOT_NODE]


def test_another_fault_another_board_or_much_later_is_not_the_same_again() -> None:
    for second, wait in ((fault(fault="48"), 0.0), (fault(device=OTHER), 0.0), (fault(), 86400.0)):
        node = Machine()
        node.sweep(fault(evidence_id="e0"))
        node.well()
        node.wall += wait
        assert actions(node.sweep(second)) == [Action.RESET_GPU], second


def test_a_fault_that_comes_and_goes_under_one_drain_has_had_no_step() -> None:
    node = Machine()
    for _ in range(4):
        assert actions(node.sweep(fault())) == [Action.RESET_GPU]
        node.sweep()
        node.sweep()


def test_an_observed_fault_climbs_by_boots_alone_and_ties_nobody() -> None:
    node = Machine()
    for turn in range(3):
        node.sweep(fault("ecc"))
        held = node.last.suppressed[0] if node.last else None
        assert held is not None and held.action is (Action.RESET_GPU if turn < 3 else None)
        node.sweep()
    node.reboot()
    assert node.sweep(fault("ecc")).suppressed[0].action is Action.CHECK_HARDWARE
    node.sweep(fault("ecc"), fault("xid"))
    assert node.drained and node.well().order is Order.RESUME


def test_what_is_no_step_stays_as_it_is() -> None:
    for action in (Action.CHECK_FABRIC, Action.PROVISION, Action.UPDATE_SOFTWARE, Action.NONE):
        node = Machine()
        node.sweep(fault(action=action))
        node.reboot()
        assert actions(node.sweep(fault(action=action))) == [action]
        assert node.state.ladder == {}


def test_steps_may_be_taken_more_than_once() -> None:
    node, seen = Machine(Rules(strikes_max=0, reboots_max=0, ladder_repeats=2)), []
    for turn in range(5):
        seen += actions(node.sweep(fault(evidence_id=f"e{turn}")))
        node.well()
    assert [a.value for a in seen] == ["reset_gpu"] * 2 + ["reboot_node"] * 2 + ["check_hardware"]


def test_the_ladder_can_be_switched_off() -> None:
    node = Machine(Rules(strikes_max=0, ladder_window_seconds=0))
    for turn in range(4):
        assert actions(node.sweep(fault(evidence_id=f"e{turn}"))) == [Action.RESET_GPU]
        assert node.well().order is Order.RESUME


# Reboots ----------------------------------------------------------------------------------------------------------------


def test_the_reboot_budget_is_of_the_node_and_then_it_is_the_hardware() -> None:
    node = Machine()
    for turn, code in enumerate(("79", "119")):
        assert actions(node.sweep(fault(action=Action.REBOOT_NODE, fault=code, evidence_id=f"b{turn + 1}:1"))) == [
            Action.REBOOT_NODE
        ]
        node.reboot()
        assert node.well().order is Order.RESUME
    assert len(node.state.reboots) == 2
    third = node.sweep(fault(action=Action.REBOOT_NODE, fault="62", evidence_id="b3:1"))
    assert actions(third) == [Action.CHECK_HARDWARE]
    assert third.reason_summary == "broken: check_hardware (rebooted 2 times for faults)"
    node.reboot()
    assert node.well().order is Order.KEEP, "a third reboot by hand does not bring it back by itself"


def test_only_boots_after_a_fault_count_and_only_in_the_window() -> None:
    node = Machine()
    node.sweep()
    node.reboot()
    node.sweep(fault("ecc"))
    node.reboot()
    assert node.sweep().state.reboots == ()
    node.drained = True
    node.sweep(drain_check="manual")
    node.reboot()
    assert node.sweep(drain_check="manual").state.reboots == (), "maintenance under a person's drain"
    node.drained = False
    node.sweep(fault())
    node.reboot()
    assert len(node.sweep().state.reboots) == 1
    node.wall += 86400
    assert node.sweep().state.reboots == ()


def test_a_reset_is_still_a_reset_when_reboots_are_used_up() -> None:
    node = Machine(Rules(strikes_max=0, reboots_max=1))
    node.sweep(fault(action=Action.REBOOT_NODE, fault="79"))
    node.reboot()
    node.well()
    assert actions(node.sweep(fault(fault="95", evidence_id="n"))) == [Action.RESET_GPU]


# Strikes ----------------------------------------------------------------------------------------------------------------


def test_a_lost_gpu_cannot_say_its_serial_and_is_struck_under_it_all_the_same() -> None:
    node = Machine()
    node.sweep()
    node.serials = {OTHER: "S2"}
    node.sweep(fault("gpu_count", Action.REBOOT_NODE, GPU))
    assert node.state.strikes.keys() == {"S1"}


@pytest.mark.parametrize(("listed", "expected"), [({OTHER: "S2"}, {"S1"}), ({}, {"node"}), (SERIALS, {"node"})])
def test_a_count_strikes_the_gpus_that_are_missing_or_the_node(listed: dict[str, str], expected: set[str]) -> None:
    node = Machine()
    node.sweep()
    node.serials = dict(listed)
    node.sweep(fault("gpu_count", Action.REBOOT_NODE, ""))
    assert node.state.strikes.keys() == expected
    assert next(iter(node.state.ladder)).endswith("/" + next(iter(expected)))


def test_a_node_that_drains_again_and_again_needs_a_person_too() -> None:
    node = Machine(Rules(strikes_max=2, ladder_window_seconds=0))
    for turn in range(2):
        node.sweep(fault("row_remap", device="", evidence_id=f"e{turn}"))
        last = node.well()
    assert (last.order, last.text) == (Order.KEEP, "drained by fairlead, node was drained too often: resume by hand")


def test_strikes_of_a_board_that_was_replaced_do_not_count() -> None:
    node = Machine(Rules(strikes_max=2, ladder_window_seconds=0))
    for turn in range(2):
        node.sweep(fault(evidence_id=f"e{turn}"))
        node.well()
    assert node.drained
    node.serials[GPU] = "S9"
    assert node.sweep().order is Order.RESUME


def test_drift_is_nobodys_board() -> None:
    node = Machine(**{"setting.pcie_acs": CheckPolicy.of_setting(Mode.ENFORCE)})
    node.sweep(fault("setting.pcie_acs", Action.PROVISION, GPU))
    assert node.drained and node.state.strikes == {} == node.state.ladder


def test_a_repair_takes_the_board_off_the_ladder() -> None:
    node = Machine()
    node.sweep(fault())
    node.reboot()
    node.sweep(fault())
    node.state = apply(node.state, Clear(id="12345678", devices=(GPU, "S1"), boot_id="b2"))
    assert node.state.ladder == {} and node.well().order is Order.RESUME


# Properties -------------------------------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.sampled_from(["again", "again", "well", "reboot", "person", "gap", "other"]),
    min_size=1,
    max_size=30,
)


def play(events: list[str], check: Callable[[Machine, Decision], None], rules: Rules | None = None) -> Machine:
    node = Machine(rules or Rules())
    for place, word in enumerate(events):
        decision = None
        if word == "again":
            decision = node.sweep(fault(evidence_id=f"b{node.boot}:{place}"))
        elif word == "other":
            decision = node.sweep(fault("row_remap", device=OTHER, service=Service.DRAIN_AFTER_JOB))
        elif word == "well":
            decision = node.well()
        elif word == "reboot":
            node.reboot()
        elif word == "person":
            node.resume_by_a_person()
        else:
            decision = node.sweep(fault(level=Level.UNKNOWN))
        if decision is not None:
            check(node, decision)
    return node


@given(EVENTS)
def test_within_the_window_no_step_is_ever_taken_back(events: list[str]) -> None:
    highest: dict[str, int] = {}

    def climbs(node: Machine, decision: Decision) -> None:
        for name, rung in node.state.ladder.items():
            assert order_of(rung.step) >= highest.get(name, 0), (name, rung)
            highest[name] = order_of(rung.step)
        for f in decision.counted:
            assert order_of(f.action) >= order_of(Action.RESET_GPU)

    play(events, climbs)


@given(EVENTS)
def test_within_the_window_strikes_and_reboots_only_grow(events: list[str]) -> None:
    most: dict[str, int] = {}

    def grow(node: Machine, decision: Decision) -> None:
        counts = {k: len(v) for k, v in node.state.strikes.items()} | {"boots": len(node.state.reboots)}
        assert all(counts.get(k, 0) >= n for k, n in most.items())
        most.update(counts)

    play(events, grow)


@given(EVENTS)
def test_what_wants_hardware_never_goes_back_by_itself(events: list[str]) -> None:
    def tied(node: Machine, decision: Decision) -> None:
        if any(r.manual_resume for r in node.state.ladder.values()):
            assert decision.order is not Order.RESUME

    play(events, tied)


def test_a_fault_that_flickers_for_a_month_does_not_fill_the_state() -> None:
    node = Machine(Rules(strikes_max=3))
    node.sweep()
    times = tuple(1e9 - 100 * n for n in range(5000, 0, -1))
    node.state = replace(node.state, strikes={"S1": times})
    node.sweep(fault(evidence_id="one more"))
    assert 3 <= len(node.state.strikes["S1"]) <= 100
    assert node.state.strikes["S1"][-1] > times[-1], "the newest are kept"
