"""Find harmful and useless settings in job scripts and files of NCCL settings.

A file called nccl.conf or .nccl.conf is read as NCCL reads it. Every other file is read
as a script. Exit codes: 0 clean (or only remarks), 1 warnings, 2 errors, 65 a file is
not a script (empty, a program, UTF-16), 66 a file cannot be read.
The comment `# fairlead: allow RULE`, on a command's line or the line before it, switches
RULE off for this command.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys

import msgspec

from fairlead.cli.input_files import text_of
from fairlead.cli.output import print_json
from fairlead.errors import DataError, ExitCode, InputMissing, UsageError
from fairlead.jobenv.batch_script import read
from fairlead.jobenv.script_lint import LintFinding, LintLevel, LintSite, lint

SIZE_MAX = 4 << 20  # bytes


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="the files to read; - for standard input")
    parser.add_argument("--conf", action="store_true", help="read every FILE as a nccl.conf")
    parser.add_argument("--nccl", default="2.30", metavar="VERSION", help="the NCCL version that will run (default: %(default)s)")
    parser.add_argument(
        "--fabric", choices=["ib", "tcp"], default="", help="the network between the nodes (default: what the file says)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    try:
        site = LintSite(nccl=tuple(map(int, args.nccl.split("."))), fabric=args.fabric)
    except ValueError:
        raise UsageError(f"--nccl {args.nccl}: not a version such as 2.27 or 2.27.5") from None
    found: list[tuple[str, LintFinding]] = []
    unread: list[DataError | InputMissing] = []
    for path in args.files:
        conf = args.conf or os.path.basename(path) in {"nccl.conf", ".nccl.conf"}
        try:
            found += [(path, finding) for finding in lint(read(_script(path), conf=conf), site)]
        except (DataError, InputMissing) as e:
            unread.append(e)
    if args.json:
        print_json([_as_data(path, finding) for path, finding in found])
    else:
        for path, finding in found:
            print(f"{path}:{finding.line}: {finding.level}: {finding.message} [{finding.rule}]")
            print(f"    {finding.suggestion}\n    source: {finding.source}")
        if found or not unread:
            print(_count(found) if found else "clean")
    for problem in unread[:-1]:
        print(f"fairlead lint: {problem}", file=sys.stderr)
    if unread:
        raise unread[-1]
    levels = {finding.level for _, finding in found}
    return ExitCode.DRAIN if LintLevel.ERROR in levels else ExitCode.WARN if LintLevel.WARN in levels else ExitCode.OK


def _script(path: str) -> str:
    """Return a file's text. Raise DataError if the file is not a script, and InputMissing if it cannot be read.

    Bytes that are not UTF-8 are replaced, because a comment in another encoding does no harm.
    """
    name = "standard input" if path == "-" else path
    if os.path.isdir(path):
        raise InputMissing(
            f"{path}: is a directory", hint=f"name the scripts in it: fairlead lint {shlex.quote(path.rstrip('/'))}/*.sh"
        )
    try:
        text = text_of(path, SIZE_MAX)
    except InputMissing as e:
        raise InputMissing(
            e.message, hint=e.hint or f"check that it exists and that you may read it: ls -l {shlex.quote(path)}"
        ) from None
    if not text.strip():
        raise DataError(f"{name} is empty", hint="name a job script, an environment file or a nccl.conf")
    if "\0" in text:
        what = "a program" if text.startswith("\x7fELF") else "not a text file (it holds zero bytes)"
        raise DataError(
            f"{name}: {what}, not a script", hint="name the script that starts it; a script in UTF-16 has to be saved as UTF-8"
        )
    return text


def _as_data(path: str, finding: LintFinding) -> dict[str, object]:
    return {"file": path, **msgspec.to_builtins(finding)}


def _count(found: list[tuple[str, LintFinding]]) -> str:
    counts = [(level, sum(f.level is level for _, f in found)) for level in (LintLevel.ERROR, LintLevel.WARN, LintLevel.INFO)]
    return ", ".join(f"{number} {level}" for level, number in counts if number)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli.json_schema import extended, list_of

    return {"": list_of(extended("LintedLine", LintFinding, {"file": str}))}
