"""Judge this node, or a machine tree, once.

Exit codes: 0 ok, 1 warn, 2 drain, 3 unknown. One look cannot judge rates and trends; such findings say needs_history.
Nothing is changed and slurmctld is not asked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fairlead import checks, settings
from fairlead.cli import read_machine
from fairlead.cli.output import print_json, state_word
from fairlead.errors import ExitCode, UsageError
from fairlead.model.finding import Finding, Level, as_data, worst

SHOWN_PER_CHECK = 3
NAMES_SHOWN = 4  # of checks that say the same


def register(parser: argparse.ArgumentParser) -> None:
    read_machine.register(parser)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a check, or setting.NAME; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.judge import judge

    known = {*checks.load(), *(f"setting.{n}" for n in settings.load())}
    for name in args.only:
        if name not in known:
            raise UsageError(f"--only {name}: no such check", hint=f"known: {', '.join(sorted(known))}")
    document = read_machine.document_for(args)
    node, past = read_machine.read_machine(args, document)
    findings = sorted(judge(document, node, past, args.only or None), key=lambda f: (-_rank(f.level), f.check, f.device))
    level = worst(tuple(f for f in findings if not f.needs_history))
    if args.json:
        print_json({"node": node.name, "state": level.word, "findings": [as_data(f) for f in findings]})
        return ExitCode(level)
    print(f"{node.name}: {state_word(level.word)}" + (f" (profile {document.profile})" if document.profile else ""))
    shown: dict[tuple[str, Level], int] = {}
    for f, names in _joined(findings):
        kind = (f.check, f.level)
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] > SHOWN_PER_CHECK:
            continue
        device = f" {f.device}" if f.device and f.device not in f.summary else ""
        print(f"  {state_word(f.level.word):7} {names}{device}: {f.summary}")
        for line in f.evidence:
            print(f"          {line}")
        if f.action.value != "none":
            print(f"          do: {f.action.value}")
    for (name, _), count in shown.items():
        if count > SHOWN_PER_CHECK:
            print(f"  ... and {count - SHOWN_PER_CHECK} more of {name} (--json has all)")
    if not document.profile:
        print("  (no document and no --profile: what this machine should be is not known)")
    return ExitCode(level)


def _joined(findings: list[Finding]) -> Iterator[tuple[Finding, str]]:
    """What several checks say in the same words, of no device, is told once: each finding, and the names of its checks."""
    same: dict[tuple[object, ...], list[Finding]] = {}
    for f in findings:
        same.setdefault((f.level, f.summary, f.evidence, (f.check, f.device) if f.device else ""), []).append(f)
    for group in same.values():
        names = list(dict.fromkeys(f.check for f in group))
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        yield group[0], ", ".join(names[:NAMES_SHOWN]) + more


def _rank(level: Level) -> int:
    return {Level.DRAIN: 3, Level.UNKNOWN: 2, Level.WARN: 1, Level.OK: 0}[level]
