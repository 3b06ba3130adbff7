"""Make this node what its document says, and report what is persisted, effective and pending.

`fairlead provision` runs this command over ssh, the unit fairlead-apply.service runs it at boot, and a person may run it by hand.
While a job runs on the node, the command makes only changes that no job can notice, and reports the others as deferred. Some
changes need a node that is drained in Slurm. --drained declares that the node is drained, and is refused while a job step runs.
Exit codes: 0 the node is as declared; 1 the node has no hardware for a setting, and all other settings are as declared; 69 a
setting failed or could not be read; 75 a setting waits for an idle or drained node or for a reboot; 78 a setting was refused.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TypedDict

from fairlead import config
from fairlead.apply import ApplyReport, NvmlCalls, TreeNvml, apply
from fairlead.apply.draining_node import on_draining_node
from fairlead.cli.chosen_settings import chosen
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, HostError, InputMissing, NeedsRoot, NodeBusy, UsageError
from fairlead.host import change, process
from fairlead.host.root import Root

DOCUMENT = "/etc/fairlead/node.json"
SLOW = "reading the machine"  # patience.py says it


class UndoneChange(TypedDict):
    """A change that --undo took back. done: it was, or with --dry-run it would be."""

    target: str
    done: bool
    message: str


class UndoReport(TypedDict):
    """What --undo did."""

    schema: int
    outcomes: list[UndoneChange]


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--document", default="", help=f"the node's document (default: {DOCUMENT} below the root)", metavar="FILE"
    )
    parser.add_argument(
        "--root", default="/", metavar="DIR", help="change an image or a tree instead of this machine: write files, start nothing"
    )
    parser.add_argument("--phase", choices=["all", "boot"], default="all", help="boot: apply only what a reboot loses")
    parser.add_argument(
        "--only", default="", metavar="NAMES", help="apply only these settings or groups of settings: nccl,kernel"
    )
    parser.add_argument("-n", "--dry-run", "--check", action="store_true", dest="dry_run", help="show the changes and make none")
    parser.add_argument("--diff", action="store_true", help="show each change as a diff")
    parser.add_argument("--busy", action="store_true", help="treat this node as busy (default: busy where a job step runs)")
    parser.add_argument(
        "--drained", action="store_true", help="this node is drained in Slurm and no job runs: also make changes that need this"
    )
    parser.add_argument(
        "--draining",
        action="store_true",
        help="this node is drained in Slurm and jobs still run: also change the MIG instances that no job uses",
    )
    parser.add_argument("--undo", action="store_true", help="restore what was there before fairlead's first change")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    if not os.path.isdir(args.root):
        raise InputMissing(f"{args.root}: no such tree")
    root = Root(args.root)
    if root.is_live and not args.dry_run and os.geteuid() != 0:
        raise NeedsRoot("changing this node needs root", hint="without root, --dry-run shows what would change")
    if not root.is_live and not args.dry_run:
        _files_only(root)
    only = chosen("--only", args.only)
    busy, drained = _jobs(root, args)
    if args.undo:
        return _undo(root, args, busy=busy, drained=drained)
    image = change.is_image(root) and not args.dry_run
    document = config.load_document(args.document or os.path.join(args.root, DOCUMENT.lstrip("/")), checks=image)
    if image:
        _furnish(root, document)
    nvml = _nvml(root, document)
    try:
        jobs = on_draining_node(document) if args.draining else None
        how = {"dry_run": args.dry_run, "busy": busy or bool(jobs and jobs.jobs), "drained": drained}
        report = apply(document, root, phase=args.phase, nvml=nvml, only=only, jobs=jobs, **how)
    finally:
        _close(nvml)
    if args.json:
        print_json(report)
    else:
        print(text(report, diff=args.diff))
    return report.exit_code


def _files_only(root: Root) -> None:
    """Refuse a tree with a mounted /proc or /sys. Image builders mount them for a chroot, and writing there changes this
    machine.

    Raise UsageError.
    """
    for path in (root.join("/proc"), root.join("/sys")):
        if os.path.ismount(path):
            raise UsageError(f"{path} is mounted, so writing there changes this machine", hint=f"umount {path} first")


def _furnish(root: Root, document: config.Document) -> None:
    """Write hooks, units (enabled by link) and the document into an image. The image builder installs the release itself. An
    image with fairlead's package has hooks and units from it."""
    from fairlead.model.change import Unit
    from fairlead.provision.run_bundle import PACKAGE, UNITS, documents, node_files, scratch_units

    for path, content, mode in () if root.exists(f"{PACKAGE}/release") else node_files():
        change.write_file(root.join(path), content, mode)
    for entry in documents(document):
        change.write_file(root.join(entry["path"]), entry["content"].encode(), entry["mode"])
    units = [Unit(setting="", why="", name=str(u["name"]), enabled=True) for u in (*UNITS, *scratch_units(document))]
    failed = [o.message for o in change.execute(units, root) if not o.done]
    if failed:
        raise HostError(failed[0])
    if not root.exists("/opt/fairlead/current/bin/fairlead"):
        print("no /opt/fairlead/current in this image: its units start once a release is there", file=sys.stderr)


def _jobs(root: Root, args: argparse.Namespace) -> tuple[bool, bool]:
    """Return whether the node is busy, and whether it is drained. Raise NodeBusy, UsageError.

    With --drained, a dry run shows the changes for a drained node, even while jobs run.
    """
    if args.busy + args.drained + args.draining > 1:
        raise UsageError("--busy, --drained and --draining exclude each other")
    if args.draining and (args.undo or not root.is_live):
        raise UsageError("--draining applies the document to this machine: it goes neither with --undo nor with --root")
    running = root.is_live and process.jobs_running()
    if args.draining:
        return running, True
    if args.drained:
        if running and not args.dry_run:
            hint = "drain it in Slurm and wait until no job runs; without --drained, only what no job can notice is changed"
            raise NodeBusy("--drained: job steps run on this node; nothing was changed", hint=hint)
        return False, True
    busy = args.busy or running
    # At boot, no job can start as long as slurmd does not run.
    return busy, args.phase == "boot" and root.is_live and not busy and process.find("slurmd") is None


def _nvml(root: Root, document: config.Document) -> NvmlCalls:
    if not root.is_live:
        return TreeNvml(root)
    from fairlead.host.nvml import Worker

    return Worker(document.agent.nvml_deadline_seconds)


def _close(nvml: NvmlCalls) -> None:
    if not isinstance(nvml, TreeNvml):
        nvml.close()  # type: ignore[attr-defined]


def _undo(root: Root, args: argparse.Namespace, *, busy: bool, drained: bool) -> ExitCode:
    document = config.profile_document("localhost")
    nvml = _nvml(root, document)
    try:
        if args.dry_run:
            outcomes = tuple(
                change.ChangeOutcome(change=c, done=True, message=change.diff(c)) for _, c in change.undo_changes(root)
            )
        else:
            outcomes = change.undo_all(root, nvml_set=nvml.set, busy=busy, drained=drained)
    finally:
        _close(nvml)
    if args.json:
        undone = [UndoneChange(target=change.target(o.change), done=o.done, message=o.message) for o in outcomes]
        print_json(UndoReport(schema=1, outcomes=undone))
    else:
        for outcome in outcomes:
            print(("" if outcome.done or outcome.skipped else "FAILED ") + outcome.message)
    if any(not o.done and not o.skipped for o in outcomes):
        return ExitCode.UNAVAILABLE
    return ExitCode.OK if all(o.done for o in outcomes) else ExitCode.TRY_AGAIN


def text(report: ApplyReport, *, diff: bool = False) -> str:
    """Return the report as text: a line for each setting, then the totals."""
    lines = []
    for item in report.items:
        layers = f"persisted {item.persisted}, effective {item.effective}" + (f", pending {item.pending}" if item.pending else "")
        lines.append(f"{item.state:12} {item.setting:16} {layers}" + (f": {item.message}" if item.message else ""))
        if item.hint:
            lines.append(f"{'':29} next: {item.hint}")
        if diff:
            lines += [line for step in item.steps for line in step.diff.splitlines()]
    would = "would change" if report.dry_run else "changed"
    lines.append(f"{report.node}: {len(report.items)} settings, {report.changed} {would}, {report.failed} failed")
    return "\n".join(lines)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.apply.apply_report import ApplyReport

    return {"": ApplyReport, "--undo": UndoReport}
