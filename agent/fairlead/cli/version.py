"""Print the version."""

from __future__ import annotations

import argparse
import sys

from fairlead import __version__
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if args.json:
        from fairlead.config import SCHEMA

        print_json({"version": __version__, "document_schema": SCHEMA, "python": sys.version.split()[0]})
    else:
        print(f"fairlead {__version__}")
    return ExitCode.OK
