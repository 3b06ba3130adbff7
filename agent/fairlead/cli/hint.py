"""Say how often a job should save, from this cluster's own node failures, preemptions and time limits.

fairlead hint checkpoint --nodes 64 --save 2m                   from the store of `fairlead collect`, on the controller
fairlead hint checkpoint --nodes 64 --save 2m --partition low   losses by preemption of this partition
fairlead hint checkpoint --nodes 64 --save 2m --from DIR        DIR has jobs.psv (sacct), and may have usage records

A node failure is a job that ended as NODE_FAIL, or a finding that drains a node while a job with GPUs runs there (only the usage
records know these). `--save` is the time for which one save stops the job. With fewer than 5 failures there is no hint.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from fairlead.cli.controller_paths import STORE
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.cli.time_options import span
from fairlead.errors import ExitCode, UsageError
from fairlead.fleet.checkpoint_interval import (
    DAY_SECONDS,
    PREEMPTED_SAVE_SECONDS,
    PREEMPTIONS_MIN,
    Hint,
    JobEnd,
    Losses,
    failure_rate,
    hint,
    losses_of,
)
from fairlead.model.plain_text import one_line

DAYS = 180
NODES_MAX = 100_000
_MISTAKES_SHOWN = 10
SLOW = "reading the records"  # patience.py says it


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["checkpoint"], help="checkpoint: how often a job should save")
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="the nodes of the job")
    parser.add_argument("--save", default="", metavar="TIME", help="for how long a save stops the job: 20s, 2m")
    parser.add_argument("--store", metavar="DIR", default=STORE, help="the store of `fairlead collect` (%(default)s)")
    parser.add_argument("--from", dest="folder", default="", metavar="DIR", help="read the records and jobs.psv in DIR instead")
    parser.add_argument("-p", "--partition", default="", metavar="NAME", help="losses of jobs in this partition (default: all)")
    parser.add_argument("--days", type=int, default=DAYS, metavar="N", help="the last N days that are known (%(default)s)")
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> ExitCode:
    if not 1 <= args.nodes <= NODES_MAX:
        raise UsageError(f"--nodes {args.nodes}: not from 1 to {NODES_MAX}")
    if not 1 <= args.days <= 3660:
        raise UsageError(f"--days {args.days}: not from 1 to 3660")
    save = span(args.save, "--save") if args.save else None
    mistakes: list[str] = []
    jobs, begin, end, records = _from_folder(args, mistakes) if args.folder else _from_store(args, mistakes)
    found = hint(args.nodes, save, failure_rate(jobs, begin, end), _losses(jobs, args.partition, begin))
    for mistake in mistakes[:_MISTAKES_SHOWN]:
        print(f"fairlead hint: {one_line(mistake, 300)}", file=sys.stderr)
    if len(mistakes) > _MISTAKES_SHOWN:
        print(
            f"fairlead hint: and {len(mistakes) - _MISTAKES_SHOWN} more that were not counted (--json has all)", file=sys.stderr
        )
    if args.json:
        print_json({**msgspec.to_builtins(found), "records": records, "mistakes": mistakes})
    else:
        print("\n".join(_lines(found, args.days, records)))
    return ExitCode.OK


def _from_store(args: argparse.Namespace, mistakes: list[str]) -> tuple[Sequence[JobEnd], float, float, int]:
    """Return the jobs, the begin and the end of the time that is counted, and the number of usage records."""
    from fairlead.controller.checkpoint_input import stored_ends
    from fairlead.slurm.scontrol import Scontrol

    client = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=60.0)
    found = stored_ends(args.store, client, DAY_SECONDS * args.days, time.time(), mistakes)
    begin = max(found.newest_unix - DAY_SECONDS * args.days, found.oldest_unix)
    return found.ends, begin, found.newest_unix, found.records


def _from_folder(args: argparse.Namespace, mistakes: list[str]) -> tuple[Sequence[JobEnd], float, float, int]:
    """Return the same from a folder."""
    from fairlead.controller.checkpoint_input import ends_of
    from fairlead.controller.records_folder import named, read_folder
    from fairlead.jobs.allocations import joined
    from fairlead.jobs.usage_merge import CLOCK_SECONDS

    folder, now = read_folder(args.folder), time.time()
    last = now + CLOCK_SECONDS
    future = [job for job in folder.runs if max(job.begin_unix, job.end_unix or 0.0) > last]
    mistakes += folder.mistakes
    mistakes += [f"jobs: job {job.job} is from the future: do the clocks differ? It is not counted" for job in future]
    jobs = [job for job in folder.runs if max(job.begin_unix, job.end_unix or 0.0) <= last]
    newest = max((max(job.begin_unix, job.end_unix or 0.0) for job in jobs), default=now)
    oldest = min((job.begin_unix for job in jobs), default=newest)
    found = joined(jobs, (record for _, record in folder.records), now)
    mistakes += named(folder.records, found.left_out)
    records = sum(each.record is not None for each in found.allocations)
    return ends_of(found.allocations, newest), max(newest - DAY_SECONDS * args.days, oldest), newest, records


def _losses(jobs: Sequence[JobEnd], partition: str, begin: float) -> Losses:
    if partition and not any(job.partition == partition for job in jobs):
        raise UsageError(f"--partition {one_line(partition, 64)}: no job with GPUs is known in it")
    return losses_of([job for job in jobs if job.end_unix > begin], partition)


def _lines(found: Hint, days: int, records: int) -> Iterator[str]:
    yield _rate_line(found)
    losses = _preemption(found.losses)
    if found.interval_seconds is not None and found.save_seconds is not None:
        low, high = found.interval_low_seconds or 0.0, found.interval_high_seconds or 0.0
        yield (
            f"If a save blocks for {_time(found.save_seconds)}, save every {_time(found.interval_seconds)} "
            f"({_time(low)} to {_time(high)} all cost about the same: {found.overhead_percent:.1f} % of the time).{losses}"
        )
    else:
        yield f"No hint from node failures: {found.why_none}.{losses}"
    if found.losses is not None:
        yield _loss_line(found.losses)
    covered = (found.rate.end_unix - found.rate.begin_unix) / DAY_SECONDS
    reach = f" (of {days} that were asked for)" if covered < days - 1 else ""
    causes = ", ".join(f"{count} x {one_line(cause)}" for cause, count in sorted(found.rate.causes.items())) or "none"
    yield (
        f"Node failure: a job that ended as NODE_FAIL, or a finding that drains its node. Causes: {causes}. "
        f"Jobs with GPUs of {covered:.0f} days{reach}, 95 % intervals."
    )
    if not records:
        yield "Without usage records, drains during a job are not known: the true rate may be higher."


def _rate_line(found: Hint) -> str:
    rate, per = found.rate, found.rate.per_thousand
    nodes = f"{found.nodes} node{'s' if found.nodes != 1 else ''}"
    if per is None:
        return f"{nodes}: no node-days: nothing is known of node failures."
    text = f"{nodes}: {rate.failures} node failures in {rate.node_days:,.0f} node-days ({per[0]:.1f}-{per[1]:.1f} per 1000)"
    if found.mean_seconds is None:
        return f"{text} -> at most one in {_time(found.mean_low_seconds or 0.0)}."
    low, high = found.mean_low_seconds or 0.0, found.mean_high_seconds or 0.0
    return f"{text} -> one in {_time(found.mean_seconds)} ({_time(low)} to {_time(high)})."


def _preemption(losses: Losses | None) -> str:
    if losses is None or losses.preempted < PREEMPTIONS_MIN:
        return ""
    where = f"Partition {one_line(losses.partition)}" if losses.partition else "This cluster"
    return f" {where} preempts: save every {_time(PREEMPTED_SAVE_SECONDS)} or on USR1 (fairlead template sbatch requeue)."


def _loss_line(losses: Losses) -> str:
    where = f"partition {one_line(losses.partition)}" if losses.partition else "all partitions"
    each = f", one in {_time(losses.preempted_each_seconds)} of run time" if losses.preempted_each_seconds else ""
    return (
        f"Other losses, {where}: of {losses.jobs} ended jobs {losses.preempted} were preempted{each}, {losses.timed_out} met "
        f"the time limit: at least {losses.lost_node_hours:,.0f} of {losses.run_node_hours:,.0f} node-hours (30 minutes each)."
    )


def _time(seconds: float) -> str:
    for unit, size, least in (("days", 86400.0, 2.0), ("h", 3600.0, 1.5), ("min", 60.0, 1.0)):
        if seconds >= least * size:
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 10 or abs(value - round(value)) < 0.05 else f"{value:.1f} {unit}"
    return f"{seconds:.0f} s"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended
    from fairlead.fleet.checkpoint_interval import Hint

    return {"": extended("PrintedHint", Hint, {"records": int, "mistakes": list[str]})}
