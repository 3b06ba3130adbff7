"""Find harmful and useless settings in job scripts, environment files and nccl.conf.

A file called nccl.conf or .nccl.conf is read as NCCL reads it, every other as a script. Exit code: 0 clean (or only
remarks), 1 warnings, 2 errors. `# fairlead: allow RULE` before or behind a line takes that rule out of it.
"""

from __future__ import annotations

import argparse
import os

import msgspec

from fairlead.cli.input_files import text_of
from fairlead.cli.output import print_json
from fairlead.errors import ExitCode, UsageError
from fairlead.jobenv.batch_script import read
from fairlead.jobenv.script_lint import LintFinding, LintLevel, LintSite, lint

SIZE_MAX = 4 << 20  # bytes


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="what to look at; - for standard input")
    parser.add_argument("--conf", action="store_true", help="read every FILE as a nccl.conf")
    parser.add_argument("--nccl", default="2.30", metavar="VERSION", help="the NCCL that will run (default %(default)s)")
    parser.add_argument("--fabric", choices=["ib", "tcp"], default="", help="what joins the nodes; default: what the file says")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> ExitCode:
    try:
        site = LintSite(nccl=tuple(map(int, args.nccl.split("."))), fabric=args.fabric)
    except ValueError:
        raise UsageError(f"--nccl {args.nccl}: not a version such as 2.27 or 2.27.5") from None
    found = []
    for path in args.files:
        conf = args.conf or os.path.basename(path) in {"nccl.conf", ".nccl.conf"}
        found += [(path, finding) for finding in lint(read(text_of(path, SIZE_MAX), conf=conf), site)]
    if args.json:
        print_json([_as_data(path, finding) for path, finding in found])
    else:
        for path, finding in found:
            print(f"{path}:{finding.line}: {finding.level}: {finding.message} [{finding.rule}]")
            print(f"    {finding.suggestion}\n    source: {finding.source}")
        print(_count(found) if found else "clean")
    levels = {finding.level for _, finding in found}
    return ExitCode.DRAIN if LintLevel.ERROR in levels else ExitCode.WARN if LintLevel.WARN in levels else ExitCode.OK


def _as_data(path: str, finding: LintFinding) -> dict[str, object]:
    return {"file": path, **msgspec.to_builtins(finding)}


def _count(found: list[tuple[str, LintFinding]]) -> str:
    counts = [(level, sum(f.level is level for _, f in found)) for level in (LintLevel.ERROR, LintLevel.WARN, LintLevel.INFO)]
    return ", ".join(f"{number} {level}" for level, number in counts if number)
