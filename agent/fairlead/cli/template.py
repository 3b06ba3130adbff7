"""Print a job script that goes on after preemption, the time limit and a node failure.

fairlead template --list                       the templates, one a line
fairlead template sbatch requeue > job.sh      print one

Each of them was run on Slurm 22.05, 24.11 and 26.05 with a program that saves and goes on from its last save. The first lines of
the script say what your program has to do.
"""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from fairlead.assets import sbatch_template, sbatch_template_names
from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, UsageError


class ListedTemplate(TypedDict):
    """A template of a job script. kind: sbatch."""

    kind: str
    name: str
    summary: str


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", default="", choices=["", "sbatch"], metavar="sbatch", help="a script for sbatch")
    parser.add_argument("name", nargs="?", default="", metavar="NAME", help="which one, see --list")
    parser.add_argument("--list", action="store_true", help="list the templates")
    parser.add_argument("--json", action="store_true", help="with --list: print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.list:
        found = {name: sbatch_template(name).split("\n")[1].removeprefix("# ") for name in sbatch_template_names()}
        if args.json:
            print_json([ListedTemplate(kind="sbatch", name=name, summary=summary) for name, summary in found.items()])
        else:
            print(columns([("sbatch", name, summary) for name, summary in found.items()]))
        return ExitCode.OK
    if not args.kind or not args.name:
        raise UsageError("name a template: fairlead template sbatch NAME", hint="fairlead template --list shows the names")
    sys.stdout.write(sbatch_template(args.name))
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"--list": list[ListedTemplate]}
