"""Prints what `fairlead maintain --dry-run` finds: what Slurm lets the run do now, and what the apply would change."""

from __future__ import annotations

import argparse
import os
from typing import TypedDict

from fairlead.cli.output import print_json
from fairlead.config import Site
from fairlead.errors import ExitCode
from fairlead.provision.maintain.controller import Controller
from fairlead.provision.maintain.maintenance_journal import Journal
from fairlead.provision.maintain.maintenance_plan import Prepared
from fairlead.provision.maintain.maintenance_plan import outlook as lines_of
from fairlead.provision.maintain.maintenance_steps import MaintenancePlan
from fairlead.provision.provision_report import ProvisionReport, text
from fairlead.provision.provision_run import ProvisionOptions
from fairlead.provision.provision_run import run as provision


class MaintenanceOutlook(TypedDict):
    """What a run would do. limits: in words, what it would wait for. apply: what it would change on the nodes."""

    schema: int
    dry_run: bool
    plan: MaintenancePlan
    limits: list[str]
    apply: ProvisionReport


def outlook(args: argparse.Namespace, site: Site, prepared: Prepared, controller: Controller) -> ExitCode:
    """Print what a run would do, and return the exit code. Nothing is changed, in Slurm, on the nodes, or in the journal."""
    left = {}
    if os.path.exists(args.journal):
        left = Journal(args.journal, write=False).earlier_reasons(w.slurm for w in prepared.works)
    lines = lines_of(prepared, controller, controller.listing(), left)
    options = {"quiet": args.quiet, "wheel": args.wheel, "wheelhouse": args.wheelhouse}
    would = provision(site, ProvisionOptions(nodelist=args.nodelist, check=True, drained=True, **options))
    if args.json:
        print_json(MaintenanceOutlook(schema=1, dry_run=True, plan=prepared.plan, limits=list(lines), apply=would))
    else:
        print("\n".join(lines))
        print(text(would))
    return ExitCode.OK
