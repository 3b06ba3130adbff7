"""Write this machine, or a tree, as a machine tree: sys/ proc/ dev/ nvml.json README.md.

A machine tree serves as a bug report and as a test, because `fairlead check --root TREE` judges it on any machine. --redact
replaces serial numbers, UUIDs and hardware addresses.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TypedDict

from fairlead import judge, settings
from fairlead.cli import read_machine
from fairlead.cli.machine_tree import machine, recorded_nvml
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, UsageError
from fairlead.model.sysctl_files import proc_path

SLOW = "reading the machine"  # patience.py says it


class WrittenTree(TypedDict):
    """The machine tree that was written. files: how many it has."""

    tree: str
    files: int
    redacted: bool


def register(parser: argparse.ArgumentParser) -> None:
    read_machine.register(parser)
    parser.add_argument("target", help="a folder that does not exist yet")
    parser.add_argument("--redact", action="store_true", help="replace serials, UUIDs, MAC addresses and GUIDs")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.host.tree_snapshot import snapshot
    from fairlead.settings import sysctl

    target = Path(args.target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} exists already", hint="name a new folder")
    root = machine(args.root)
    document = read_machine.document_for(args)
    raw = read_machine.live_nvml(document.agent.nvml_deadline_seconds)[0] if root.is_live else recorded_nvml(args.root)
    reads = [path for setting in settings.load().values() for path in setting.reads]
    reads += [proc_path(key) for key in (*sysctl.RANGES, *sysctl.TRIPLES)]  # also of profiles that this node does not have
    snapshot(root, raw, target, redact=args.redact, reads=(*reads, *judge.reads(document)))
    count = sum(len(files) for _, _, files in os.walk(target))
    if args.json:
        print_json(WrittenTree(tree=str(target), files=count, redacted=args.redact))
    else:
        print(f"{target}: {count} files; `fairlead check --root {target}` judges it")
    return ExitCode.OK


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": WrittenTree}
