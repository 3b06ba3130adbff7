"""Measure nodes and judge them: nccl-tests, matrix products, copies, dcgmi diag and ib_write_bw, one Slurm job per node.

fairlead accept 'gpu[01-16]'  measure these nodes with exclusive jobs of the calling user, then judge and store
fairlead accept --show [RUN]  show the last run, or RUN; with --raw TOOL and one node: show TOOL's output on this node
fairlead accept --history [NODELIST]  list the stored runs
fairlead accept --resume RUN  go on with a run that was killed
fairlead accept --cancel RUN  cancel the jobs of a run that was killed
fairlead accept --fabric 'gpu[01-64]'  measure pairs of nodes, and name the slow node, rail, leaf or uplink
fairlead accept --judge PAIRS.csv --topology FILE  judge a recorded table of pairs again

Exit codes: 0 all nodes pass, 1 warnings, 2 a node failed, 3 a node's result is unknown (it was not measured, its results are
incomplete, or there is nothing to compare with). 75: jobs of a run that was killed are still on these nodes. Ctrl-C cancels
the jobs that this command submitted.
"""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING, TypedDict

from fairlead import config
from fairlead.cli import accept_fabric
from fairlead.cli.accepted_nodes import nodes_of, tell
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.errors import ExitCode, FairleadError, HostError, UsageError

if TYPE_CHECKING:
    from fairlead.measure.acceptance_plan import AcceptancePlan
    from fairlead.measure.results_store import ResultStore
    from fairlead.measure.slurm_jobs import AcceptanceJobs

SITE = "/etc/fairlead/site.toml"


class AcceptScript(TypedDict):
    """The job of one node: the command that submits it, and its script."""

    node: str
    sbatch: list[str]
    script: str


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("nodelist", nargs="?", default="", help="which nodes: gpu[01-16]; default: all of --partition or --reservation")
    add("-p", "--partition", metavar="NAME", default="", help="submit to this partition")
    add("--reservation", default="", metavar="NAME", help="submit into this reservation")
    add(
        "--tools",
        default="",
        metavar="TOOL,...",
        help="run only these tools, which must all be installed (default: every installed one)",
    )
    add("--site", default="", metavar="FILE", help=f"the site's classes and its [accept] section ({SITE} where there is one)")
    add("--profile", default="", metavar="NAME", help="compare with this hardware profile instead of the site's")
    add("--sbatch", action="append", default=[], metavar="OPTION", help="pass one more option to sbatch: --sbatch=--account=ops")
    add("--time", type=int, default=0, metavar="MINUTES", help="the jobs' time limit (default: as long as the tools may take)")
    add("--max-wait", type=float, default=3600.0, metavar="SECONDS", help="cancel a job that has not begun after so long (3600)")
    add(
        "--folder",
        default="",
        metavar="DIR",
        help="a folder that this host and the nodes share, for scripts and outputs (./fairlead-accept)",
    )
    add(
        "--store",
        default="",
        metavar="FILE",
        help="the SQLite file of the results (in /var/lib/fairlead, or ~/.local/state/fairlead)",
    )
    add("-n", "--dry-run", action="store_true", help="print each node's job script, submit nothing")
    add("--show", nargs="?", const="last", metavar="RUN", help="show a stored run instead of measuring")
    add("--history", action="store_true", help="list the stored runs, of all nodes or of NODELIST")
    add("--raw", default="", metavar="TOOL", help="with --show and one node in NODELIST: show what this tool wrote there")
    add("--resume", default="", metavar="RUN", help="wait for the jobs of a run that was killed, and judge it")
    add("--cancel", default="", metavar="RUN", help="cancel the jobs of a run that was killed")
    add("--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it")
    add_bin_dir(parser)
    add("--json", action="store_true", help="print the results as one JSON document")
    add("-q", "--quiet", action="store_true", help="print no progress on standard error")
    accept_fabric.register(parser)


def run(args: argparse.Namespace) -> ExitCode:
    if sum(map(bool, (args.show, args.history, args.resume, args.cancel))) > 1:
        raise UsageError("--show, --history, --resume and --cancel exclude each other")
    if args.raw and not args.show:
        raise UsageError("--raw needs --show")
    if args.time < 0 or args.max_wait <= 0:
        raise UsageError("--time must not be negative, and --max-wait must be more than 0")
    site = config.load_site(args.site or SITE) if args.site or os.path.exists(SITE) else None
    from fairlead.measure.results_store import default_path

    path = args.store or (site.accept.store if site is not None else "") or default_path()
    if accept_fabric.wanted(args):
        return accept_fabric.run(args, site, path)
    if args.show or args.history or args.cancel:
        from fairlead.cli import accept_text

        return accept_text.run(args, path)
    return _resume(args, path) if args.resume else _measure(args, site, path)


def _measure(args: argparse.Namespace, site: config.Site | None, path: str) -> ExitCode:
    import msgspec

    from fairlead import __version__
    from fairlead.measure import acceptance_plan
    from fairlead.measure.acceptance_run import AcceptanceRun
    from fairlead.measure.results_store import ResultStore
    from fairlead.measure.slurm_jobs import AcceptanceJobs, user

    jobs = AcceptanceJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
    more = list(args.sbatch)
    more += [f"--partition={args.partition}"] if args.partition else []
    more += [f"--reservation={args.reservation}"] if args.reservation else []
    folder = args.folder or (site.accept.folder if site is not None else "") or "fairlead-accept"
    plan = acceptance_plan.make(
        nodes_of(args, jobs),
        site,
        profile=args.profile,
        tools=[name.strip() for name in args.tools.split(",") if name.strip()],
        sbatch=more,
        folder=os.path.abspath(folder),
        time_minutes=args.time,
        max_wait_seconds=args.max_wait,
    )
    if args.dry_run:
        return _dry(plan, as_json=args.json)
    _make_folder(plan.folder)
    store = ResultStore(path)
    try:
        _refuse_running(jobs, store, {t.node for t in plan.targets})
        packed = msgspec.json.encode(plan)
        store.begin(plan.run, user=user(), host=os.uname().nodename, folder=plan.folder, plan=packed, fairlead=__version__)
        AcceptanceRun(plan, jobs, store, lambda line: tell(args, line)).measure()
        return _show(args, store, plan.run)
    finally:
        store.close()


def _show(args: argparse.Namespace, store: ResultStore, run: str) -> ExitCode:
    from fairlead.cli import accept_text
    from fairlead.measure.run_judgement import judge_run

    return accept_text.show(judge_run(store, run), as_json=args.json)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as e:
        raise HostError(f"--folder {folder}: {e.strerror}", hint="name one that this host and the nodes share") from None


def _refuse_running(jobs: AcceptanceJobs, store: ResultStore, nodes: set[str]) -> None:
    """Raise an error with exit code 75 if jobs of a killed run are left on these nodes. Its hint says how to continue. A job of a
    run that has ended by itself may complete for some time. Then the new job waits for it, as for the job of any user."""
    from fairlead.measure.acceptance_run import alive
    from fairlead.measure.slurm_jobs import PREFIX

    for job in jobs.own():
        name = job.name.removeprefix(PREFIX)
        rows = store.read("SELECT ended, pid, host, began, run FROM run WHERE run = ?", (name,))
        if job.node not in nodes or not rows or (rows[0][0] is not None and job.over):
            continue
        if rows[0][0] is not None:  # slurmctld did not answer when the run cancelled its jobs
            raise _RunAliveError(
                f"job {job.id} of run {name}, which has ended, still has {job.node}",
                hint=f"fairlead accept --cancel {name} ends it",
            )
        if not alive(*rows[0][1:]):
            raise _RunAliveError(
                f"job {job.id} of run {name}, which was killed, still has {job.node}",
                hint=f"fairlead accept --resume {name} goes on with it; --cancel {name} ends it",
            )


class _RunAliveError(FairleadError):
    exit_code = ExitCode.TRY_AGAIN


def _resume(args: argparse.Namespace, path: str) -> ExitCode:
    from fairlead.measure.acceptance_run import AcceptanceRun, alive
    from fairlead.measure.results_store import ResultStore
    from fairlead.measure.run_judgement import load
    from fairlead.measure.slurm_jobs import AcceptanceJobs

    store = ResultStore(path, make=False)
    try:
        found = load(store, args.resume)
        pid, host, began = store.read("SELECT pid, host, began FROM run WHERE run = ?", (found.run,))[0]
        if found.ended is None:
            if pid != os.getpid() and alive(pid, host, began, found.run):
                raise UsageError(f"run {found.run} is still at work (process {pid} on {host})")
            store.taken_over(found.run, pid, host)
            jobs = AcceptanceJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
            AcceptanceRun(found.plan, jobs, store, lambda line: tell(args, line)).measure(resumed=True)
        return _show(args, store, found.run)
    finally:
        store.close()


def _dry(plan: AcceptancePlan, *, as_json: bool) -> ExitCode:
    from fairlead.cli.output import print_json
    from fairlead.measure.slurm_jobs import submit_command

    made = [
        (
            target.node,
            submit_command(
                f"{plan.base(target)}.sh",
                target.node,
                name=plan.job_name,
                minutes=target.minutes,
                more=target.sbatch,
                folder=plan.folder,
            ),
            plan.script(target),
        )
        for target in plan.targets
    ]
    if as_json:
        print_json([AcceptScript(node=node, sbatch=command, script=script) for node, command, script in made])
    else:
        for node, command, script in made:
            print(f"# {node}: {shlex.join(command)}\n{script}")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import accept_fabric, accept_text

    return {
        "NODELIST": accept_text.AcceptedRun,
        "--show": accept_text.AcceptedRun,
        "--history": list[accept_text.RecordedRun],
        "--dry-run": list[AcceptScript],
        **accept_fabric.json_types(),
    }
