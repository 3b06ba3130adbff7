"""decide(): tables for each rule."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from fairlead import checks
from fairlead.model.finding import Finding, Level, Mode, Service
from fairlead.model.verdict import State
from fairlead.policy import CheckPolicy, Decision, Now, Order, PolicyState, Proof, Rules, acknowledge, decide
from fairlead.policy.decision_rules import Severity
from fairlead.policy.policy_state import remembered_findings

CHECKS = {
    "xid": CheckPolicy(mode=Mode.ENFORCE),
    "link": CheckPolicy(mode=Mode.ENFORCE, confirm=2, confirm_of=3),
    "ecc": CheckPolicy(mode=Mode.OBSERVE),
    "late": CheckPolicy(mode=Mode.ENFORCE, boot_grace_seconds=120),
}
RULES = Rules()
GPU = "0000:1b:00.0"


def now(sweep: int = 0, **changes: object) -> Now:
    made = Now(boot_seconds=1000.0 + 15 * sweep, wall_seconds=1e9 + 15 * sweep, boot_id="b1", serials={GPU: "S1"})
    return replace(made, **changes)


def bad(check: str = "xid", level: Level = Level.DRAIN, **changes: object) -> Finding:
    made = Finding(check=check, level=level, device=GPU, summary=f"{check} is bad", evidence_id="e7")
    return replace(made, **changes)


def run(*sweeps: list[Finding], state: PolicyState | None = None, rules: Rules = RULES, **changes: object) -> list[Decision]:
    state = state or PolicyState()
    out = []
    for place, findings in enumerate(sweeps):
        out.append(decide(findings, CHECKS, state, now(place, **changes), rules))
        state = out[-1].state
    return out


def test_a_healthy_node_is_ok_and_nothing_is_ordered() -> None:
    (decision,) = run([])
    assert (decision.order, decision.state_word, decision.level, decision.text) == (Order.KEEP, State.OK, Level.OK, "")


def test_a_check_that_has_never_run_is_unknown() -> None:
    decision = decide([], CHECKS, PolicyState(), now(), RULES, ran={"xid"})
    assert decision.state_word is State.UNKNOWN
    assert {f.check for f in decision.unknown} == {"link", "ecc", "late"}
    again = decide([], CHECKS, decision.state, now(1), RULES, ran={"link", "ecc", "late"})
    assert again.state_word is State.OK
    rebooted = decide([], CHECKS, again.state, now(2, boot_id="b2"), RULES, ran={"xid"})
    assert rebooted.state_word is State.UNKNOWN


def test_a_certain_finding_drains_at_once_and_the_word_waits_for_slurmctld() -> None:
    (decision,) = run([bad()])
    assert (decision.order, decision.level, decision.state_word) == (Order.DRAIN, Level.DRAIN, State.WARN)
    assert (decision.reason_check, decision.reason_summary) == ("xid", "xid is bad")
    assert decision.text == "drain pending: xid: xid is bad"
    accepted = decide([bad()], CHECKS, decision.state, now(1, drained=True), RULES)
    assert (accepted.order, accepted.state_word, accepted.text) == (Order.KEEP, State.DRAIN, "xid: xid is bad")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"hold": True}, "held by an admin"),
        ({"disabled": True}, "fairlead is disabled on this node"),
        ({"over_budget": "drain budget of partition gpu is used up"}, "drain budget of partition gpu is used up"),
        ({"suspicion": "job 7 is the suspect"}, "job 7 is the suspect"),
    ],
)
def test_what_holds_a_drain_makes_it_a_warning(change: dict[str, object], why: str) -> None:
    (decision,) = run([bad()], **change)
    assert (decision.order, decision.state_word, decision.why_suppressed) == (Order.KEEP, State.WARN, (why,))
    assert decision.counted == () and why in decision.text


def test_observe_is_a_warning_per_check_and_for_the_site() -> None:
    (by_check,) = run([bad("ecc")])
    (by_site,) = run([bad()], rules=Rules(mode=Mode.OBSERVE))
    for decision, why in ((by_check, "observed only"), (by_site, "observed only: policy.mode")):
        assert (decision.order, decision.state_word, decision.why_suppressed) == (Order.KEEP, State.WARN, (why,))


def test_the_verdict_does_not_say_that_the_agent_resumes_what_a_person_drained() -> None:
    drained = run([bad()])[0].state
    for steps in range(1, 6):
        decision = run(*[[]] * steps, state=drained, drained=True, drain_check="manual")[-1]
        assert "resuming" not in decision.text and "by fairlead" not in decision.text, decision.text
    assert decision.order is Order.RESUME, "the last of them is well"


def test_drift_and_driver_findings_do_not_drain_while_apply_runs() -> None:
    drift = bad("setting.pcie_acs")
    missing = bad("gpu_count")
    checks = {
        "setting.pcie_acs": CheckPolicy(mode=Mode.ENFORCE),
        "gpu_count": CheckPolicy(mode=Mode.ENFORCE),
        "xid": CHECKS["xid"],
    }
    held = decide([drift, missing], checks, PolicyState(), now(applying=True), RULES)
    assert held.order is Order.KEEP and set(held.why_suppressed) == {"apply or maintenance is running"}
    assert decide([drift, missing, bad()], checks, PolicyState(), now(applying=True), RULES).reason_check == "xid"
    assert decide([drift], checks, held.state, now(1), RULES).order is Order.DRAIN


def test_two_of_three_confirm() -> None:
    wide = [bad("link")]
    orders = [d.order for d in run(wide, [], [], wide, [], wide)]
    assert orders == [Order.KEEP, Order.KEEP, Order.KEEP, Order.KEEP, Order.KEEP, Order.DRAIN]
    first = run(wide)[0]
    assert first.why_suppressed == ("not confirmed: 1 of 2",) and first.state_word is State.WARN


def test_confirmation_by_severity() -> None:
    """What must go at once counts at once; what may wait for the job's end, and a warning, after more sweeps."""
    checks = {"ecc": CheckPolicy(mode=Mode.ENFORCE, confirm=1, confirm_after_job=2, confirm_warn=3, confirm_of=4)}
    mild, soft, hard = bad("ecc", Level.WARN), bad("ecc", service=Service.DRAIN_AFTER_JOB), bad("ecc", summary="hard")

    def decisions(*sweeps: list[Finding], **changes: object) -> list[Decision]:
        state, out = PolicyState(), []
        for place, findings in enumerate(sweeps):
            out.append(decide(findings, checks, state, now(place, **changes), RULES))
            state = out[-1].state
        return out

    assert decisions([hard])[0].order is Order.DRAIN
    assert [d.order for d in decisions([soft], [], [soft])] == [Order.KEEP, Order.KEEP, Order.DRAIN]
    assert decisions([soft])[0].why_suppressed == ("not confirmed: 1 of 2",)
    assert [d.state_word for d in decisions([mild], [mild], [], [mild])] == [State.OK, State.OK, State.OK, State.WARN]
    assert [d.state_word for d in decisions([mild], [], [], [], [mild])] == [State.OK] * 5
    waits = decisions([soft], [soft], job_running=True)
    assert [d.waits for d in waits] == [False, True]
    stricter = {"ecc": replace(checks["ecc"], confirm=2)}
    both = decide([soft, hard], stricter, waits[-1].state, now(3, job_running=True), RULES)
    assert (both.order, both.why_suppressed) == (Order.KEEP, ("not confirmed: 1 of 2",)), "the wait is no confirmation of worse"
    assert decide([hard], stricter, both.state, now(4, job_running=True), RULES).order is Order.DRAIN


def test_a_site_sets_confirmation_recovery_and_grace_of_a_check() -> None:
    check = checks.load()["pcie_link"]
    own = CheckPolicy.of(check, check.params())
    assert (own.confirm, own.confirm_of, own.recover, own.boot_grace_seconds) == (2, 3, 3, 120)
    given = check.params(confirm=1, confirm_after_job=4, confirm_warn=5, recover=7, boot_grace_seconds=0)
    site = CheckPolicy.of(check, given)
    assert [site.needed(s) for s in (Severity.NOW, Severity.AFTER_JOB, Severity.WARN)] == [1, 4, 5]
    assert (site.confirm_of, site.recover, site.boot_grace_seconds) == (5, 7, 0)


def test_boot_grace_holds_and_does_not_confirm() -> None:
    early, later = now(boot_seconds=60.0), now(1, boot_seconds=121.0)
    first = decide([bad("late")], CHECKS, PolicyState(), early, RULES)
    assert (first.order, first.why_suppressed) == (Order.KEEP, ("boot grace",))
    assert decide([bad("late")], CHECKS, first.state, later, RULES).order is Order.DRAIN


def test_drain_after_job_waits_for_the_job_but_not_for_ever() -> None:
    pending = [bad(service=Service.DRAIN_AFTER_JOB)]
    first = decide(pending, CHECKS, PolicyState(), now(job_running=True), RULES)
    assert (first.order, first.waits, first.state_word, first.level) == (Order.KEEP, True, State.WARN, Level.DRAIN)
    assert "waits for the job to end" in first.text
    assert decide(pending, CHECKS, first.state, now(1), RULES).order is Order.DRAIN
    assert not decide(pending, CHECKS, first.state, now(1, job_running=True, drained=True), RULES).waits
    day = now(1, job_running=True, wall_seconds=1e9 + 86401)
    assert decide(pending, CHECKS, first.state, day, RULES).order is Order.DRAIN
    assert decide(pending, CHECKS, first.state, day, Rules(after_job_max_seconds=0)).order is Order.KEEP
    both = decide([*pending, bad(service=Service.DRAIN_NOW, summary="now")], CHECKS, PolicyState(), now(job_running=True), RULES)
    assert (both.order, both.reason_summary) == (Order.DRAIN, "now")


def test_drain_after_job_waits_for_the_jobs_that_were_there_and_not_for_those_that_came_after() -> None:
    pending = [bad(service=Service.DRAIN_AFTER_JOB)]

    def with_jobs(sweep: int, *jobs: int) -> Now:
        return now(sweep, job_running=bool(jobs), jobs=frozenset(jobs))

    first = decide(pending, CHECKS, PolicyState(), with_jobs(0, 11, 12), RULES)
    assert first.waits
    second = decide(pending, CHECKS, first.state, with_jobs(1, 12, 13), RULES)
    assert second.waits, "12 was there when it came"
    again = [bad(service=Service.DRAIN_AFTER_JOB, evidence_id="e8")]
    kept = msgspec.json.decode(msgspec.json.encode(second.state), type=PolicyState)  # over a restart of the agent
    assert decide(again, CHECKS, kept, with_jobs(2, 13), RULES).order is Order.DRAIN, "a busy node would never be drained"
    later = decide(pending, CHECKS, PolicyState(), with_jobs(0), RULES)
    assert later.order is Order.DRAIN, "nothing to wait for"
    raced = decide(pending, CHECKS, later.state, with_jobs(1, 14), RULES)
    assert raced.order is Order.DRAIN, "nor for a job that came while the drain was on its way"


def test_keep_service_never_drains() -> None:
    assert run([bad(service=Service.KEEP)])[0].order is Order.KEEP


def test_a_finding_about_the_node_hides_no_device_s_recovery() -> None:
    state = run([bad()])[0].state
    about_the_node = [bad("xid", Level.WARN, device="")]
    assert run(*([about_the_node] * 3), state=state, drained=True)[-1].order is Order.RESUME


def test_the_driver_s_silence_is_told_before_what_it_hides() -> None:
    checks = {n: CheckPolicy(mode=Mode.ENFORCE) for n in ("ecc", "nvml_responsive")}
    blind = Finding(check="ecc", level=Level.UNKNOWN, summary="cannot judge: NVML lists no GPUs")
    hangs = bad("nvml_responsive", Level.UNKNOWN, summary="nvmlDeviceGetTemperature has not come back yet")
    decision = decide([blind, hangs], checks, PolicyState(), now(), RULES)
    assert decision.text == "nvml_responsive: nvmlDeviceGetTemperature has not come back yet (+1 more)"


def test_drift_is_over_as_soon_as_it_is_read_back() -> None:
    checks = {"setting.numa_balancing": CheckPolicy.of_setting(Mode.OBSERVE)}
    first = decide([bad("setting.numa_balancing", Level.WARN)], checks, PolicyState(), now(), RULES)
    assert first.state_word is State.WARN
    assert decide([], checks, first.state, now(1), RULES).state_word is State.OK


def test_an_empty_state_on_a_drained_node_still_takes_the_window() -> None:
    orders = [d.order for d in run([], [], [], drained=True)]
    assert orders == [Order.KEEP, Order.KEEP, Order.RESUME]


def test_a_reboot_keeps_what_drained_until_it_is_seen_clean() -> None:
    state = run([bad()])[0].state
    after = decide([], CHECKS, state, now(boot_id="b2", drained=True), RULES, ran={"xid"})
    assert (after.order, after.state_word) == (Order.KEEP, State.DRAIN)


def test_an_acknowledgement_covers_the_evidence_so_far_only() -> None:
    first = run([bad()])[0]
    known = acknowledge(first.state, remembered_findings(first.state))
    same = decide([bad()], CHECKS, known, now(1), RULES)
    assert (same.order, same.state_word, same.why_suppressed) == (Order.KEEP, State.WARN, ("acknowledged",))
    new = decide([bad(), bad(evidence_id="e9")], CHECKS, same.state, now(2), RULES)
    assert new.order is Order.DRAIN
    assert decide([bad()], CHECKS, same.state, now(3), RULES).order is Order.KEEP


def test_an_acknowledged_state_counts_again_once_it_had_gone() -> None:
    count = bad(evidence_id="", summary="7 of 8 GPUs")
    known = acknowledge(run([count])[0].state, remembered_findings(run([count])[0].state))
    gone = run([count], [], [], [], [], state=known)
    assert {d.order for d in gone} == {Order.KEEP}
    assert decide([count], CHECKS, gone[-1].state, now(9), RULES).order is Order.DRAIN
    assert decide([replace(count, summary="6 of 8 GPUs")], CHECKS, known, now(9), RULES).order is Order.DRAIN


PROVED = Rules(return_command=("/opt/site/gpu-test",))


def test_a_resume_waits_for_the_return_command_and_never_runs_it_beside_a_job() -> None:
    state = run([bad()])[0].state
    early = run([], [], state=state, rules=PROVED, drained=True)
    assert [d.prove for d in early] == [False, False], "only on a node that is well"
    well = early[-1].state
    for changes, prove, order, said in (
        ({}, True, Order.KEEP, "well again, the return command is due"),
        ({"proof": Proof.RUNNING}, True, Order.KEEP, "well again, the return command runs"),
        ({"proof": Proof.FAILED}, True, Order.KEEP, "well again, the return command has failed and is tried again"),
        ({"proof": Proof.PASSED}, True, Order.RESUME, ""),
        ({"job_running": True}, False, Order.KEEP, "the return command waits for the job to end"),
        ({"job_running": True, "proof": Proof.PASSED}, False, Order.KEEP, "waits for the job to end"),
        ({"hold": True, "proof": Proof.PASSED}, False, Order.KEEP, "recovering"),
        ({"drain_check": "manual", "proof": Proof.NONE}, False, Order.RESUME, ""),  # a person's: the courier leaves it
    ):
        decision = decide([], CHECKS, well, now(5, drained=True, **changes), PROVED)
        assert (decision.prove, decision.order, said in decision.text) == (prove, order, True), (changes, decision.text)
    sick = decide([bad()], CHECKS, well, now(5, drained=True, proof=Proof.PASSED), PROVED)
    assert (sick.prove, sick.order) == (False, Order.KEEP), "a proof does not outlive the next fault"


def test_three_strikes_of_one_board_need_a_person() -> None:
    state = PolicyState()
    for episode in range(3):
        for place in range(8):
            findings = [bad(evidence_id=f"e{episode}")] if place < 2 else []
            decision = decide(findings, CHECKS, state, now(10 * episode + place, drained=place > 0), RULES)
            state = decision.state
    assert decision.order is Order.KEEP
    assert decision.text == f"drained by fairlead, {GPU} was drained too often: resume by hand"
    assert state.strikes.keys() == {"S1"} and len(state.strikes["S1"]) == 3


def test_a_wake_of_one_check_leaves_the_others_as_they_were() -> None:
    state = run([bad("ecc", Level.WARN)])[0].state
    woken = decide([bad()], CHECKS, state, now(1, full_sweep=False), RULES, ran={"xid"})
    assert woken.order is Order.DRAIN and [f.check for f in woken.warned] == ["ecc"]


def test_a_check_that_is_no_longer_there_is_forgotten() -> None:
    state = run([bad()])[0].state
    fewer = {name: policy for name, policy in CHECKS.items() if name != "xid"}
    assert decide([], fewer, state, now(1), RULES, ran=set(fewer)).state.tracks == {}


def test_the_reason_names_the_cause_first_and_counts_the_rest() -> None:
    checks = {n: CheckPolicy(mode=Mode.ENFORCE) for n in ("gpu_count", "nvml_responsive", "xid")}
    found = [bad(n) for n in ("nvml_responsive", "gpu_count", "xid")]
    decision = decide(found, checks, PolicyState(), now(), RULES)
    assert (decision.reason_check, decision.reason_summary) == ("xid", "xid is bad (+2 more)")


def test_the_state_survives_being_written_down() -> None:
    state = run([bad(), bad("link")], [bad("ecc", Level.UNKNOWN)])[-1].state
    assert msgspec.json.decode(msgspec.json.encode(state), type=PolicyState) == state


# Properties -------------------------------------------------------------------------------------------------------------
