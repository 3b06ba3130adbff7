"""Maintain nodes in batches: drain them in Slurm, wait for their jobs, apply, reboot, verify, resume.

Each node is drained with a reason of fairlead. No job is cancelled, because the run waits until the node's jobs have ended. Then
the node is made what the site declares and, with --reboot, rebooted. Before the node is resumed, it is verified: it is the same
machine, slurmd has registered, the agent's verdict is good, and `fairlead apply` has nothing to do. A node that anybody else has
drained is not touched. A node that fails stays drained, with a reason that says why. Without --reboot, the report names the
changes that wait for a reboot. Each step is written to a journal before it is made. --resume continues a run that was killed.
--abort ends a run: it lifts the drain of nodes that still wait, and verifies the nodes in progress.

Run the command where Slurm's commands work and root can reach the nodes by ssh. After Ctrl-C, the run begins no other node and
finishes the nodes in progress. After a second Ctrl-C, the command ends at once.
Exit codes: 0 all nodes are done and in service; 69 a node failed, or the journal cannot be written; 75 a node was not done, is
not in service or waits for a reboot, or slurmctld does not answer; 65 the journal is lost or damaged; 64, 66, 78 nothing was
touched; 130 a second Ctrl-C ended the command.
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
from typing import TYPE_CHECKING, Any, TypedDict

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
from fairlead.cli.slurm_options import add_bin_dir
from fairlead.cli.time_options import local, span, window
from fairlead.cli.upgrade_order import refuse_nodes_first
from fairlead.errors import DataError, ExitCode, HostError, InputMissing, SlurmError, UsageError
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan

if TYPE_CHECKING:
    from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
    from fairlead.provision.maintain.maintenance_loop import Maintenance
    from fairlead.provision.maintain.maintenance_plan import MaintenanceRequest

SITE = "/etc/fairlead/site.toml"
JOURNAL = "/var/lib/fairlead/maintain.db"
#: CHANGES: the options that a new run and --resume accept. NEW_ONLY: the options that only a new run accepts. Both have the name
#: of the parsed argument and the option on the command line.
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


class ForgottenDrains(TypedDict):
    """Drains of ended runs that slurmctld had restored and that were lifted again, one line each."""

    schema: int
    run: str
    forgotten: list[str]


class ListedRun(TypedDict):
    """A run of the journal. ended: 0 for an unfinished run."""

    run: str
    state: str
    began: float
    ended: float
    who: str
    plan: MaintenancePlan


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("nodelist", nargs="?", default="", help="the nodes to maintain: gpu[001-064]")
    add("--reason", metavar="TEXT", default="", help="why, for `sinfo -R`")
    add("--batch", default="", metavar="N|P%", help="work on so many nodes at once (1); P%% is a percentage of the nodelist")
    add("--max-failed", type=int, metavar="K", help="begin no other node once K have failed (1)")
    add("--floor", action="append", default=[], metavar="PARTITION=N|P%", help="keep so many nodes of this partition usable")
    add("--reboot", action="store_true", help="reboot each node after the apply")
    add(
        "--window",
        default="",
        metavar="[BEGIN/]END",
        help="begin no node before BEGIN, and none that would not be done by END: 2h, 2026-11-22T22:00/8h",
    )
    add(
        "--max-wait",
        default="",
        metavar="SPAN",
        help="give up a node whose jobs still run after so long: 90m, 2d (default: wait for ever)",
    )
    add("--reboot-wait", default="", metavar="SPAN", help="a node that is not back after so long has failed (30m)")
    add("--verify-wait", default="", metavar="SPAN", help="a node that is not verified after so long has failed (5m)")
    add(
        "--take-over",
        action="store_true",
        help="also take nodes that another run has left drained: a run of a lost journal, or an ended run of another admin host",
    )
    add("--site", metavar="FILE", default="", help=f"the site's declaration ({SITE}; with --resume and --abort, the run's own)")
    add("-n", "--dry-run", action="store_true", help="show what would be done and changed, and change nothing")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run that was killed or stopped (the newest); new limits replace the run's",
    )
    what.add_argument(
        "--abort",
        nargs="?",
        const="",
        metavar="RUN",
        help="end a run: lift the drain of nodes that wait, verify nodes in progress",
    )
    what.add_argument("--list", action="store_true", help="list the runs in the journal")
    what.add_argument("--show", nargs="?", const="", metavar="RUN", help="show a run's nodes and their steps (the newest run)")
    add("--journal", default=JOURNAL, metavar="FILE", help=f"the journal ({JOURNAL})")
    add("--wheel", metavar="FILE", default="", help="as in `fairlead provision`")
    add("--wheelhouse", default="", metavar="DIR", help="as in `fairlead provision`")
    add("--nodes-first", action="store_true", help="as in `fairlead provision`")
    add("--ssh", default="ssh", metavar="PROGRAM", help="the program to call in place of ssh")
    add("--slurm-conf", default="", metavar="FILE", help="the slurm.conf to use, where Slurm's commands do not find it")
    add_bin_dir(parser)
    add("--json", action="store_true", help="print the report as JSON")
    add("-q", "--quiet", action="store_true", help="print nothing while it runs")


def run(args: argparse.Namespace) -> ExitCode:
    old = next((word for word in ("resume", "abort", "show") if getattr(args, word) is not None), "list" if args.list else "")
    if bool(args.nodelist) == bool(old):
        raise UsageError("give a nodelist, or one of --resume, --abort, --list, --show")
    changed = [name for key, name in CHANGES.items() if getattr(args, key) not in ("", None, [])]
    if old and (wrong := [name for key, name in NEW_ONLY.items() if getattr(args, key)]):
        raise UsageError(f"{', '.join(wrong)}: only a new run takes this; --show says where an old one is")
    if changed and old not in ("", "resume"):
        raise UsageError(f"{', '.join(changed)}: only a new run and --resume take this")
    try:
        if args.list:
            return _list(args)
        if args.show is not None:
            return _show(args, args.show)
        return _go_on(args, args.resume if args.abort is None else args.abort) if old else _new(args)
    except DataError:  # the journal is lost or damaged, so first print the drained nodes that it no longer names
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
    if not args.nodes_first:
        refuse_nodes_first()
    journal = journal_of(args)
    who = f"{getpass.getuser()}@{socket.gethostname()}"
    for one in returned_drains(journal, controller, listing):
        if one.work.slurm not in {w.slurm for w in prepared.works}:  # the new run takes over the drains of its own nodes
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
    """Return the limits that the command line sets. The keys are field names of MaintenanceRequest."""
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
    journal_of(args, write=False).close()  # raises InputMissing if there is no journal
    journal = Journal(args.journal)
    try:
        found = journal.run(name)
        if found.ended:
            hint = f"fairlead maintain --show {found.id}"
            raise UsageError(f"run {found.id} has {found.state}: there is nothing to go on with", hint=hint)
    except (InputMissing, UsageError):
        if args.abort is not None or not _lifted_again(args, journal, name):
            raise
        return ExitCode.OK
    if changed:
        plan = replanned(found.plan, changed, len(found.works), lambda: controller_of(args).listing().availability)
        found = journal.replan(found, plan)
    listing = listed(controller_of(args), "it is not known which nodes other maintenance runs have drained")
    if listing is not None:
        name_unknown_drains(journal, listing, args.journal)
    return _drive(args, journal, found)


def _lifted_again(args: argparse.Namespace, journal: Journal, name: str) -> bool:
    """Lift the drains of an ended run that slurmctld has restored. Return whether there were any.

    ``name``: the run, or "" for all ended runs.
    """
    from fairlead.provision.maintain.returned_drains import lift, returned_drains

    controller = controller_of(args)
    try:
        found = returned_drains(journal, controller, controller.listing(), run=name)
    except SlurmError as e:
        say(f"{e}: it is not known whether slurmctld has restored a drain of a run that has ended")
        return False
    said = lift(controller, found)
    if args.json:
        print_json(ForgottenDrains(schema=1, run=name, forgotten=said))
    elif said:
        print("\n".join(said))
    return bool(said)


def _drive(args: argparse.Namespace, journal: Journal, found: MaintenanceRun) -> ExitCode:
    """Carry out a run until it ends or is interrupted, print the report, and return the exit code."""
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
            window_asked=bool(args.window),
        )
        shown.say(f"run {found.id}: {len(found.works)} nodes: {found.plan.reason}")
        ended = False
        try:
            with _stopping(maintenance):
                ended = maintenance.drive()
        except KeyboardInterrupt:
            pass  # a person pressed Ctrl-C again
        except (HostError, DataError) as e:  # the journal failed, but it has every step that was made
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
    """End this process at once, even if a thread still waits. First print how to continue the run."""
    say(f"the run is unfinished; go on with --resume {run}, or --abort {run}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


@contextmanager
def _stopping(maintenance: Maintenance) -> Iterator[None]:
    """Handle SIGINT and SIGTERM while the body runs.

    After the first signal, the run begins nothing new. After the second signal, the run stops, and its state is in the journal.
    For these two signals, the handler only sets flags and the maintenance loop acts, because a handler may interrupt a write to
    the terminal. A third signal does not wait for the loop.
    """

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
    listing = listed(controller_of(args), "it is not known which nodes other maintenance runs have drained")
    if listing is not None:
        name_unknown_drains(journal, listing, args.journal)
    if args.json:
        print_json([ListedRun(run=r.id, state=r.state, began=r.began, ended=r.ended, who=r.who, plan=r.plan) for r in runs])
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


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended
    from fairlead.cli.maintain_dry_run import MaintenanceOutlook
    from fairlead.provision.maintain.maintenance_journal import JournalStep
    from fairlead.provision.maintain.maintenance_report import MaintenanceReport

    return {
        "": MaintenanceReport,
        "--dry-run": MaintenanceOutlook,
        "--list": list[ListedRun],
        "--show": extended(
            "ShownRun",
            MaintenanceReport,
            {"plan": MaintenancePlan, "who": str, "site": str, "steps": list[JournalStep]},
            doc="A run and its steps.",
        ),
        "--resume, where drains had come back": ForgottenDrains,
    }
