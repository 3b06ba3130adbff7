"""Collect what jobs used from the nodes, keep it in a store on the controller, and write jobstats' AdminComment.

Without options, the command does one round: it asks slurmdbd which jobs have ended, asks their nodes over ssh for the usage
records, keeps them in the store, and writes AdminComment where it is empty or fairlead's own. It also keeps the service records
of nodes and Slurm's node events for `fairlead report`. A timer of systemd does that each minute.

--running pulls the newest records of running GPU jobs into a folder, where `fairlead idle` reads them, and does nothing else.

--from merges recorded records without Slurm, and prints what would be written. DIR has the usage records (*.json) and jobs.psv:
  F=JobIDRaw,JobID,UID,User,Account,Partition,QOS,State,Start,End
  F=$F,TimelimitRaw,NCPUS,AllocTRES,NodeList
  SLURM_TIME_FORMAT=%s sacct -a -D -P -S now-7days -o $F > DIR/jobs.psv
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
import time
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from fairlead import config
from fairlead.cli.controller_paths import EVENTS, IDLE, RUNNING, SITE, STORE
from fairlead.cli.output import print_json
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.config import Site
from fairlead.config.site import AnsibleOptions
from fairlead.errors import ExitCode, HostError, InputMissing, UsageError, next_step
from fairlead.jobs.job_run import JobRun
from fairlead.model.plain_text import one_line

if TYPE_CHECKING:
    from fairlead.controller.all_stores import Folders
    from fairlead.controller.fleet_collection import FleetRound
    from fairlead.controller.record_pull import NodeRecords


SLOW = "at work"  # patience.py says it


class WouldCollect(TypedDict):
    """The runs whose nodes would be asked."""

    runs: list[JobRun]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="DIR", default=STORE, help="the folder of the store (%(default)s)")
    parser.add_argument("--from", dest="folder", metavar="DIR", default="", help="merge the records in DIR, without Slurm")
    parser.add_argument("--site", metavar="FILE", default="", help=f"the site ({SITE} where there is one)")
    parser.add_argument("--days", type=int, default=400, metavar="N", help="keep what jobs used for N days (%(default)s)")
    parser.add_argument(
        "--dry-run", action="store_true", help="change nothing: say which jobs have ended and which nodes would be asked"
    )
    parser.add_argument("--no-comment", action="store_true", help="keep the records, and write no AdminComment")
    parser.add_argument(
        "--running",
        nargs="?",
        const=RUNNING,
        default="",
        metavar="DIR",
        help=f"pull the newest records of running GPU jobs into DIR ({RUNNING}), and do nothing else",
    )
    parser.add_argument("--backup", metavar="DIR", default="", help="write a copy of all stores to DIR, and do nothing else")
    parser.add_argument(
        "--restore", metavar="DIR", default="", help="put the copy in DIR in the place of the stores, and do nothing else"
    )
    parser.add_argument(
        "--erase-user", type=int, metavar="UID", help="remove all that the stores have of a user, and do nothing else"
    )
    parser.add_argument(
        "--idle-state", metavar="DIR", default=IDLE, help="the journal of `fairlead idle`, for these three (%(default)s)"
    )
    parser.add_argument(
        "--events-state", metavar="DIR", default=EVENTS, help="the queue of `fairlead events`, for these three (%(default)s)"
    )
    parser.add_argument(
        "--units", metavar="DIR", default="", help="write the controller's systemd units to DIR, and do nothing else"
    )
    parser.add_argument(
        "--renamed-cluster", action="store_true", help="the store is of this cluster, which had another ClusterName before"
    )
    parser.add_argument("--ssh", default="ssh", metavar="PROGRAM", help="the program to call in place of ssh")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="wait so long for all nodes together")
    parser.add_argument(
        "--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it"
    )
    add_bin_dir(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.days < 1:
        raise UsageError("--days: the shortest time is a day")
    if args.units:
        return _write_units(args.units, dry_run=args.dry_run)
    if args.folder:
        return _from_folder(args)
    if args.running:
        return _running(args)
    tasks = [bool(args.backup), bool(args.restore), args.erase_user is not None]
    if sum(tasks) > 1:
        raise UsageError("--backup, --restore and --erase-user: name one of them")
    if any(tasks):
        return _erase(args) if args.erase_user is not None else _copies(args)
    return _dry_run(args) if args.dry_run else _round(args)


def say(text: str) -> None:
    print(f"fairlead collect: {one_line(text, 600)}", file=sys.stderr, flush=True)


def _round(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller import controller_release
    from fairlead.controller.collection import Collection
    from fairlead.controller.job_store import JobStore
    from fairlead.controller.store_file import refuse_other_cluster
    from fairlead.slurm.scontrol import Scontrol

    site = _site(args)
    source = _source(args, site)
    cluster = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir).cluster()
    with JobStore(args.store, write=True) as store:
        if not args.renamed_cluster:
            hint = "name a folder for each cluster (--store DIR); if the cluster was renamed: --renamed-cluster"
            refuse_other_cluster(store.path, store.kept("cluster"), cluster, hint)
        if cluster:
            store.keep("cluster", cluster)
        controller_release.write_note(args.store)
        collection = Collection(
            store, _accounting(args), source, say=say, nodes=_nodes(site), days=args.days, write=not args.no_comment
        )
        done = collection.round()
    fleet = _fleet_round(args, site)
    if args.json:
        print_json({**msgspec.to_builtins(done), "fleet": msgspec.to_builtins(fleet)})
    else:
        print(
            f"{done.found} jobs have ended; {done.asked} asked for, {done.complete} complete; {done.records} records,"
            f" {done.set_aside} set aside; AdminComment: {done.written} written, {done.foreign} of others left"
        )
        print(
            f"{fleet.nodes} nodes; {fleet.asked} asked for their service records, {fleet.changed} changed; {fleet.events} events"
        )
    return ExitCode.OK


def _source(args: argparse.Namespace, site: Site | None) -> NodeRecords:
    from fairlead.provision.record_ssh import SshRecords

    ansible = site.ansible if site is not None else AnsibleOptions(user="")
    return SshRecords(ansible, program=args.ssh, seconds=args.timeout)


def _running(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.running_jobs import running_jobs
    from fairlead.controller.running_pull import pull_running
    from fairlead.model.nodelist import fold
    from fairlead.slurm.scontrol import Scontrol

    site = _site(args)
    jobs = running_jobs(Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=30.0))
    if args.dry_run:
        nodes = {node for job in jobs for node in job.nodes} & (_nodes(site) or {node for job in jobs for node in job.nodes})
        print(f"{len(jobs)} running jobs with GPUs; would ask {fold(nodes) or 'no node'}; nothing was asked or written")
        return ExitCode.OK
    done = pull_running(args.running, jobs, _source(args, site), _nodes(site))
    if args.json:
        print_json(msgspec.to_builtins(done))
        return ExitCode.OK
    print(
        f"{done.jobs} running jobs with GPUs on {done.nodes} nodes; {done.records} records; {done.removed} of ended jobs removed"
    )
    of_why: dict[str, list[str]] = {}
    for node, why in done.without.items():
        of_why.setdefault(why, []).append(node)
    for why, names in list(of_why.items())[:20]:
        say(f"{fold(names)}: {why}")
    return ExitCode.OK


def _fleet_round(args: argparse.Namespace, site: Site | None) -> FleetRound:
    """Collect what nodes and Slurm say of the nodes' time in service, for `fairlead report`."""
    from fairlead.controller.fleet_collection import FleetCollection
    from fairlead.controller.fleet_store import FleetStore
    from fairlead.provision.service_record_ssh import SshServiceRecords
    from fairlead.slurm.scontrol import Scontrol

    ansible = site.ansible if site is not None else AnsibleOptions(user="")
    source = SshServiceRecords(ansible, program=args.ssh, seconds=args.timeout)
    client = Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=60.0)
    with FleetStore(args.store, write=True) as store:
        if (cluster := client.cluster()) and cluster != (before := store.kept("cluster")):
            store.keep({"cluster": cluster, "cluster_before": before or ""})
        return FleetCollection(store, client, source, say=say, nodes=_nodes(site), days=args.days).round()


def _dry_run(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.job_store import JobStore
    from fairlead.model.nodelist import fold

    nodes, mistakes = _nodes(_site(args)), list[str]()
    now = int(time.time())
    cursor = now - 86400
    if os.path.exists(os.path.join(args.store, "jobs.sqlite")):
        with JobStore(args.store, write=False) as store:
            cursor = int(store.kept("cursor") or cursor)
    runs = [r for r in _accounting(args).ended(cursor - 600, now, mistakes) if nodes is None or not nodes.isdisjoint(r.nodes)]
    for mistake in mistakes[:20]:
        say(mistake)
    if args.json:
        print_json(WouldCollect(runs=list(runs)))
        return ExitCode.OK
    for run in runs:
        print(f"job {run.label}  {run.state}  {run.gpus} GPUs  would ask {fold(run.nodes)}")
    print(f"{len(runs)} jobs have ended in {now - cursor + 600} s; nothing was asked or written")
    return ExitCode.OK


def _from_folder(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.records_folder import read_folder, reports_of
    from fairlead.jobs.jobstats_payload import payload

    reports, troubles = reports_of(read_folder(args.folder), time.time())
    if args.json:
        print_json({"jobs": [as_data(report) for report in reports], "troubles": troubles})
    else:
        for report in reports:
            print(f"{report.run.label} {payload(report) if report.records else '-'}")
        for trouble in troubles:
            say(trouble)
    return ExitCode.BAD_DATA if troubles else ExitCode.OK


def as_data(report: Any) -> dict[str, Any]:
    """Return a report with the text for AdminComment, as --json has it. A job without any record has no such text."""
    from fairlead.jobs.jobstats_payload import payload

    percent = report.coverage_percent
    data = {**msgspec.to_builtins(report), "complete": report.complete, "unnamed_gpus": report.unnamed_gpus}
    return {
        **data,
        **({"coverage_percent": percent} if percent is not None else {}),
        **({"admin_comment": payload(report)} if report.records else {}),
    }


def _write_units(folder: str, *, dry_run: bool) -> ExitCode:
    from fairlead import assets
    from fairlead.host.atomic_file import write_file

    slurm = assets.directory("slurm")
    examples = [path for folder in ("idle", "events") for path in sorted((slurm / folder).glob("fairlead-*"))]
    for source in (*sorted((slurm / "controller").iterdir()), *examples):
        path = os.path.join(folder, source.name)
        try:
            if not dry_run:
                write_file(path, source.read_bytes())
        except OSError as e:
            raise HostError(f"{path}: {e.strerror}", hint=next_step(e)) from None
        print(path)
    return ExitCode.OK


def _erase(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller.all_stores import erase_user, runs_of

    uid = args.erase_user
    if args.dry_run:
        print(f"{runs_of(args.store, uid, time.time())} jobs of user {uid} would be removed")
        return ExitCode.OK
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        name = ""
    done = erase_user(_folders(args), uid, time.time(), name)
    print(
        f"{done.runs} jobs of user {uid} were removed from {args.store}; the user was taken out of {done.rows} rows of the"
        f" history of the fleet, {done.lines} lines of the journal of idle jobs and {done.events} events; copies and AdminComment"
        " still have them"
    )
    if not done.named:
        say(f"no name of user {uid} is known here: a name in the history of the fleet or in the journal would not be found")
    return ExitCode.OK


def _folders(args: argparse.Namespace) -> Folders:
    from fairlead.controller.all_stores import Folders

    return Folders(store=args.store, idle=args.idle_state, events=args.events_state)


def _copies(args: argparse.Namespace) -> ExitCode:
    from fairlead.controller import all_stores

    if args.dry_run:
        print(f"would {'restore the copy in' if args.restore else 'write a copy to'} {args.backup or args.restore}")
        return ExitCode.OK
    if args.backup:
        done = all_stores.back_up(_folders(args), args.backup)
        for name in done.done:
            print(os.path.join(args.backup, name))
    else:
        done = all_stores.restore(_folders(args), args.restore)
        print(f"{args.store} has what {args.restore} had: {', '.join(done.done)}")
    if done.absent:
        say(f"not in the copy, because it is not there: {', '.join(done.absent)}")
    for name in done.left:
        say(f"{name} stays as it is: it is whole, and it knows what was sent since the copy was made")
    for error in done.errors:
        say(f"not in the copy: {error}")
    return done.errors[0].exit_code if done.errors else ExitCode.OK


def _accounting(args: argparse.Namespace) -> Any:
    from fairlead.controller.accounting import Accounting
    from fairlead.slurm.scontrol import Scontrol

    return Accounting(Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir, deadline_seconds=60.0))


def _site(args: argparse.Namespace) -> Site | None:
    if args.site and not os.path.exists(args.site):
        raise InputMissing(f"{args.site}: there is no such file")
    return config.load_site(args.site or SITE) if args.site or os.path.exists(SITE) else None


def _nodes(site: Site | None) -> frozenset[str] | None:
    """Return the nodes that have an agent, or None if that is not declared."""
    return site.nodes_with_agent() if site is not None else None


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended, list_of
    from fairlead.controller.collection import Round
    from fairlead.controller.fleet_collection import FleetRound
    from fairlead.controller.running_pull import RunningPull
    from fairlead.jobs.usage_merge import JobReport

    absent = {"coverage_percent": float | msgspec.UnsetType, "admin_comment": str | msgspec.UnsetType}
    job = extended("CollectedJob", JobReport, {"complete": bool, "unnamed_gpus": int, **absent})

    return {
        "": extended("CollectedRound", Round, {"fleet": FleetRound}),
        "--running": RunningPull,
        "--dry-run": WouldCollect,
        "--from": extended(
            "CollectedFolder",
            msgspec.Struct,
            {"jobs": list_of(job), "troubles": list[str]},
            doc="The jobs of a folder, and what was wrong with its records.",
        ),
    }
