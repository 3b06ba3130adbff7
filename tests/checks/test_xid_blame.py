"""The xid check: whose fault it is, the job's or the GPU's."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.xid import Params, check
from fairlead.model.check_definition import Past
from fairlead.model.finding import Action, Level, Service
from tests.checks.nodes import BOOT, node, records

WHERE = "NVRM: Xid (PCI:0000:1b:00)"


def of_users(*faults: tuple[str, int, int], seconds: float = 9990.0) -> Past:
    """Records of (text, job, uid)."""
    made = records(*(f"{WHERE}: {text}" for text, _, _ in faults), seconds=seconds)
    whose = zip(made, faults, strict=True)
    return Past(available=True, records=tuple(replace(r, jobs=(job,), uids=(uid,)) for r, (_, job, uid) in whose))


def test_the_jobs_of_a_finding_are_those_of_its_newest_record() -> None:
    """What names one job in a drain's reason (policy.decide)."""
    past = of_users(("79, GPU has fallen off the bus.", 11, 1001), ("79, GPU has fallen off the bus.", 12, 1002))
    (finding,) = check.findings(node(), past, Params())
    assert finding.jobs == (12,)
    nobody = replace(past, records=tuple(replace(r, jobs=(), uids=(), attributed=True) for r in past.records))
    unknown = replace(past, records=tuple(replace(r, jobs=(), uids=()) for r in past.records))
    assert [f.jobs for f in check.findings(node(), nobody, Params())] == [()]
    assert [f.jobs for f in check.findings(node(), unknown, Params())] == [None]
    (suspect,) = check.findings(node(), of_users(*THREE), Params())
    assert suspect.jobs == ()  # the GPU is to blame


THREE = (("31, Ch 1", 11, 1001), ("13, Graphics", 12, 1002), ("31, Ch 1", 13, 1003))


def test_a_gpu_that_faults_under_several_users_is_the_suspect() -> None:
    (finding,) = check.findings(node(), of_users(*THREE), Params())
    assert (finding.device, finding.action, finding.service) == ("0000:1b:00.0", Action.CHECK_HARDWARE, Service.KEEP)
    assert finding.level is Level.WARN  # likely, not certain: the site says whether it drains
    assert finding.summary == "GPU 0000:1b:00.0 is suspect: jobs of 3 users faulted on it (Xid 13, 31): check_hardware"
    assert finding.evidence == ("jobs 11, 12, 13",)
    assert not any(str(uid) in "".join((finding.summary, *finding.evidence, finding.evidence_id)) for uid in (1001, 1002, 1003))
    (drains,) = check.findings(node(), of_users(*THREE), Params(suspect_service=Service.DRAIN_AFTER_JOB))
    assert (drains.level, drains.service) == (Level.DRAIN, Service.DRAIN_AFTER_JOB)


@pytest.mark.parametrize(
    ("faults", "more"),
    [
        (THREE[:2], {}),
        ([("31, Ch 1", job, 1001) for job in range(40)], {}),  # one user, many jobs
        ([*THREE[:2], ("31, Ch 2", 14, 1002)], {}),
        (THREE, {"suspect_users": 4}),
        (THREE, {"suspect_users": 0}),
        ([("45, pid=1, name=x, Ch 1", n, n) for n in range(9)], {}),  # killed processes
        ([("95, Uncontained", n, n) for n in range(9)], {}),  # the GPU's own anyway
    ],
)
def test_what_makes_no_suspect(faults: list[tuple[str, int, int]], more: dict[str, int]) -> None:
    found = list(check.findings(node(), of_users(*faults), Params(suspect_service=Service.DRAIN_NOW, **more)))
    assert not [f for f in found if "suspect" in f.summary]


def test_a_suspect_needs_the_same_gpu_the_window_and_one_user_at_a_time() -> None:
    past = of_users(*THREE)
    elsewhere = replace(past.records[0], text=past.records[0].text.replace("1b", "43"))
    both_users = replace(past.records[0], uids=(1001, 1002))
    old = replace(past.records[0], seconds=1.0)
    nobody = replace(past.records[0], uids=(), jobs=())
    drain = Params(suspect_service=Service.DRAIN_NOW, suspect_seconds=3600)
    assert any(f.level is Level.DRAIN for f in check.findings(node(), past, drain))
    for other in (elsewhere, both_users, old, nobody):
        changed = replace(past, records=(other, *past.records[1:]))
        assert not any(f.level is Level.DRAIN for f in check.findings(node(), changed, drain))


def test_killed_processes_of_several_users_never_drain() -> None:
    """Xid 43 is what a killed CUDA process may leave: three people at one GPU who press Ctrl-C are no fault of it."""
    past = of_users(*[("43, pid=1, name=x, Ch 1", n, n) for n in range(1, 6)])
    (finding,) = check.findings(node(), past, Params(suspect_service=Service.DRAIN_NOW))
    assert finding.level is Level.WARN and "suspect" in finding.summary


def test_only_another_user_is_new_evidence_against_a_suspect() -> None:
    first, again, other = ((*THREE, ("31, Ch 9", *who)) for who in ((13, 1003), (14, 1002), (15, 1004)))
    ids = [next(check.findings(node(), of_users(*faults), Params())).evidence_id for faults in (THREE, first, again, other)]
    assert ids[0] == ids[1] == ids[2] == f"{BOOT}:102:users" and ids[3] == f"{BOOT}:103:users"


def test_a_job_s_own_fault_names_the_job_and_no_user() -> None:
    (one,) = check.findings(node(), of_users(("31, Ch 1", 11, 1001)), Params())
    assert one.summary == "Xid 31 on GPU 0000:1b:00.0 (memory page fault): restart_app, the fault of job 11"
    (many,) = check.findings(node(), of_users(*[("31, Ch 1", job, 1001) for job in range(11, 19)]), Params())
    assert many.summary.endswith("the fault of jobs 14, 15, 16, 17, 18 and 3 more") and "8 lines, jobs" in many.evidence[0]
