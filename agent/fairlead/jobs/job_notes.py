"""Adds to a job's report what the site's options say of it: advice, cost and carbon, and what of these is left out and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from fairlead.jobs.advice import COVERAGE_MIN, RUN_SECONDS_MIN, Advice, AdviceOptions, advice
from fairlead.jobs.allocations import allocations_of
from fairlead.jobs.busy_definition import Period, ladder
from fairlead.jobs.cost_and_energy import CostLine, UsageOptions, cost_lines
from fairlead.jobs.job_measures import JobMeasures, measures
from fairlead.jobs.usage_merge import JobReport

#: The rules that need to know how many GPUs the nodes have in all.
OF_WHOLE_NODES = ("spread_nodes", "host_memory")


class ReportOptions(Struct, frozen=True, kw_only=True):
    """Holds what a site declares for the reports of jobs: [usage] and [advice] of site.toml."""

    usage: UsageOptions = UsageOptions()
    advice: AdviceOptions = AdviceOptions()


class JobNotes(Struct, frozen=True, kw_only=True):
    """Holds what is added to the report of a job. left_out: in one line each, what is not there and why."""

    advice: tuple[Advice, ...] = ()
    costs: tuple[CostLine, ...] = ()
    left_out: tuple[str, ...] = ()


def notes_of(report: JobReport, options: ReportOptions, node_gpus: Mapping[str, int]) -> JobNotes:
    """Return the notes on a job. node_gpus: how many GPUs each node has in all; empty if that is not known."""
    run = report.run
    if not run.nodes or not (run.gpus or report.totals.gpus):
        return JobNotes()
    allocations = allocations_of(run, {record.node: record for record in report.records})
    job = measures(allocations, node_gpus)
    end = report.at_unix if run.end_unix is None else run.end_unix
    sums = ladder(allocations, Period(run.begin_unix, max(end, run.begin_unix + 1), run.label))
    return JobNotes(
        advice=advice(job, options.advice),
        costs=cost_lines(sums, options.usage),
        left_out=tuple(_left_out(report, job, options.advice)),
    )


def _left_out(report: JobReport, job: JobMeasures, options: AdviceOptions) -> Iterator[str]:
    """Yield which advice is left out, and why."""
    if job.run_seconds < RUN_SECONDS_MIN:
        yield f"advice: the job ran for less than {RUN_SECONDS_MIN / 60:.0f} min"
    elif any(gpu.shared for gpu in job.gpus):
        yield "advice: its GPUs were shared with other jobs"
    elif job.coverage < COVERAGE_MIN:
        yield f"advice: less than {COVERAGE_MIN:.0%} of its GPU time was measured"
    else:
        missing = [rule for rule in OF_WHOLE_NODES if rule not in options.off]
        if missing and not job.node_gpus:
            yield f"advice by {' and '.join(missing)}: Slurm did not say how many GPUs the nodes have"
        if report.run.end_unix is None and "time_limit" not in options.off:
            yield "advice by time_limit: the job still runs, and all values are those so far"
