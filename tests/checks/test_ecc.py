"""ecc: uncorrectable errors, the SRAM threshold, rates, and counters that went dark."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fairlead.checks.ecc import CORRECTED, Params, check
from fairlead.model.check_definition import Past, Sample
from fairlead.model.device import readable_fields
from fairlead.model.facts import Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, Service
from tests.checks.nodes import ADDRESSES, ECC, NA, UNSUPPORTED, gpu, node

UNREADABLE_ECC = replace(
    ECC, volatile_corrected=NA, volatile_uncorrected=NA, aggregate_uncorrected=NA, sram_threshold_exceeded=NA
)


def judged(machine: Node, past: Past | None = None, **params: object) -> list[Finding]:
    return list(check.findings(machine, past or Past(available=True), Params(**params)))


def sick(**changes: object) -> Node:
    return node(gpu(2, ecc=replace(ECC, **changes)))


def test_healthy() -> None:
    assert judged(node()) == []


@pytest.mark.parametrize(
    ("changes", "level", "action", "service"),
    [
        ({"volatile_uncorrected": 1}, Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        ({"sram_threshold_exceeded": True}, Level.DRAIN, Action.CONTACT_SUPPORT, Service.DRAIN_NOW),
        ({"aggregate_uncorrected": 64}, Level.WARN, Action.CONTACT_SUPPORT, Service.KEEP),
        ({"mode_current": False}, Level.DRAIN, Action.RESET_GPU, Service.DRAIN_AFTER_JOB),
        ({"mode_pending": False}, Level.WARN, Action.PROVISION, Service.KEEP),
    ],
)
def test_counters(changes: dict[str, object], level: Level, action: Action, service: Service) -> None:
    (finding,) = judged(sick(**changes))
    assert (finding.level, finding.action, finding.service, finding.device) == (level, action, service, ADDRESSES[2])
    assert ADDRESSES[2] in finding.summary


def test_limits_are_the_site_s() -> None:
    assert judged(sick(volatile_uncorrected=2), volatile_uncorrected_max=2) == []
    assert judged(sick(aggregate_uncorrected=9999), aggregate_uncorrected_max=0) == []
    assert judged(sick(mode_current=False, mode_pending=False), required=False) == []
    (finding,) = judged(sick(mode_current=False), required=False)
    assert finding.level is Level.WARN and "goes on at the next reset" in finding.summary


def test_more_errors_are_new_evidence() -> None:
    first, second = judged(sick(volatile_uncorrected=1)), judged(sick(volatile_uncorrected=2))
    assert first[0].evidence_id != second[0].evidence_id


def test_dark_counters_are_unknown_or_worse_when_they_were_readable() -> None:
    machine = node(gpu(2, ecc=UNREADABLE_ECC))
    (never,) = judged(machine)
    assert (never.level, never.device) == (Level.UNKNOWN, ADDRESSES[2])
    (gone,) = judged(machine, Past(available=True, readable=readable_fields(node())))
    assert (gone.level, gone.service) == (Level.DRAIN, Service.DRAIN_AFTER_JOB)
    assert "any more" in gone.summary
    whole = node(gpu(2, ecc=unreadable("no answer"), serial=unreadable("no answer")))
    assert [f.level for f in judged(whole, Past(available=True, readable=readable_fields(node())))] == [Level.DRAIN]


def test_what_the_profile_excuses_is_skipped() -> None:
    assert judged(node(gpu(2, ecc=UNSUPPORTED))) == []
    assert judged(sick(sram_threshold_exceeded=UNSUPPORTED)) == []


def test_a_lost_gpu_is_gpu_count_s() -> None:
    assert judged(node(gpu(2, lost=True, ecc=unreadable("lost")))) == []


def test_no_list_of_gpus_is_unknown() -> None:
    assert [f.level for f in judged(node(gpus=unreadable("no answer")))] == [Level.UNKNOWN]


def past(*points: tuple[float, float], device: str = "1651223002") -> Past:
    return Past(available=True, samples=tuple(Sample(device=device, name=CORRECTED, seconds=s, value=v) for s, v in points))


@pytest.mark.parametrize(
    ("points", "value", "warns"),
    [
        (((9000.0, 0.0),), 27777, False),
        (((9000.0, 0.0),), 27778, True),
        (((7000.0, 0.0), (9990.0, 100000.0)), 100000, True),
        (((9000.0, 100000.0),), 100000, False),
        (((9000.0, 200000.0),), 100000, True),  # the driver was loaded anew, and so many have come since
        (((9000.0, 200000.0),), 1000, False),
        (((9800.0, 0.0),), 100000, False),
        (((100.0, 0.0),), 10**9, False),
        ((), 10**9, False),
    ],
)
def test_corrected_errors_are_a_rate(points: tuple[tuple[float, float], ...], value: int, warns: bool) -> None:
    found = judged(sick(volatile_corrected=value), past(*points))
    assert [f.level for f in found] == ([Level.WARN] if warns else [])
    if warns:
        assert found[0].action is Action.CHECK_HARDWARE and "per hour" in found[0].evidence[0]


def test_one_look_says_that_a_rate_needs_history() -> None:
    (finding,) = judged(sick(volatile_corrected=5), Past())
    assert finding.needs_history and finding.level is Level.OK


def test_samples_are_kept_by_serial() -> None:
    assert check.samples is not None
    assert ("1651223002", CORRECTED, 7.0) in set(check.samples(sick(volatile_corrected=7)))
    assert list(check.samples(node(gpus=unreadable("x")))) == []


def test_it_only_observes_by_default() -> None:
    assert check.mode is Mode.OBSERVE
