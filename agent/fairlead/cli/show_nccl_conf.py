"""Runs `fairlead nccl conf`, which shows what /etc/nccl.conf should contain on a machine, by its document or by profiles.

The command never writes the file.
"""

from __future__ import annotations

import argparse
import sys
from typing import TypedDict

from fairlead import config
from fairlead.cli.machine_tree import machine
from fairlead.cli.output import print_json
from fairlead.cli.read_machine import document_for
from fairlead.errors import ExitCode, HostError, UsageError
from fairlead.host.gather import gather
from fairlead.model.facts import Missing, unreadable
from fairlead.nccl.nccl_conf import ConfLine, Problem, is_ours, render
from fairlead.settings import nccl

REVIEW_DAYS = 365


class ShownNcclConf(TypedDict):
    """What /etc/nccl.conf should be. now: what the file is today, in one word. problems: why it must stay as it is."""

    file: str
    text: str
    lines: list[ConfLine]
    notes: list[str]
    problems: list[Problem]
    now: str


def conf(args: argparse.Namespace) -> ExitCode:
    want = _want(args)
    node = gather(machine(args.root), unreadable("not asked"), reads=nccl.setting.reads)
    seen = nccl.observe(node)
    if isinstance(seen, Missing):
        raise HostError(f"cannot be read: {seen.detail}", hint="run it as root, or on a machine tree (--root)")
    if not want.managed:
        return _unmanaged(args)
    made = nccl.draft(want, seen)
    text = "" if made.problems else render(made.lines) or ""
    if args.json:
        print_json(
            ShownNcclConf(
                file=nccl.FILE,
                text=text,
                lines=list(made.lines),
                notes=list(made.notes),
                problems=list(made.problems),
                now=_now(seen.file, text),
            )
        )
    else:
        print(text or f"# fairlead: {nccl.FILE} needs no line on this node: NCCL finds everything by itself.\n", end="")
        for note in made.notes:
            print(f"fairlead: note: {note}", file=sys.stderr)
        for problem in made.problems:
            print(f"fairlead: {nccl.FILE}: {problem.key}: {problem.reason}\n  next: {problem.hint}", file=sys.stderr)
    return ExitCode.CONFIG if made.problems else ExitCode.OK


def _old(name: str) -> None:
    """Print which values of a fabric profile nobody has reviewed for a year, because platforms change."""
    from datetime import date, timedelta

    fabric = config.load_fabric(name)
    limit = (date.today() - timedelta(days=REVIEW_DAYS)).isoformat()
    dated = [(v.key, v.reviewed) for v in fabric.values] + [(v.name, v.reviewed) for v in fabric.variables]
    old = [what for what, reviewed in dated if reviewed < limit]
    if old:
        print(f"fairlead: note: fabric {name}: last reviewed over a year ago: {', '.join(old)}", file=sys.stderr)


def _want(args: argparse.Namespace) -> nccl.NcclWant:
    """Return the NCCL setting of the profiles that --profile names, or without --profile that of the document.

    If neither has an NCCL setting, return the defaults.
    """
    if args.profile:
        fabrics = [name for name in args.profile if name in config.fabric_names() or name.endswith(".toml")]
        hardware = [name for name in args.profile if name not in fabrics]
        if len(fabrics) > 1 or len(hardware) > 1:
            raise UsageError("--profile: one fabric profile and one hardware profile at most")
        document = config.profile_document("localhost", "".join(hardware), "".join(fabrics))
        for name in fabrics:
            _old(name)
    else:
        args.profile = ""  # document_for expects a string
        document = document_for(args)
    want = document.settings.get("nccl")
    return want if isinstance(want, nccl.NcclWant) else nccl.NcclWant()


def _unmanaged(args: argparse.Namespace) -> ExitCode:
    why = f"{nccl.FILE} is not fairlead's here (settings.nccl.managed = false)"
    if args.json:
        print_json(ShownNcclConf(file=nccl.FILE, text="", lines=[], notes=[why], problems=[], now="unmanaged"))
    else:
        print(f"# fairlead: {why}.")
    return ExitCode.OK


def _now(file: str | None, text: str) -> str:
    if (file or "") == text:
        return "as shown"
    if file is None:
        return "absent"
    return "differs" if is_ours(file) else "of somebody else"
