"""Runs ``fairlead accept --fabric``: measures pairs of nodes, and resumes or cancels a run."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, TypedDict

from fairlead import config
from fairlead.cli.accepted_nodes import nodes_of, tell
from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from fairlead.measure.fabric_jobs import FabricJobs
    from fairlead.measure.fabric_plan import FabricPlan
    from fairlead.measure.fabric_store import FabricStore

FILE_BYTES = 64 << 20


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the fabric between the nodes").add_argument
    add(
        "--fabric", action="store_true", help="measure pairs of nodes that passed alone in the last 7 days, and name what is slow"
    )
    add("--judge", default="", metavar="FILE", help="judge a recorded table of pairs (CSV) instead of measuring")
    add(
        "--topology",
        default="",
        metavar="FILE",
        help="the leaf of each node: lines `leaf1: gpu[01-16]`, topology.conf, topology.yaml, the output of ibnetdiscover or of"
        " nvidia-smi -q, or a folder with NODE.json of lldpctl (default: slurmctld's topology)",
    )
    add(
        "--facts",
        default="",
        metavar="DIR",
        help="name the HCA of a rail from DIR/NODE, a machine tree (fairlead snapshot), or DIR/topology.NODE, the node's"
        " /run/fairlead/topology (default: what the nodes said in the run)",
    )
    add("--rails", type=int, default=0, metavar="N", help="a node has N rails (default: as many as GPUs); 1: measure none alone")
    add(
        "--warn-below",
        type=float,
        default=0.93,
        metavar="FRACTION",
        help="warn below this fraction of the expected bandwidth (0.93)",
    )
    add("--fail-below", type=float, default=0.85, metavar="FRACTION", help="fail below this fraction of it (0.85)")
    add("--expect", type=float, default=0.0, metavar="GB/S", help="expect this bandwidth of a pair (default: the nodes' median)")
    add("--expect-rail", type=float, default=0.0, metavar="GB/S", help="expect this bandwidth of one rail")
    add("--compare", nargs=2, default=[], metavar="RUN", help="show what differs between two runs over the fabric")
    add("--svg", default="", metavar="FILE", help="write a heat map of the pairs")
    add("--html", default="", metavar="FILE", help="write a page with the heat map")
    add("--csv", default="", metavar="FILE", help="write the table of pairs, which --judge reads")
    add("--drain", action="store_true", help="drain the nodes that failed: ssh to each, and run fairlead drain there")
    add("--ssh", default="ssh", metavar="PROGRAM", help="with --drain: the program to call in place of ssh")


def wanted(args: argparse.Namespace) -> bool:
    """Say whether the command line is about the fabric. Raises UsageError for options that need --fabric."""
    if args.fabric or args.judge or args.compare:
        return True
    needs = {"--svg": args.svg, "--html": args.html, "--csv": args.csv, "--drain": args.drain, "--topology": args.topology}
    needs |= {"--facts": args.facts, "--expect": args.expect, "--expect-rail": args.expect_rail, "--rails": args.rails}
    if used := [name for name, value in needs.items() if value]:
        raise UsageError(f"{', '.join(used)}: only with --fabric or --judge")
    return False


def run(args: argparse.Namespace, site: config.Site | None, path: str) -> ExitCode:
    from fairlead.cli import fabric_report
    from fairlead.measure.fabric_store import FabricStore
    from fairlead.measure.results_store import ResultStore

    if args.raw or args.tools or args.profile:
        raise UsageError("--raw, --tools and --profile are for nodes alone, not for the fabric")
    if args.judge and args.drain:
        raise UsageError(
            "--drain with --judge: a recorded table does not say when it was measured, and of which cluster",
            hint="fairlead accept --fabric --show RUN --drain",
        )
    if args.judge:
        return fabric_report.judge_table(args, site)
    reading = bool(args.show or args.history or args.cancel or args.compare or args.resume)
    store = ResultStore(path, make=not reading)
    try:
        fabric = FabricStore(store, make=not reading)
        if args.compare:
            return fabric_report.compare(args, fabric)
        if args.history:
            return fabric_report.history(args, fabric)
        if args.cancel:
            return _cancel(args, fabric)
        if args.show:
            return fabric_report.show(args, site, fabric)
        return _resume(args, site, fabric) if args.resume else _measure(args, site, fabric)
    finally:
        store.close()


# -- measuring ------------------------------------------------------------------------------------


def _measure(args: argparse.Namespace, site: config.Site | None, store: FabricStore) -> ExitCode:
    from fairlead import __version__
    from fairlead.cli import fabric_report
    from fairlead.measure import fabric_plan
    from fairlead.measure.fabric_jobs import FabricJobs
    from fairlead.measure.fabric_run import FabricRun
    from fairlead.measure.slurm_jobs import blocked, user
    from fairlead.model.nodelist import fold

    jobs = FabricJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
    options = site.accept if site is not None else AcceptOptions()
    named = nodes_of(args, jobs)
    resting = {state.name: why for state in jobs.nodes(named) if (why := blocked(state))}
    chosen, left_out, gpus = fabric_plan.fresh(store.store, [node for node in named if node not in resting])
    left_out |= {node: f"slurmctld has it {why}, and it starts no job" for node, why in resting.items()}
    by_why: dict[str, list[str]] = {}
    for node, why in left_out.items():
        by_why.setdefault(why, []).append(node)
    for why, names in by_why.items():
        print(f"{fold(names)}: left out: {why}", file=sys.stderr)
    if len(chosen) < fabric_plan.NODES_MIN:
        raise UsageError(
            f"{len(chosen)} of {len(chosen) + len(left_out)} nodes passed alone in the last {fabric_plan.FRESH_DAYS:g} days"
            f"{' and start jobs' if resting else ''}, and {fabric_plan.NODES_MIN} are needed",
            hint="fairlead accept NODELIST measures nodes alone",
        )
    kinds = fabric_plan.kinds(store.store, chosen)
    if len(kinds) > 1 and not args.expect:  # the slower kind would be accused: one median judges all nodes
        words = "; ".join(f"{fold(names)} ({kind})" for kind, names in kinds.items())
        raise UsageError(
            f"nodes of {len(kinds)} kinds, whose pairs may have different bandwidths: {words}",
            hint="measure the nodes of each kind in a run of their own, or say with --expect what each pair must reach",
        )
    more = [f"--partition={args.partition}"] if args.partition else []
    more += [f"--reservation={args.reservation}"] if args.reservation else []
    plan = fabric_plan.make(
        fabric_report.leaves_at(args.topology or options.topology, chosen, jobs),
        options,
        gpus=gpus,
        rails=args.rails,
        limits=fabric_report.limits_of(args, options),
        sbatch=[*options.sbatch, *args.sbatch, *more],
        time_minutes=args.time,
        max_wait_seconds=args.max_wait,
        left_out=left_out,
        switch_ports=fabric_report.switch_ports_at(args.topology or options.topology, chosen),
    )
    if args.dry_run:
        return _dry(plan, jobs, as_json=args.json)
    store.begin(plan, user=user(), fairlead=__version__)
    FabricRun(plan, jobs, store, lambda line: tell(args, line)).measure()
    return fabric_report.report(args, site, store, plan.run)


class FabricOutlook(TypedDict):
    """The job of a run over the fabric, and its first round. topology: where it was read. leaves: by node."""

    sbatch: list[str]
    script: str
    topology: str
    leaves: dict[str, str]
    first_round: list[tuple[str, str]]


def _dry(plan: FabricPlan, jobs: FabricJobs, *, as_json: bool) -> ExitCode:
    """Print the job and the first round. The later rounds depend on the figures of the earlier ones."""
    from fairlead.cli.output import print_json
    from fairlead.measure.fabric_jobs import hold_command
    from fairlead.measure.pairs.round_plan import next_round

    first = next_round(plan.pairs, (), {})
    pairs = first.pairs if first is not None else ()
    hold = hold_command(plan.nodes, name=plan.job_name, minutes=plan.minutes, more=plan.sbatch)
    if as_json:
        print_json(
            FabricOutlook(
                sbatch=hold,
                script=plan.script(""),
                topology=plan.leaves.source,
                leaves=dict(plan.leaves.of),
                first_round=list(pairs),
            )
        )
        return ExitCode.OK
    print(f"# {len(plan.nodes)} nodes, topology {plan.leaves.source}\n{shlex.join(hold)}")
    for pair in pairs[:1]:
        step = jobs.step_command(0, pair, name=plan.job_name, seconds=plan.step_seconds, more=plan.srun)
        print(f"# each pair of a round, such as {' and '.join(pair)} in the first one:\n{shlex.join(step)} /bin/sh -c SCRIPT")
        print(f"# SCRIPT:\n{plan.script('')}")
    print(f"# the first round: {', '.join(f'{a}-{b}' for a, b in pairs)}")
    return ExitCode.OK


def _resume(args: argparse.Namespace, site: config.Site | None, store: FabricStore) -> ExitCode:
    from fairlead.cli import fabric_report
    from fairlead.measure.acceptance_run import alive
    from fairlead.measure.fabric_jobs import FabricJobs
    from fairlead.measure.fabric_run import FabricRun

    record = store.load(args.resume)
    if record.ended is None:
        pid, host, began = store.process(args.resume)
        if pid != os.getpid() and alive(pid, host, began, args.resume):
            raise UsageError(f"run {args.resume} is still at work (process {pid} on {host})")
        store.taken_over(args.resume, pid, host)
        jobs = FabricJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
        FabricRun(record.plan, jobs, store, lambda line: tell(args, line)).measure(resumed=True)
    return fabric_report.report(args, site, store, args.resume)


def _cancel(args: argparse.Namespace, store: FabricStore) -> ExitCode:
    from fairlead.measure.fabric_jobs import FabricJobs

    record = store.load(args.cancel)
    jobs = FabricJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
    job = jobs.holding(record.plan.job_name)
    if not args.dry_run:
        jobs.cancel(record.plan.job_name)
        if record.ended is None:
            store.ended(args.cancel)
    would = "would be cancelled" if args.dry_run else "cancelled"
    print(f"run {args.cancel}: {f'job {job.id}' if job is not None else 'no job'} {would}")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import fabric_report

    return {
        "--fabric": fabric_report.PrintedFabricRun,
        "--fabric --compare": fabric_report.ComparedFabricRuns,
        "--fabric --history": list[fabric_report.RecordedFabricRun],
        "--fabric --dry-run": FabricOutlook,
    }
