"""Make one folder with everything that a site without internet access needs: wheels, playbooks, the lock and its packages.

`fairlead provision --bundle DIR` then takes everything from this folder. The same inputs give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path
from typing import TypedDict

from fairlead import config
from fairlead.cli.lock import say
from fairlead.cli.output import print_json
from fairlead.config.driver_lock_file import load_lock, path_beside
from fairlead.errors import ExitCode, UsageError
from fairlead.provision.offline_bundle import BundleEntry


class BundleOutlook(TypedDict):
    """What the folder would hold."""

    schema: int
    files: list[BundleEntry]


class MadeBundle(TypedDict):
    """The folder that was made, and its files."""

    schema: int
    folder: str
    files: list[str]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--site",
        metavar="FILE",
        default="/etc/fairlead/site.toml",
        help="the site's declaration (default %(default)s); fairlead.lock lies beside it",
    )
    parser.add_argument("--output", default="", metavar="DIR", help="the folder to make")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="X.Y",
        help="a Python version of the nodes; may be repeated (default: 3.11)",
    )
    parser.add_argument("--machine", metavar="ARCH", default=platform.machine(), help="the nodes' architecture")
    parser.add_argument("--packages", default="", metavar="DIR", help="a folder that may already hold the package files")
    parser.add_argument("--no-admin", action="store_true", help="leave out the wheels for the admin host")
    parser.add_argument("-n", "--dry-run", action="store_true", help="list what the folder would hold")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.provision import offline_bundle

    site = config.load_site(args.site)
    path = path_beside(site.file)
    lock = load_lock(path) if os.path.exists(path) else None
    pythons = tuple(dict.fromkeys(args.python)) or ("3.11",)
    for python in pythons:
        if python.count(".") != 1 or not python.replace(".", "").isdecimal():
            raise UsageError(f"--python {python}: a version such as 3.11")
    if args.dry_run:
        entries = offline_bundle.entries(pythons, lock, admin=not args.no_admin)
        if args.json:
            print_json(BundleOutlook(schema=1, files=entries))
        else:
            for entry in entries:
                print(f"{entry.path}  {entry.size_bytes or '-'}  {entry.source}")
        return ExitCode.OK
    if not args.output:
        raise UsageError("--output is needed", hint="name the folder to make; --dry-run only lists its files")
    made = offline_bundle.make(
        Path(args.output),
        pythons=pythons,
        machine=args.machine,
        lock=lock,
        admin=not args.no_admin,
        packages=args.packages,
        say=say,
    )
    if args.json:
        print_json(MadeBundle(schema=1, folder=args.output, files=list(made)))
    else:
        size = sum((Path(args.output) / name).stat().st_size for name in made)
        print(f"{args.output}: {len(made)} files, {size >> 20} MiB; use it with `fairlead provision --bundle {args.output}`")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": MadeBundle, "--dry-run": BundleOutlook}
