"""Compares slurmctld with the maintenance journal. Reports the present state of a run's nodes, and drains that the journal does
not know."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import TYPE_CHECKING

from fairlead.errors import InputMissing, SlurmError, SlurmUnavailable

if TYPE_CHECKING:
    from fairlead.provision.maintain.controller import Controller, Listing
    from fairlead.provision.maintain.maintenance_journal import Journal, MaintenanceRun
    from fairlead.provision.maintain.maintenance_report import MaintenanceReport

TRIES = 3


def say(text: str) -> None:
    print(f"fairlead maintain: {text}", file=sys.stderr)


def controller_of(args: argparse.Namespace) -> Controller:
    from fairlead.provision.maintain.controller import Controller
    from fairlead.slurm.scontrol import Scontrol

    return Controller(Scontrol(conf=args.slurm_conf, bin_dir=args.bin_dir))


def journal_of(args: argparse.Namespace, *, write: bool = True) -> Journal:
    """Return the journal. If there is none, print the nodes that a maintenance run has left drained, and raise InputMissing."""
    from fairlead.provision.maintain.maintenance_journal import Journal

    try:
        return Journal(args.journal, write=write)
    except InputMissing:
        name_drained_nodes(args)
        raise


def name_drained_nodes(args: argparse.Namespace) -> None:
    """Print all nodes that a maintenance run has drained. Used if there is no journal that names the run."""
    listing = listed(controller_of(args), "it is not known whether a maintenance run has drained nodes")
    if listing is not None:
        name_unknown_drains(None, listing, args.journal)


def listed(controller: Controller, unknown: str, *, tries: int = 1) -> Listing | None:
    """Return the state of all nodes in slurmctld. If slurmctld does not answer, print ``unknown`` and return None.

    ``unknown``: the text that says what is not known without slurmctld's answer.
    """
    for tries_left in range(tries - 1, -1, -1):
        try:
            return controller.listing()
        except SlurmError as e:
            if not tries_left or not isinstance(e, SlurmUnavailable):
                say(f"{e}: {unknown}")
                return None
            time.sleep(1)
    return None


def name_unknown_drains(journal: Journal | None, listing: Listing, path: str) -> None:
    """Print the nodes that are drained by a maintenance run which this journal does not know, and what to do about them."""
    from fairlead.provision.inventory import fold
    from fairlead.provision.maintain.returned_drains import unknown_drains

    found = unknown_drains(journal, listing)
    if not found:
        return
    for name, reason in sorted(found.items()):
        say(f"{name} is drained by a maintenance run that {path} does not know: {reason}")
    nodes = fold(list(found))
    quoted = shlex.quote(nodes) if "'" in nodes else f"'{nodes}'"
    say(
        f"if that run is on another admin host, `fairlead maintain --list` there shows it. If no host has it: "
        f"`fairlead maintain {quoted} --take-over --reason TEXT` applies, verifies and resumes {nodes}"
    )


def report_now(args: argparse.Namespace, run: MaintenanceRun, *, tries: int = 1) -> MaintenanceReport:
    """Return the report of a run with slurmctld's present state of each node."""
    from fairlead.provision.maintain.maintenance_report import report

    controller = controller_of(args)
    listing = listed(controller, "the report shows the nodes as the journal has them, not as they are now", tries=tries)
    if listing is None:
        return report(run)
    return report(run, {w.node: now for w in run.works if (now := controller.service_of(w, listing)) is not None})
