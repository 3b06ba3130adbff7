"""Read, compare and measure nccl-tests, apply a measured result to a job, and show what /etc/nccl.conf should say on a node.

fairlead nccl parse FILE      read an output of all_reduce_perf or another *_perf, as text or as JSON (-J); - for standard input
fairlead nccl compare A B     compare two recorded outputs size by size
fairlead nccl measure --a COMMAND --b COMMAND  compare two versions: two containers, modules or commands
fairlead nccl measure --a COMMAND --set NAME=VALUE --versions FILE  then compare variables of NCCL; --set may be repeated
fairlead nccl show RESULT     show a measured result, for what it holds, and how old it is
fairlead nccl use RESULT      in a job: print the variables of a result as shell commands if it holds on all nodes of the job
fairlead nccl key [RESULT]    print what this node says about itself (`use` asks all nodes for it)
fairlead nccl conf            show nccl.conf of this node, or of a machine tree (--root), with the reasons; write nothing

A COMMAND is run by sh in the allocation. $TEST in it is the nccl-tests command (--test): --a 'srun -n 16 $TEST'.

Exit codes of parse: 0 every run is complete and right, 1 every run is complete but the data of a run was never checked, 2 a run
has a wrong value, failed, or is incomplete. The command does not judge speed. Exit codes of compare: 0 no difference, 1 sizes
differ, 2 a run has a wrong value, failed, or is incomplete. Exit codes of measure: 0 measured, 1 no decision, 2 a candidate
failed. Exit codes of use: 0 applied, 1 nothing is applied. Exit codes of conf: 0 the file is shown, 78 a problem on the node
prevents a new file.
"""

from __future__ import annotations

import argparse

import msgspec

from fairlead.cli.nccl_outputs import runs_of
from fairlead.cli.output import columns
from fairlead.errors import ExitCode, UsageError
from fairlead.nccl.results import NcclTestRun

FILES = {"parse": (1, 1), "compare": (2, 2), "measure": (0, 0), "show": (1, 1), "use": (0, 1), "key": (0, 1), "conf": (0, 0)}


def register(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", choices=list(FILES), help="what to do (see above)")
    add("files", metavar="FILE", nargs="*", default=[], help="parse, compare: outputs; show, use, key: a result.json")
    add("--json", action="store_true", help="print JSON; parse: one object per run")
    add("--root", default="/", metavar="TREE", help="conf, key, use, measure: read a machine tree instead of this machine")
    add("--document", default="", metavar="FILE", help="conf: the node's document (default: the machine's own)")
    add(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="conf: use this fabric profile or hardware profile instead of a document; may be repeated for one of each",
    )
    add("--floor", type=float, default=5.0, metavar="PERCENT", help="compare: a smaller difference is not named (5)")
    add("--a", default="", metavar="COMMAND", help="measure: the command that the others are compared with")
    add("--b", default="", metavar="COMMAND", help="measure: the command of the other version")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="measure: a candidate; quote several NAME=VALUE")
    add("--versions", default="", metavar="FILE", help="measure, with --set: the result.json of --b, which comes first")
    add("--skip-versions", action="store_true", help="measure, with --set: measure variables although no versions were compared")
    add("--test", default="", metavar="COMMAND", help="measure: what $TEST is (all_reduce_perf -b 8K -e 1G -f 4 -c 1 -a 3)")
    add("--beside", default="", metavar="COMMAND", help="measure: a GEMM loop that prints its rate, such as 431000 Gflop/s")
    add("--blocks", type=int, default=0, metavar="N", help="measure: blocks of two launches of each command (6)")
    add("--timeout", type=float, default=600.0, metavar="SECONDS", help="measure: the time limit of one launch (600)")
    add("--folder", default="fairlead-nccl", metavar="DIR", help="measure: a shared folder for the run (fairlead-nccl)")
    add("--resume", action="store_true", help="measure: go on with a run that was killed, in the same allocation")
    add("--probe", default="", metavar="COMMAND", help="use: a short command by which the NCCL of the job says what it is")
    add("-n", "--dry-run", action="store_true", help="measure: print the plan and how long it takes, launch nothing")
    add("-q", "--quiet", action="store_true", help="measure: print no progress on standard error")


def run(args: argparse.Namespace) -> ExitCode:
    least, most = FILES[args.what]
    if not least <= len(args.files) <= most:
        if args.what == "conf":
            raise UsageError("nccl conf takes no FILE", hint="a machine tree: --root TREE; a document: --document FILE")
        wants = {"parse": "a FILE", "compare": "two files", "measure": "no FILE", "show": "a FILE"}.get(
            args.what, "at most one FILE"
        )
        raise UsageError(f"nccl {args.what} needs {wants}", hint="fairlead nccl --help")
    if args.what == "conf":
        from fairlead.cli.show_nccl_conf import conf

        return conf(args)
    if args.what == "measure":
        from fairlead.cli.nccl_measure import measure

        return measure(args)
    if args.what == "compare":
        from fairlead.cli.nccl_compare import compare

        return compare(args)
    if args.what != "parse":
        from fairlead.cli import nccl_result

        return {"show": nccl_result.show, "use": nccl_result.use, "key": nccl_result.key}[args.what](args)
    return _parse(args.files[0], as_json=args.json)


def _parse(file: str, *, as_json: bool) -> ExitCode:
    runs = runs_of(file)
    for number, each in enumerate(runs):
        if as_json:
            print(msgspec.json.encode(_as_data(each)).decode())
        else:
            print(("\n" if number else "") + _as_text(each))
    return max((_code(each) for each in runs), default=ExitCode.OK)


def _code(each: NcclTestRun) -> ExitCode:
    if not each.passed:
        return ExitCode.DRAIN
    return ExitCode.OK if each.checked else ExitCode.WARN


def _as_data(each: NcclTestRun) -> dict[str, object]:
    data: dict[str, object] = msgspec.to_builtins(each)
    del data["checked"]
    return data


def _as_text(each: NcclTestRun) -> str:
    what = " ".join(
        (
            each.collective or "unknown collective",
            f"on {each.ranks} ranks" if each.ranks is not None else "on an unknown number of ranks",
            f"(nccl-tests {each.version})" if each.version else "",
        )
    ).strip()
    by_size: dict[int, dict[bool, str]] = {}
    for row in each.rows:
        wrong = "-" if row.wrong is None else str(row.wrong)
        by_size.setdefault(row.bytes, {})[row.inplace] = f"{row.busbw_gbps:.2f} GB/s, wrong {wrong}"
    table = [(str(size), sides.get(False, "-"), sides.get(True, "-")) for size, sides in by_size.items()]
    lines = [what, *([columns(table, ("bytes", "out of place: busbw", "in place: busbw"))] if table else [])]
    if each.peak_busbw_gbps is not None:
        lines.append(f"peak bus bandwidth {each.peak_busbw_gbps:.2f} GB/s")
    lines += [f"error: {error}" for error in each.errors]
    if each.passed:
        lines.append("complete, nothing wrong" if each.checked else "complete, but the data was never checked (option -c 1 does)")
    else:
        lines.append(_why_not(each))
    return "\n".join(lines)


def _why_not(each: NcclTestRun) -> str:
    """Return what is wrong with a run that proves nothing: it failed, or only a part of its output is here."""
    wrong = f"{each.wrong_total} wrong values" if each.wrong_total else ""
    none = "" if each.rows else "no row of results"
    cut = "" if each.complete else "the footer is missing, so the run ended early or its output was cut"
    if each.rows and cut and not wrong and not each.errors:
        return f"INCOMPLETE: {cut}; the {len(each.rows)} results that are here have no wrong value"
    return "FAILED: " + (", ".join(filter(None, (wrong, cut, none))) or "see the errors above")


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.cli import nccl_compare, nccl_result, show_nccl_conf
    from fairlead.cli.json_schema import extended
    from fairlead.measure.nccl_plan import NcclPlan
    from fairlead.nccl.measured_result import MeasuredResult
    from fairlead.nccl.recorded_comparison import RecordedComparison
    from fairlead.nccl.result_key import NodeParts

    plan = {"folder": str, "launches": int, "launches_if_won": int}
    compared = {"tested": bool, "slower": str}

    return {
        "parse, one object per run": extended("ParsedRun", NcclTestRun, without=("checked",)),
        "compare": extended("PrintedComparison", RecordedComparison, compared),
        "compare, of outputs that cannot be compared": nccl_compare.UnusableOutputs,
        "measure": MeasuredResult,
        "measure --dry-run": extended("PrintedPlan", NcclPlan, plan),
        "show": extended("ShownResult", MeasuredResult, {"age_days": float}),
        "use": nccl_result.UsedResult,
        "conf": show_nccl_conf.ShownNcclConf,
        "key": NodeParts,
    }
