"""Judge this node, or a machine tree, once, with the policy of the node's agent.

Exit codes: 0 ok, 1 warn, 2 drain, 3 unknown. Exit code 2 means that the agent drains
the node for these findings once it has confirmed them. A finding of a check in mode
observe is marked and gives exit code 1 at most, as in the agent's verdict. One
reading cannot judge rates and trends. Findings about them say needs_history and
change no exit code. A hold, an acknowledgement and the drain budgets change no exit
code either, because only the agent knows them (`fairlead status` shows them). The
command changes nothing and does not ask slurmctld.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypedDict

from fairlead import checks, settings
from fairlead.cli import read_machine
from fairlead.cli.output import print_json, state_word
from fairlead.cli.same_findings import folded
from fairlead.config import schema_keys
from fairlead.errors import ExitCode, UsageError
from fairlead.model.finding import Finding, FindingData, Level, Service, as_data

if TYPE_CHECKING:
    from fairlead.config import Document
    from fairlead.policy import Decision

SHOWN_PER_CHECK = 3
_ORDER = (Level.DRAIN.word, Level.UNKNOWN.word, Level.WARN.word, Level.OK.word)
SLOW = "reading the machine"  # patience.py says it


class CountedFinding(FindingData):
    """A finding with the mode of its check, the level that it counts as, and the reason if that is lower than its own."""

    mode: str
    counts_as: str
    why: str


class CheckedNode(TypedDict):
    """What is wrong with a node now. state: ok, warn, drain or unknown. findings: the most serious first."""

    node: str
    state: str
    findings: list[CountedFinding]


def register(parser: argparse.ArgumentParser) -> None:
    read_machine.register(parser)
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="judge only by this check, or by setting.NAME; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print each finding by itself, with its mode and what it counts as")


def run(args: argparse.Namespace) -> ExitCode:
    from fairlead.judge import decide_at_once, judge

    known = {*checks.load(), *(f"setting.{n}" for n in settings.load())}
    for name in args.only:
        if name not in known:
            raise UsageError(f"--only {name}: no such check", hint=_hint(name, known))
    document = read_machine.document_for(args)
    node, past = read_machine.read_machine(args, document)
    found = judge(document, node, past, args.only or None)
    decision = decide_at_once(document, node, found, args.only or None)
    findings = _as_counted(document, found, decision)
    if args.json:
        print_json(CheckedNode(node=node.name, state=decision.level.word, findings=findings))
        return ExitCode(decision.level)
    print(f"{node.name}: {state_word(decision.level.word)}" + (f" (profile {document.profile})" if document.profile else ""))
    _print_findings(findings)
    if not document.profile:
        print("  (there is no document and no --profile, so nothing says what this machine should be)")
    return ExitCode(decision.level)


def _as_counted(document: Document, found: Sequence[Finding], decision: Decision) -> list[CountedFinding]:
    """Return the findings as the JSON output has them, the most serious first.

    Each also has the mode of its check, the level that it counts as in the agent's verdict, and the reason if that level is lower
    than its own.
    """
    from fairlead.judge import policies_of
    from fairlead.policy import identity

    policies = policies_of(document)
    why_less = dict(zip(map(identity, decision.suppressed), decision.why_suppressed, strict=True))
    rows: list[CountedFinding] = []
    for finding in found:
        policy = policies.get(finding.check)
        why = why_less.get(identity(finding), "")
        if finding.needs_history:
            counts, why = Level.OK, "one reading cannot judge it"
        elif finding.level is Level.DRAIN and finding.service is Service.KEEP:
            counts, why = Level.WARN, "no reason for a drain"
        else:
            counts = Level.WARN if why else finding.level
        mode = policy.mode.value if policy else ""
        rows.append({**as_data(finding), "mode": mode, "counts_as": counts.word, "why": why})
    return sorted(rows, key=lambda row: (_ORDER.index(str(row["counts_as"])), str(row["check"]), str(row["device"])))


def _print_findings(findings: Sequence[CountedFinding]) -> None:
    shown: dict[tuple[str, str], int] = {}
    for same in folded(findings, also=("counts_as", "why")):
        f = same.first
        kind = (f["check"], f["counts_as"])
        shown[kind] = shown.get(kind, 0) + 1
        if shown[kind] > SHOWN_PER_CHECK:
            continue
        mark = f" ({f['why']})" if f["why"] and not f["needs_history"] else ""  # the summary says already that it needs history
        print(f"  {state_word(f['counts_as']):7} {same.subject()}: {same.words()}{mark}")
        for line in f["evidence"]:
            print(f"          {line}")
        if f["action"] != "none" and not f["summary"].endswith(f": {f['action']}"):
            print(f"          do: {f['action']}")
    for (name, _), count in shown.items():
        if count > SHOWN_PER_CHECK:
            print(f"  ... and {count - SHOWN_PER_CHECK} more of {name} (--json has all)")


def _hint(name: str, known: Collection[str]) -> str:
    """Return the hint for a name after --only that is not the name of a check."""
    if f"setting.{name}" in known:
        return f"{name} is a setting: --only setting.{name} judges whether the node drifted from it"
    words = name.split(",")
    if len(words) > 1 and all(word.strip() in known for word in words):
        return f"name each by itself: {' '.join(f'--only {word.strip()}' for word in words)}"
    like = schema_keys.nearest(name, known)
    return f"did you mean `{like}`?" if like else f"known: {', '.join(sorted(known))}"


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    return {"": CheckedNode}
