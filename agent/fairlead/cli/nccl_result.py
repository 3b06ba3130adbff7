"""Runs `fairlead nccl show`, `use` and `key`: shows a measured result, and applies it to a job if it holds on all its nodes."""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import sys
import time
from collections.abc import Mapping
from typing import TypedDict

import msgspec

from fairlead.cli.output import age_text, columns, print_json
from fairlead.errors import DataError, ExitCode, FairleadError, InputMissing, UsageError
from fairlead.jobenv.tuned_variables import checked, tuned_in
from fairlead.measure.collective import size_text
from fairlead.model.plain_text import one_line
from fairlead.nccl.launch_statistics import LaunchDifference
from fairlead.nccl.measured_result import (
    DAYS_MAX,
    FILE_MAX_BYTES,
    MeasuredResult,
    NcclCandidate,
    ResultJudgement,
    age_days,
    decode,
    unfit,
)
from fairlead.nccl.result_key import changes, key_of

CHANGES_SHOWN = 3


def read_result(file: str) -> tuple[bytes, MeasuredResult]:
    """Return a result and its file. Raise InputMissing, DataError."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                raise OSError(0, "is not a regular file")
            data = f.read(FILE_MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        hint = "name the result.json of fairlead nccl measure"
        raise InputMissing(f"{file}: {getattr(e, 'strerror', None) or e}", hint=hint) from None
    return data, decode(data, file)


def show(args: argparse.Namespace) -> ExitCode:
    _, result = read_result(args.files[0])
    if args.json:
        print_json({"age_days": age_days(result, time.time()), **msgspec.to_builtins(result)})
    else:
        print(result_text(result, time.time()))
    return ExitCode.OK


def result_text(result: MeasuredResult, now: float) -> str:
    """Return a result for a person."""
    age = age_text(max(0.0, (now - result.measured)))
    lines = [f"{one_line(result.collective, 60)}, measured {age} ago, {result.launches} launches of each command"]
    lines.append(f"A gain under {result.floor:.1%} cannot be seen here (A compared with itself).")
    lines.append(f"A: {one_line(result.command, 300)}   $TEST: {one_line(result.test, 200)}")
    key = [f"{name} {one_line(value, 100) or 'unknown'}" for name, value in result.key.items()]
    lines.append(f"holds for: {', '.join(key)}")
    if any(not value for value in result.key.values()):
        lines.append("No job can apply it, because a part of this key is unknown.")
    elif age_days(result, now) > DAYS_MAX:
        lines.append(f"No job can apply it, because it is older than {DAYS_MAX} days.")
    rows = _rows("A and A", result.same)
    for each in result.candidates:
        rows += _rows(one_line(each.name, 60), each.alone)
        rows += _rows(f"{one_line(each.name, 60)}, beside", each.beside)
    lines += ["", columns(rows, ("", "sizes", "faster by", "interval", "p", "floor", "")), ""]
    for each in result.candidates:
        lines.append(f"{one_line(each.name, 100)}: {each.judgement.value}: {one_line(each.why, 600)}")
        if each.by_size and each.judgement is not ResultJudgement.NO_GAIN:
            lines.append("  by size: " + ", ".join(f"{size_text(size)} {gain:+.1%}" for size, gain in each.by_size.items()))
        if each.sums is not None:
            right = "right" if each.sums.right else "WRONG"
            lines.append(
                f"  float32 sums of {each.sums.ranks} ranks: {right}, error {each.sums.worst:.2g} of {each.sums.bound:.2g}"
            )
    return "\n".join(lines)


def _rows(name: str, differences: tuple[LaunchDifference, ...]) -> list[tuple[str, ...]]:
    return [
        (
            "" if at else name,
            one_line(d.name, 40),
            f"{d.gain:+.1%}",
            f"{d.low:+.1%} to {d.high:+.1%}",
            f"{d.adjusted:.2g}",
            f"{d.floor:.1%}" if d.floor else "-",
            d.effect.value,
        )
        for at, d in enumerate(differences)
    ]


# -- in a job -------------------------------------------------------------------------------------


def key(args: argparse.Namespace) -> ExitCode:
    from fairlead.host.root import Root
    from fairlead.measure import node_parts

    parts = node_parts.read(Root(args.root), os.environ, os.path.abspath(args.files[0]) if args.files else "")
    print(msgspec.json.encode(parts).decode())
    return ExitCode.OK


class _NotAppliedError(FairleadError):
    exit_code = ExitCode.WARN


class UsedResult(TypedDict):
    """Whether a result holds here, why not, and its variables."""

    applied: bool
    why: str
    variables: dict[str, str]


def use(args: argparse.Namespace) -> ExitCode:
    """Print the variables of a result as shell commands, or nothing. One line on standard error says what was done and why."""
    file = args.files[0] if args.files else os.environ.get("FAIRLEAD_NCCL_RESULT", "")
    if not file:
        raise UsageError("nccl use needs a FILE", hint="fairlead nccl use RESULT, or FAIRLEAD_NCCL_RESULT=RESULT")
    try:
        candidate, data, age = _holding(args, os.path.abspath(file), os.environ)
    except FairleadError as e:
        why = f"{e}{f'; {one_line(e.hint)}' if e.hint else ''}"
        if args.json:
            print_json(UsedResult(applied=False, why=why, variables={}))
        print(f"fairlead nccl: nothing is applied: {why}", file=sys.stderr)
        return ExitCode.WARN
    if args.json:
        print_json(UsedResult(applied=True, why="", variables=dict(candidate.variables)))
        return ExitCode.OK
    from fairlead.measure.node_parts import hash_of

    for name, value in candidate.variables.items():
        print(f"export {name}={shlex.quote(value)}")
    said = "|".join([hash_of(data)[:12], *(f"{name}={value}" for name, value in candidate.variables.items())])
    print(f"export FAIRLEAD_NCCL_APPLIED={shlex.quote(said)}")
    print(f"fairlead nccl: {file} ({age}) is applied: {_words(candidate)}", file=sys.stderr)
    return ExitCode.OK


def _words(candidate: NcclCandidate) -> str:
    return " ".join(f"{name}={value}" for name, value in candidate.variables.items())


def _holding(args: argparse.Namespace, file: str, environment: Mapping[str, str]) -> tuple[NcclCandidate, bytes, str]:
    """Return the candidate to apply, the file, and its age in words. Raise FairleadError if it must not be applied here."""
    from fairlead.measure import node_parts

    data, result = read_result(file)
    candidate = _best(result)
    _old(result)
    _users(result, environment)
    probe = args.probe or environment.get("FAIRLEAD_NCCL_PROBE", "")
    if not environment.get("SLURM_JOB_ID"):
        raise _NotAppliedError("this is no Slurm job", hint="run it in the job script, before srun")
    if not probe:
        raise _NotAppliedError("the NCCL of the job is not known", hint="--probe 'srun all_reduce_perf -b 8 -e 8 -n 1 -w 0'")
    if node_parts.cluster(environment) != result.key["cluster"]:
        words = f"it was measured on cluster {one_line(result.key['cluster'], 60) or '(unknown)'}"
        raise _NotAppliedError(f"{words}, and this is {node_parts.cluster(environment) or '(unknown)'}", hint="measure here")
    nodes = node_parts.ask_nodes(environment, file, root=args.root)
    if unlike := node_parts.unlike_files(nodes, node_parts.hash_of(data)):
        raise _NotAppliedError(
            f"not all nodes see the same {file}: {unlike}", hint="put it on a file system that all nodes mount"
        )
    now = key_of(node_parts.cluster(environment), nodes, node_parts.ask_nccl(probe, environment))
    if changed := changes(result.key, now):
        more = f", and {len(changed) - CHANGES_SHOWN} more" if len(changed) > CHANGES_SHOWN else ""
        raise _NotAppliedError(f"{', '.join(changed[:CHANGES_SHOWN])}{more}", hint="measure again: fairlead nccl measure")
    return candidate, data, f"{age_text(time.time() - result.measured)} old"


def _best(result: MeasuredResult) -> NcclCandidate:
    """Return the candidate with the largest gains of those that may be applied."""
    fits = [each for each in result.candidates if not unfit(each)]
    if not fits:
        whys = [f"{one_line(each.name, 60)}: {one_line(unfit(each), 200)}" for each in result.candidates[:1]]
        raise _NotAppliedError("no candidate of this result may be applied" + "".join(f" ({why})" for why in whys))
    best = max(fits, key=lambda each: sum(d.gain for d in each.alone))
    try:
        checked(best.variables)
    except DataError as e:
        raise _NotAppliedError(str(e), hint="the file was not written by fairlead nccl measure") from None
    return best


def _old(result: MeasuredResult) -> None:
    days = age_days(result, time.time())
    if days > DAYS_MAX or days < -1:
        age = f"{days:.0f} days old" if days > 0 else "from the future"
        raise _NotAppliedError(
            f"it is {age}, and a result counts for {DAYS_MAX} days", hint="measure again: fairlead nccl measure"
        )


def _users(result: MeasuredResult, environment: Mapping[str, str]) -> None:
    """Raise an error if the job has variables of NCCL of its own, because they win and were not there when A was measured."""
    here = tuned_in(environment)
    for name in sorted(set(here) | set(result.environment)):
        if here.get(name) != result.environment.get(name):
            if name in here:
                raise _NotAppliedError(f"{name} is set in your environment, and your own value wins", hint=f"unset {name}")
            raise _NotAppliedError(f"{name} was set when it was measured, and is not set here", hint="measure again without it")
