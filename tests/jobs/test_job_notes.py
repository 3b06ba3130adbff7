"""A job's report gets advice, cost and carbon by the site's options, and says of the rest why it is left out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fairlead.jobs.advice import RULES, AdviceOptions
from fairlead.jobs.cost_and_energy import UsageOptions
from fairlead.jobs.job_notes import JobNotes, ReportOptions, notes_of
from fairlead.jobs.notes_text import notes_text
from fairlead.jobs.usage_merge import merged
from fairlead.jobs.usage_record import JobFinding
from tests.jobs.job_reports import BEGIN, gpu_of, record_of, run_of

NOW = BEGIN + 9000.0
PRICES = UsageOptions(
    currency="EUR", gpu_hour_price=2.0, kwh_price=0.25, pue=1.3, pue_date="2026-09-30",
    grid_low_grams_per_kwh=200.0, grid_high_grams_per_kwh=400.0, grid_name="DE", grid_date="2026-09-30",
)  # fmt: skip
SITE = ReportOptions(usage=PRICES)
NODE_GPUS = {"gpu001": 8, "gpu002": 8}
#: GPU 3 never ran a kernel.
UNUSED = gpu_of(3, 3600.0, 0.0, zero_seconds=3600.0, longest_zero_seconds=3600.0, sm_active_seconds=0.0)


def notes(options: ReportOptions = SITE, *, findings: tuple[JobFinding, ...] = (), run: Any = None, **changes: Any) -> JobNotes:
    gpus = (gpu_of(0), gpu_of(1), gpu_of(2), UNUSED)
    record = replace(record_of("gpu001"), gpus=gpus, findings=findings, **changes)
    return notes_of(merged(run or run_of(gpus=4), [record], NOW)[0], options, NODE_GPUS)


def test_cost_carbon_and_advice() -> None:
    found = notes()
    assert [each.rule for each in found.advice] == ["unused_gpus"]
    assert found.left_out == ()
    text = notes_text(found)
    energy = "price of this energy 0.5 EUR (2.0 kWh x 0.25)"
    assert text[0] == f"  cost 8 EUR (4.0 GPU-hours x 2)   cost of idle time 2.6 EUR   {energy}"
    assert text[1].startswith("  carbon 0.52 to 1.04 kg (PUE 1.3 of 2026-09-30; grid DE until 2026-09-30, average)")
    assert text[2].startswith("  advice: 1 of 4 GPUs never ran a kernel: gpu001/0000:1e:00.0 (unused_gpus: ")
    assert len(text) == 3


@pytest.mark.parametrize("key", ["gpu_hour_price", "kwh_price", "pue", "grid_date"])
def test_what_the_site_does_not_declare_is_left_out_with_why(key: str) -> None:
    missing = replace(PRICES, **{key: getattr(UsageOptions(), key)})
    lines = [line for line in notes_text(notes(ReportOptions(usage=missing))) if "left out" in line]
    assert len(lines) == 1 and f"usage.{key} is not set in site.toml" in lines[0]


def test_without_options_nothing_is_free_of_charge() -> None:
    text = "\n".join(notes_text(notes(ReportOptions())))
    assert "EUR" not in text and " kg" not in text and "cost, cost of idle time: usage.gpu_hour_price is not set" in text


def test_a_rule_that_is_switched_off_is_silent() -> None:
    assert notes(ReportOptions(advice=AdviceOptions(off=tuple(RULES)))).advice == ()


@pytest.mark.parametrize(
    ("run", "changes", "why"),
    [
        (run_of(seconds=300, gpus=4), {"alloc_seconds": 300.0}, "the job ran for less than 10 min"),
        (run_of(2, gpus=8), {}, "less than 95% of its GPU time was measured"),
    ],
)
def test_why_there_is_no_advice(run: Any, changes: dict[str, Any], why: str) -> None:
    short = 300.0 if changes else 3600.0
    record = replace(record_of("gpu001", short), gpus=tuple(gpu_of(n, short) for n in range(4)), **changes)
    found = notes_of(merged(run, [record], NOW)[0], SITE, NODE_GPUS)
    assert found.advice == () and found.left_out == (f"advice: {why}",)
    assert found.costs and not found.costs[0].left_out, "the cost does not depend on what was measured"


def test_a_shared_gpu_gets_no_advice() -> None:
    record = replace(record_of("gpu001"), gpus=(gpu_of(0, shared=True),))
    found = notes_of(merged(run_of(gpus=1), [record], NOW)[0], SITE, NODE_GPUS)
    assert found.advice == () and "shared with other jobs" in found.left_out[0]


def test_a_job_without_gpus_has_no_notes() -> None:
    report = merged(run_of(gpus=0), [record_of("gpu001", 3600.0, 0)], NOW)[0]
    assert notes_of(report, SITE, NODE_GPUS) == JobNotes()


def test_what_a_finding_touched_is_not_counted_against_the_job() -> None:
    xid = JobFinding(check="xid", level="drain", pci=UNUSED.pci, at_unix=BEGIN + 60.0)
    (advice,) = notes(findings=(xid,)).advice
    assert [(each.check, each.node, each.pci) for each in advice.not_counted] == [("xid", "gpu001", UNUSED.pci)]
    assert any(
        "not counted against you: xid (drain) on gpu001 0000:1e:00.0" in line for line in notes_text(notes(findings=(xid,)))
    )
    (advice,) = notes(findings=(replace(xid, pci=gpu_of(0).pci),)).advice
    assert advice.not_counted == (), "the finding is on a GPU that worked"
    (advice,) = notes(findings=(replace(xid, pci=""),)).advice
    assert len(advice.not_counted) == 1, "the finding is on the node"


def test_a_finding_does_not_excuse_a_time_limit() -> None:
    xid = JobFinding(check="xid", level="drain", at_unix=BEGIN + 60.0)
    run = run_of(gpus=4, limit_seconds=86400)
    record = replace(record_of("gpu001"), gpus=tuple(gpu_of(n) for n in range(4)), findings=(xid,))
    (advice,) = notes_of(merged(run, [record], NOW)[0], SITE, NODE_GPUS).advice
    assert (advice.rule, advice.not_counted) == ("time_limit", ())


def test_a_running_job_is_judged_so_far() -> None:
    record = record_of("gpu001", 3600.0, 4, end_unix=None, end_boot=None, ended_by="", written_unix=BEGIN + 3601.0)
    run = run_of(seconds=None, gpus=4)
    found = notes_of(merged(run, [replace(record, gpus=(*record.gpus[:3], UNUSED))], BEGIN + 3610.0)[0], SITE, NODE_GPUS)
    assert [each.rule for each in found.advice] == ["unused_gpus"]
    assert found.left_out == ("advice by time_limit: the job still runs, and all values are those so far",)


def test_rules_over_whole_nodes_say_that_they_are_left_out() -> None:
    report = merged(run_of(), [record_of()], NOW)[0]
    assert notes_of(report, SITE, {}).left_out == (
        "advice by spread_nodes and host_memory: Slurm did not say how many GPUs the nodes have",
    )
