"""Each rule finds its job and passes the harmless twin. Nothing is said of short, badly measured or shared jobs."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.jobs.advice import RULES, AdviceOptions, advice
from fairlead.jobs.job_measures import JobMeasures, measures
from tests.jobs.advice_scorecard import PAIRS, Pair, played, with_finding
from tests.jobs.made_jobs import HOUR, a_gpu, a_job, a_record, allocations


def rules(job: JobMeasures, **options: Any) -> set[str]:
    return {each.rule for each in advice(job, AdviceOptions(**options))}


def test_every_rule_has_a_pair() -> None:
    assert {pair.rule for pair in PAIRS} == set(RULES)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule}: {pair.differs}")
def test_a_rule_finds_its_job_and_passes_the_twin(pair: Pair) -> None:
    assert pair.rule in rules(pair.trigger())
    assert pair.rule not in rules(pair.twin())


def test_a_job_that_works_well_gets_no_advice() -> None:
    assert rules(played()) == set()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule}: {pair.differs}")
def test_evidence_and_threshold_are_said(pair: Pair) -> None:
    (found,) = [each for each in advice(pair.trigger(), AdviceOptions()) if each.rule == pair.rule]
    assert any(c.isdigit() for c in found.evidence)
    assert found.threshold and found.text


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule}: {pair.differs}")
def test_a_switched_off_rule_is_silent(pair: Pair) -> None:
    assert pair.rule not in rules(pair.trigger(), off=(pair.rule,))


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.rule}: {pair.differs}")
@pytest.mark.parametrize("change", [{"run_seconds": 599.0}, {"coverage": 0.949}])
def test_short_and_badly_measured_jobs_get_no_advice(pair: Pair, change: dict[str, float]) -> None:
    assert rules(replace(pair.trigger(), **change)) == set()


def test_shared_gpus_get_no_advice() -> None:
    gpus = tuple(a_gpu(n, shared=True, busy_seconds=0.0) for n in range(2))
    assert rules(played(gpus=gpus)) == set()


def test_a_node_without_a_record_lowers_the_coverage() -> None:
    job = measures(allocations(a_job(gpus=4, nodes=("n1", "n2"), limit_seconds=400 * HOUR), a_record()))
    assert job.coverage == 0.5
    assert rules(job) == set()


def test_an_uneven_gpu_with_a_finding_may_be_hardware() -> None:
    (found,) = [each for each in advice(with_finding("gpu_throttle"), AdviceOptions()) if each.rule == "uneven_gpus"]
    assert "hardware" in found.text and "gpu_throttle" in found.text
