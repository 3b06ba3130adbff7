"""Read outputs of nccl-tests, and show what /etc/nccl.conf should say on a node.

fairlead nccl parse FILE     read an output of all_reduce_perf or another *_perf, as text or as JSON (-J); - for standard input
fairlead nccl conf           show the file of this node, or of a machine tree (--root), with a reason for each line; write nothing

Exit codes of parse: 0 every run is complete and right, 1 every run is complete but the data of a run was never checked, 2 a run
has a wrong value, failed, or is incomplete. The command does not judge speed. Exit codes of conf: 0 the file is shown, 78 a
problem on the node prevents a new file.
"""

from __future__ import annotations

import argparse

import msgspec

from fairlead.cli.input_files import text_of
from fairlead.cli.output import columns
from fairlead.errors import DataError, ExitCode, UsageError
from fairlead.nccl.results import NcclTestRun, parse

SIZE_MAX = 64 << 20  # bytes; -I with -J of many ranks makes a few MiB


def register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["parse", "conf"], help="parse: read an output of nccl-tests; conf: show nccl.conf")
    parser.add_argument("file", metavar="FILE", nargs="?", default="", help="parse: the output; - for standard input")
    parser.add_argument("--json", action="store_true", help="parse: one JSON object per run; conf: one object")
    parser.add_argument("--root", default="/", metavar="TREE", help="conf: read a machine tree instead of this machine")
    parser.add_argument("--document", default="", metavar="FILE", help="conf: the node's document (default: the machine's own)")
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAME",
        help="conf: use this fabric profile or hardware profile instead of a document; may be repeated for one of each",
    )


def run(args: argparse.Namespace) -> ExitCode:
    if args.what == "conf":
        from fairlead.cli.show_nccl_conf import conf

        if args.file:
            raise UsageError("nccl conf takes no FILE", hint="a machine tree: --root TREE; a document: --document FILE")
        return conf(args)
    if not args.file:
        raise UsageError("nccl parse needs a FILE", hint="- for standard input")
    text = text_of(args.file, SIZE_MAX)
    try:
        runs = parse(text)
    except DataError as e:
        raise DataError(f"{'standard input' if args.file == '-' else args.file}: {e}", hint=e.hint) from None
    for number, each in enumerate(runs):
        if args.json:
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
