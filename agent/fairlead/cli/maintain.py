"""Maintenance that Slurm knows about: drain, wait for the jobs, apply, reboot, verify, resume, in batches.

Each node is drained with a reason of fairlead's, waited for (no job is cancelled), made what the site declares, rebooted with
--reboot, verified (the same machine, slurmd registered, the agent's verdict, `fairlead apply` has nothing to do), and resumed.
A node that anybody else has drained is not touched, and a node that fails stays drained with a reason that says why. Without
--reboot what waits for one is reported. Every step is in a journal first: a run that was killed goes on with --resume, and
--abort brings every node of it into a condition that can be left alone.

Run it where Slurm's commands work and root's ssh reaches the nodes. Ctrl-C begins no other node and finishes those in work;
a second one leaves at once. Exit codes: 0 all done and in service; 69 a node failed, or the journal cannot be written;
75 a node was not done, is not in service or waits for a reboot, or slurmctld does not answer; 65 the journal is lost or
damaged; 64, 66, 78 nothing was touched; 130 left by a second Ctrl-C.
"""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fairlead import config
from fairlead.cli.maintain_slurm import (
    TRIES,
    controller_of,
    journal_of,
    listed,
    name_drained_nodes,
    name_unknown_drains,
    report_now,
    say,
)
from fairlead.cli.output import columns, print_json
from fairlead.cli.time_options import local, span, window
from fairlead.errors import DataError, ExitCode, HostError, InputMissing, SlurmError, UsageError

if TYPE_CHECKING:
    from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
    from fairlead.provision.maintain.maintenance_loop import Maintenance
    from fairlead.provision.maintain.maintenance_plan import MaintenanceRequest

SITE = "/etc/fairlead/site.toml"
JOURNAL = "/var/lib/fairlead/maintain.db"
#: What --resume may change of a run, and what belongs to a new run alone: option and its name in the command line.
CHANGES = {
    "batch": "--batch",
    "max_failed": "--max-failed",
    "floor": "--floor",
    "window": "--window",
    "max_wait": "--max-wait",
    "reboot_wait": "--reboot-wait",
    "verify_wait": "--verify-wait",
}
NEW_ONLY = {"reason": "--reason", "reboot": "--reboot", "take_over": "--take-over", "dry_run": "--dry-run"}


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodelist", nargs="?", default="", help="these nodes: gpu[001-064]")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why, for `sinfo -R`")
    parser.add_argument("--batch", default="", metavar="N|P%", help="so many nodes in work at once (1); P%% of the nodelist")
    parser.add_argument("--max-failed", type=int, metavar="K", help="begin no other node once K have failed (1)")
    parser.add_argument("--floor", action="append", default=[], metavar="PARTITION=N|P%", help="so many nodes of it stay usable")
    parser.add_argument("--reboot", action="store_true", help="reboot each node after the apply")
    parser.add_argument(
        "--window",
        default="",
        metavar="[BEGIN/]END",
        help="begin no node before it, and none that would not be done by its end: 2h, 2026-11-22T22:00/8h",
    )
    parser.add_argument(
        "--max-wait", default="", metavar="SPAN", help="give a node back that is busy for so long: 90m, 2d (never)"
    )
    parser.add_argument("--reboot-wait", default="", metavar="SPAN", help="a node that is not back by then has failed (30m)")
    parser.add_argument("--verify-wait", default="", metavar="SPAN", help="a node that is not well by then has failed (5m)")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="also nodes that a maintenance run of a lost journal, or of another admin host that has ended, has left drained",
    )
    parser.add_argument(
        "--site", metavar="FILE", default="", help=f"the site's declaration ({SITE}; of --resume and --abort, the run's own)"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="show what would be done and changed, change nothing")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run that was killed or stopped (the newest); limits that are given replace the run's",
    )
    what.add_argument("--abort", nargs="?", const="", metavar="RUN", help="end a run: lift what waits, verify what is in work")
    what.add_argument("--list", action="store_true", help="the runs in the journal")
    what.add_argument("--show", nargs="?", const="", metavar="RUN", help="a run's nodes and their steps (the newest)")
    parser.add_argument("--journal", default=JOURNAL, metavar="FILE", help=f"the journal ({JOURNAL})")
    parser.add_argument("--wheel", metavar="FILE", default="", help="as in `fairlead provision`")
    parser.add_argument("--wheelhouse", default="", metavar="DIR", help="as in `fairlead provision`")
    parser.add_argument("--ssh", default="ssh", metavar="PROGRAM", help="the program that is called as ssh would be")
    parser.add_argument("--slurm-conf", default="", metavar="FILE", help="slurm.conf, where Slurm's commands do not find it")
    parser.add_argument("--bin-dir", metavar="DIR", default="/usr/bin", help="where scontrol, sinfo and squeue are")
    parser.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing while it runs")


def run(args: argparse.Namespace) -> ExitCode:
    old = next((word for word in ("resume", "abort", "show") if getattr(args, word) is not None), "list" if args.list else "")
    if bool(args.nodelist) == bool(old):
        raise UsageError("give a nodelist, or one of --resume, --abort, --list, --show")
    changed = [name for key, name in CHANGES.items() if getattr(args, key) not in ("", None, [])]
    if old and (wrong := [name for key, name in NEW_ONLY.items() if getattr(args, key)]):
        raise UsageError(f"{', '.join(wrong)}: for a new run only; --show says where an old one is")
    if changed and old not in ("", "resume"):
        raise UsageError(f"{', '.join(changed)}: for a run that begins nodes: a new one, or --resume")
    try:
        if args.list:
            return _list(args)
        if args.show is not None:
            return _show(args, args.show)
        return _go_on(args, args.resume if args.abort is None else args.abort) if old else _new(args)
    except DataError:  # the journal is lost or damaged: the drains that it hides are named first
        name_drained_nodes(args)
        raise


def _new(args: argparse.Namespace) -> ExitCode:
    from fairlead.provision.maintain.maintenance_plan import prepare
    from fairlead.provision.maintain.returned_drains import returned_drains

    site = config.load_site(args.site or SITE)
    controller = controller_of(args)
    listing = controller.listing()
    prepared = prepare(site, _asked(args), listing)
    if args.dry_run:
        from fairlead.cli.maintain_dry_run import outlook

        return outlook(args, site, prepared, controller)
    journal = journal_of(args)
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    for one in returned_drains(journal, controller, listing):
        if one.work.slurm not in {w.slurm for w in prepared.works}:  # those are taken up
            say(one.line)
    if not args.take_over:
        name_unknown_drains(journal, listing, args.journal)
    begun = journal.begin(prepared.plan, prepared.works, site=os.path.abspath(site.file), who=who)
    return _drive(args, journal, begun)


def _asked(args: argparse.Namespace) -> MaintenanceRequest:
    from fairlead.provision.maintain.maintenance_plan import MaintenanceRequest

    return MaintenanceRequest(
        nodelist=args.nodelist, reason=args.reason, reboot=args.reboot, take_over=args.take_over, **_limits(args)
    )


def _limits(args: argparse.Namespace) -> dict[str, Any]:
    """The limits that were given, by their names in MaintenanceRequest."""
    found: dict[str, Any] = {}
    if args.batch:
        found["batch"] = args.batch
    if args.max_failed is not None:
        found["max_failed"] = args.max_failed
    if args.floor:
        found["floors"] = args.floor
    if args.window:
        found["opens"], found["window"] = window(args.window, "--window")
    spans = {"max_wait": "max_wait", "reboot_wait": "reboot_seconds", "verify_wait": "verify_seconds"}
    for option, name in spans.items():
        if text := getattr(args, option):
            found[name] = span(text, CHANGES[option])
    return found


def _go_on(args: argparse.Namespace, name: str) -> ExitCode:
    from fairlead.provision.maintain.maintenance_journal import Journal
    from fairlead.provision.maintain.maintenance_plan import replanned

    changed = _limits(args)
    journal_of(args, write=False).close()  # there has to be one
    journal = Journal(args.journal)
    try:
        found = journal.run(name)
        if found.ended:
            hint = f"fairlead maintain --show {found.id}"
            raise UsageError(f"run {found.id} has {found.state}: nothing to go on with", hint=hint)
    except (InputMissing, UsageError):
        if args.abort is not None or not _lifted_again(args, journal, name):
            raise
        return ExitCode.OK
    if changed:
        plan = replanned(found.plan, changed, len(found.works), lambda: controller_of(args).listing().availability)
        found = journal.replan(found, plan)
    listing = listed(controller_of(args), "which drains of other maintenance stand is not known")
    if listing is not None:
        name_unknown_drains(journal, listing, args.journal)
    return _drive(args, journal, found)


def _lifted_again(args: argparse.Namespace, journal: Journal, name: str) -> bool:
    """Lift drains of a run that has ended (of any, without a name) that slurmctld has brought back; whether there were any."""
    from fairlead.provision.maintain.returned_drains import lift, returned_drains

    controller = controller_of(args)
    try:
        found = returned_drains(journal, controller, controller.listing(), run=name)
    except SlurmError as e:
        say(f"{e}: it is not known whether a drain of a run that has ended stands again")
        return False
    said = lift(controller, found)
    if args.json:
        print_json({"schema": 1, "run": name, "forgotten": said})
    elif said:
        print("\n".join(said))
    return bool(said)


def _drive(args: argparse.Namespace, journal: Journal, found: MaintenanceRun) -> ExitCode:
    """Drive a run to its end, and report."""
    from fairlead.provision.inventory import fold, targets
    from fairlead.provision.maintain.maintenance_display import display, summary
    from fairlead.provision.maintain.maintenance_loop import Maintenance
    from fairlead.provision.maintain.maintenance_plan import budgets, by_name
    from fairlead.provision.maintain.maintenance_report import text, unended
    from fairlead.provision.maintain.node_access import SshNodeAccess
    from fairlead.provision.provision_run import ProvisionOptions

    site = config.load_site(args.site or found.site)
    chosen = targets(site, fold([w.node for w in found.works]))
    options = ProvisionOptions(wheel=args.wheel, wheelhouse=args.wheelhouse, lock=journal.ansible_lock(found.id))
    with display(quiet=args.quiet) as shown:
        maintenance = Maintenance(
            found,
            journal,
            controller_of(args),
            SshNodeAccess(site, by_name(chosen), program=args.ssh, options=options),
            budgets=budgets(chosen),
            shown=shown,
            aborting=args.abort is not None,
        )
        shown.say(f"run {found.id}: {len(found.works)} nodes: {found.plan.reason}")
        ended = False
        try:
            with _stopping(maintenance):
                ended = maintenance.drive()
        except KeyboardInterrupt:
            pass  # as asked for
        except (HostError, DataError) as e:  # the journal: nothing was done that it does not have
            raise type(e)(f"{e}; {summary(maintenance.works)}", hint=e.hint) from None
    if maintenance.leave_asked:
        _leave(found.id)
    said = report_now(args, journal.run(found.id), tries=TRIES)
    if args.json:
        print_json(said)
    else:
        print(text(said, maintenance.works))
    if not ended:
        say(unended(found.id, full=journal.full, closed=maintenance.closed))
    return said.exit_code


def _leave(run: str) -> None:
    """End at once, whatever a thread still waits for: as a kill would, but for the line that says how to go on."""
    say(f"left in the middle; go on with --resume {run}, or --abort {run}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@contextmanager
def _stopping(maintenance: Maintenance) -> Iterator[None]:
    """SIGINT and SIGTERM: once, nothing new is begun; twice, the run is left as the journal has it. The loop sees to both: this
    may be in the middle of its writing to the terminal. Three times, at once all the same."""

    def stop(number: int, frame: object) -> None:
        if maintenance.leave_asked:
            raise KeyboardInterrupt
        maintenance.stop_asked, maintenance.leave_asked = True, maintenance.stop_asked

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def _list(args: argparse.Namespace) -> ExitCode:
    journal = journal_of(args, write=False)
    runs = journal.runs()
    listing = listed(controller_of(args), "which drains of other maintenance stand is not known")
    if listing is not None:
        name_unknown_drains(journal, listing, args.journal)
    if args.json:
        print_json(
            [{"run": r.id, "state": r.state, "began": r.began, "ended": r.ended, "who": r.who, "plan": r.plan} for r in runs]
        )
        return ExitCode.OK
    rows = [(r.id, r.state if r.ended else "unfinished", local(r.began), r.who, r.plan.reason) for r in runs]
    print(columns(rows, ("RUN", "STATE", "BEGAN", "WHO", "REASON")))
    return ExitCode.OK


def _show(args: argparse.Namespace, name: str) -> ExitCode:
    import msgspec

    from fairlead.provision.maintain.maintenance_report import text

    journal = journal_of(args, write=False)
    found = journal.run(name or next((r.id for r in journal.runs()), ""))
    said = report_now(args, found)
    log = journal.log(found.id)
    if args.json:
        print_json({**msgspec.to_builtins(said), "plan": found.plan, "who": found.who, "site": found.site, "steps": log})
        return ExitCode.OK
    print(f"run {found.id} by {found.who}: {found.plan.reason}; {found.state if found.ended else 'unfinished'}")
    print(columns([(local(s.unix_seconds), s.node, s.step.replace("_", " "), s.detail) for s in log]))
    print(text(said, found.works))
    return ExitCode.OK
