"""Runs `fairlead nccl compare`, which compares two recorded outputs of nccl-tests and names the slower one."""

from __future__ import annotations

import argparse
from typing import TypedDict

import msgspec

from fairlead.cli.nccl_outputs import runs_of
from fairlead.cli.output import columns, print_json
from fairlead.errors import DataError, ExitCode, UsageError
from fairlead.measure.collective import size_text
from fairlead.model.nodelist import in_order
from fairlead.nccl.recorded_comparison import LAUNCHES_MIN, RecordedComparison
from fairlead.nccl.recorded_comparison import compare as compare_runs
from fairlead.nccl.results import NcclTestRun


class UnusableOutputs(TypedDict):
    """Why A or B, or both, cannot be compared."""

    unusable: dict[str, str]


def compare(args: argparse.Namespace) -> ExitCode:
    if not 0 <= args.floor < 100:
        raise UsageError(f"--floor {args.floor:g}: not a percentage from 0 to 100")
    if args.files == ["-", "-"]:
        raise UsageError("nccl compare reads standard input once", hint="name two files")
    sides = [runs_of(file) for file in args.files]
    bad = {name: why for name, runs in zip("AB", sides, strict=True) if (why := _unusable(runs))}
    if bad:
        if args.json:
            print_json(UnusableOutputs(unusable=bad))
        for name, why in bad.items() if not args.json else ():
            print(f"{name} ({args.files['AB'.index(name)]}) cannot be compared: {why}")
        return ExitCode.DRAIN
    try:
        found = compare_runs(sides[0], sides[1], args.floor / 100)
    except DataError as e:
        raise DataError(f"{args.files[0]} and {args.files[1]}: {e}", hint=e.hint) from None
    if args.json:
        print_json({**msgspec.to_builtins(found), "tested": found.tested, "slower": found.slower})
    else:
        print(_text(found, *args.files))
    return ExitCode.WARN if found.differing else ExitCode.OK


def _unusable(runs: tuple[NcclTestRun, ...]) -> str:
    """Return why an output cannot be compared, or ""."""
    for run in runs:
        if run.wrong_total:
            return f"it has {run.wrong_total} wrong values"
        if run.errors:
            return run.errors[0]
        if not run.rows:
            return "it has no row of results"
        if not run.complete:
            return "its footer is missing, so the run ended early or its output was cut"
    return ""


def _text(found: RecordedComparison, a: str, b: str) -> str:
    of = f"{found.collective}, {found.ranks} ranks" if found.ranks else found.collective
    rows = [
        (
            size_text(each.bytes),
            f"{each.a_us:.2f}",
            f"{each.b_us:.2f}",
            f"{each.gain:+.1%}",
            "-" if each.low is None or each.high is None else f"{each.low:+.1%} to {each.high:+.1%}",
            "differs" if each.differs else "",
        )
        for each in found.sizes
    ]
    lines = [f"{of}: A is {a} ({_launches(found.launches[0])}), B is {b} ({_launches(found.launches[1])})"]
    lines.append(columns(rows, ("size", "A us", "B us", "B is faster by", "interval", "")))
    for name, sizes in (("A", found.only_a), ("B", found.only_b)):
        if sizes:
            lines.append(f"only {name} has: {', '.join(in_order([size_text(size) for size in sizes]))}")
    lines.append(
        f"over the sizes B is faster by {found.gain:+.1%}; most sizes lie between {found.low:+.1%} and {found.high:+.1%}"
    )
    if not found.tested:
        lines.append(
            f"With fewer than {LAUNCHES_MIN} launches on a side the noise between launches is not known. A difference under"
            f" {found.floor:.1%} (--floor) is not named. `fairlead nccl measure` finds out whether it is real."
        )
    lines.append(_verdict(found, a, b))
    return "\n".join(lines)


def _launches(count: int) -> str:
    return f"{count} launch{'es' if count > 1 else ''}"


def _verdict(found: RecordedComparison, a: str, b: str) -> str:
    differing = found.differing
    if not differing:
        return "No size differs."
    of = f"{len(differing)} of {len(found.sizes)} sizes"
    if not found.slower:
        return f"{of} differ, some in favour of A and some of B."
    slow = a if found.slower == "A" else b
    gains = [each.gain for each in differing if (each.gain > 0) == (found.slower == "A")]
    losses = sorted(g / (1 + g) if found.slower == "A" else -g for g in gains)  # by how much the slower side is below the other
    middle = losses[len(losses) // 2]
    return f"{found.slower} ({slow}) is the slow one: {of} differ, there by {middle:.0%} ({losses[0]:.0%} to {losses[-1]:.0%})."
