"""Prints what `fairlead accept` has measured: a run as a table with a line per node, the list of runs, and a tool's own
output."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from fairlead.cli.output import columns, print_json
from fairlead.errors import ExitCode, InputMissing, UsageError
from fairlead.measure.collective import size_text
from fairlead.measure.results_store import ResultStore
from fairlead.measure.run_judgement import JudgedFigure, MeasuredNode, RunResult, ToolResult, fraction_of_class, load
from fairlead.measure.slurm_jobs import PREFIX, AcceptanceJobs
from fairlead.measure.tool import MeasuredOutcome
from fairlead.model.nodelist import expand, fold
from fairlead.model.plain_text import page

if TYPE_CHECKING:
    from fairlead.measure.acceptance_plan import AcceptancePlan


#: The peak that the profile declares for a figure, and the share of it that was reached.
FigurePeak = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "FigurePeak",
    {
        "value": float,
        "share": float,
        "algorithm": str,
    },
)


class AcceptedFigure(TypedDict):
    """A measured figure. device, bytes: null if the figure is of no device or size. class_median, mad, class_nodes: of the node's
    class, null where it was not compared."""

    name: str
    device: str | None
    bytes: int | None
    value: float
    unit: str
    outcome: MeasuredOutcome | None
    why: str
    class_median: float | None
    mad: float | None
    class_nodes: int | None
    reference: float | None
    notes: Sequence[str]
    peak: NotRequired[FigurePeak]


class AcceptedTool(TypedDict):
    """What one tool measured on a node."""

    tool: str
    outcome: MeasuredOutcome
    why: str
    command: str
    seconds: float
    versions: dict[str, str]
    notes: Sequence[str]
    figures: list[AcceptedFigure]


AcceptedNode = TypedDict(
    "AcceptedNode",
    {
        "node": str,
        "job": int | None,
        "class": str,
        "gpus": str,
        "serials": Sequence[str],
        "driver": str,
        "outcome": MeasuredOutcome,
        "why": str,
        "tools": list[AcceptedTool],
    },
)


class AcceptedRun(TypedDict):
    """A run of `fairlead accept`. ended: null for a run that has not ended."""

    run: str
    began: float
    ended: float | None
    user: str
    fairlead: str
    folder: str
    nodes: list[AcceptedNode]


class RecordedNode(TypedDict):
    """How a node came out of a run."""

    outcome: str | None
    why: str | None


class RecordedRun(TypedDict):
    """A run of the store, and its nodes by name."""

    run: str
    began: float
    ended: float | None
    user: str
    nodes: dict[str, RecordedNode]


EXITS = {
    MeasuredOutcome.PASS: ExitCode.OK,
    MeasuredOutcome.WARN: ExitCode.WARN,
    MeasuredOutcome.FAIL: ExitCode.DRAIN,
    MeasuredOutcome.UNKNOWN: ExitCode.UNKNOWN,
    MeasuredOutcome.ABSENT: ExitCode.UNKNOWN,
}
_MARKS = {MeasuredOutcome.WARN: " !", MeasuredOutcome.FAIL: " !!", MeasuredOutcome.UNKNOWN: " ?"}


def run(args: argparse.Namespace, path: str) -> ExitCode:
    """Do what --show, --history or --cancel asks for, and return the exit code."""
    store = ResultStore(path, make=False)
    try:
        if args.history:
            return _history(store, _wanted(args.nodelist), as_json=args.json)
        if args.cancel:
            return _cancel(store, args)
        name = args.show if args.show != "last" else _last(store)
        if args.raw:
            nodes = sorted(_wanted(args.nodelist))
            if len(nodes) != 1:
                raise UsageError("--raw needs one node", hint="fairlead accept gpu01 --show RUN --raw all_reduce")
            out, err = map(page, store.raw(name, nodes[0], args.raw))
            print(out, end="" if out.endswith("\n") else "\n")
            if err.strip():
                print(f"--- standard error\n{err}", end="" if err.endswith("\n") else "\n")
            return ExitCode.OK
        return show(load(store, name), as_json=args.json, only=_wanted(args.nodelist))
    finally:
        store.close()


def _wanted(nodelist: str) -> set[str]:
    try:
        return set(expand(nodelist)) if nodelist else set()
    except ValueError as e:
        raise UsageError(str(e), hint="such as gpu[01-16]") from None


def _last(store: ResultStore) -> str:
    rows = store.read("SELECT run FROM run ORDER BY began DESC LIMIT 1")
    if not rows:
        raise InputMissing(f"{store.path} holds no run yet", hint="fairlead accept NODELIST measures nodes")
    return str(rows[0][0])


def _history(store: ResultStore, nodes: set[str], *, as_json: bool) -> ExitCode:
    rows = store.read(
        "SELECT run.run, began, ended, user, node, outcome, why FROM run LEFT JOIN node USING (run) ORDER BY began, node"
    )
    runs: dict[str, RecordedRun] = {}
    for name, began, ended, user, node, outcome, why in rows:
        if nodes and node not in nodes:
            continue
        each = runs.setdefault(name, {"run": name, "began": began, "ended": ended, "user": user, "nodes": {}})
        if node is not None:
            each["nodes"][node] = {"outcome": outcome, "why": why}
    if as_json:
        print_json(list(runs.values()))
        return ExitCode.OK
    table = []
    for each in runs.values():
        by_outcome: dict[str, list[str]] = {}
        for node, said in each["nodes"].items():
            by_outcome.setdefault(str(said["outcome"]), []).append(node)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(each["began"]))
        ended = "" if each["ended"] is not None else "; not ended"
        table.append((each["run"], when, each["user"], "; ".join(f"{o}: {fold(n)}" for o, n in by_outcome.items()) + ended))
    print(columns(table, ("RUN", "BEGAN", "USER", "NODES")))
    return ExitCode.OK


def _cancel(store: ResultStore, args: argparse.Namespace) -> ExitCode:
    found = load(store, args.cancel)
    jobs = AcceptanceJobs(conf=args.slurm_conf, bin_dir=args.bin_dir)
    left = [job for job in jobs.seen(PREFIX + found.run) if not job.ended]
    if not args.dry_run:
        jobs.cancel(PREFIX + found.run)
        if found.ended is None:
            store.ended(found.run)
    would = "would be cancelled" if args.dry_run else "cancelled"
    print(f"run {found.run}: {', '.join(f'job {j.id} on {j.node}' for j in left) or 'no job'} {would}")
    return ExitCode.OK


def show(result: RunResult, *, as_json: bool, only: set[str] | None = None) -> ExitCode:
    """Print a run and return the exit code of its worst node. ``only``: the nodes to show, or None or empty for all nodes."""
    nodes = [n for n in result.nodes if not only or n.node in only]
    if not nodes:
        raise InputMissing(f"run {result.run} has none of these nodes")
    worst = RunResult(**{f: getattr(result, f) for f in result.__struct_fields__} | {"nodes": tuple(nodes)}).outcome
    if as_json:
        print_json(_data(result, nodes))
    else:
        print(_text(result, nodes))
    return EXITS[worst]


def _text(result: RunResult, nodes: list[MeasuredNode]) -> str:
    tools = list(dict.fromkeys(step.name for target in result.plan.targets for step in target.steps))
    table = []
    for node in nodes:
        by_tool = {t.tool: t for t in node.tools}
        table.append((node.node, node.outcome, *(_cell(by_tool.get(tool)) for tool in tools)))
    lines = [columns(table, ("NODE", "RESULT", *tools)), ""]
    lines += [f"{node.node}: {node.outcome}{f': {node.why}' if node.why else ''}" for node in nodes]
    notes: dict[str, list[str]] = {}
    for node in nodes:
        for tool in node.tools:
            for text in (*tool.notes, *_notes(tool)):
                notes.setdefault(f"{tool.tool}: {text}", []).append(node.node)
    lines += [f"note: {text} ({fold(set(names))})" for text, names in notes.items()]
    lines += _peaks(result.plan, nodes)
    ended = "" if result.ended is not None else f"; it has not ended: fairlead accept --resume {result.run}"
    lines.append(f"run {result.run} of {result.user}, {len(nodes)} nodes{ended}")
    return "\n".join(lines)


def _cell(tool: ToolResult | None) -> str:
    """Return a tool's result on a node in a few words: its lowest figure, or its outcome."""
    if tool is None:
        return "-"
    if not tool.figures:
        return tool.why if tool.said is MeasuredOutcome.ABSENT else tool.outcome
    lowest = _lowest(tool)
    return f"{lowest.figure.value:.4g} {lowest.figure.unit}{_MARKS.get(tool.outcome, '')}"


def _lowest(tool: ToolResult) -> JudgedFigure:
    """Return the figure that decides a tool's outcome: of the figures with this outcome, the lowest compared with its class."""
    judged = [f for f in tool.figures if f.judgement is not None and f.judgement.outcome is tool.outcome]
    return min(judged or tool.figures, key=lambda f: fraction_of_class(f.figure, f.judgement))


def _notes(tool: ToolResult) -> list[str]:
    return list(dict.fromkeys(note for f in tool.figures if f.judgement for note in f.judgement.notes))


def _peaks(plan: AcceptancePlan, nodes: list[MeasuredNode]) -> list[str]:
    """Return lines on the reached fraction of the theoretical peak, lowest and highest over the nodes. The fraction is not
    judged."""
    peaks = {p.measure: p for target in plan.targets for p in target.peaks}
    seen: dict[str, list[float]] = {}
    sizes: dict[str, set[int]] = {}
    for node in nodes:
        for tool in node.tools:
            for each in tool.figures:
                measure = f"{tool.tool}.{each.figure.name}"
                if measure in peaks and peaks[measure].unit == each.figure.unit:
                    seen.setdefault(measure, []).append(each.figure.value / peaks[measure].value)
                    sizes.setdefault(measure, set()).add(each.figure.bytes)
    lines = []
    for measure, shares in seen.items():
        peak, low, high = peaks[measure], f"{min(shares):.0%}", f"{max(shares):.0%}"
        size = f" at {size_text(max(sizes[measure]))}" if max(sizes[measure]) else ""
        share = low if low == high else f"{low} to {high}"
        lines.append(f"info: {measure}{size}: {share} of the theoretical {peak.value:g} {peak.unit} ({peak.algorithm})")
    return lines


def _data(result: RunResult, nodes: list[MeasuredNode]) -> AcceptedRun:
    peaks = {t.node: {p.measure: p for p in t.peaks} for t in result.plan.targets}
    return {
        "run": result.run,
        "began": result.began,
        "ended": result.ended,
        "user": result.user,
        "fairlead": result.fairlead,
        "folder": result.folder,
        "nodes": [
            {
                "node": node.node,
                "job": node.job,
                "class": node.class_name,
                "gpus": node.kind,
                "serials": node.serials,
                "driver": node.driver,
                "outcome": node.outcome,
                "why": node.why,
                "tools": [
                    {
                        "tool": tool.tool,
                        "outcome": tool.outcome,
                        "why": tool.why,
                        "command": tool.command,
                        "seconds": tool.seconds,
                        "versions": tool.versions,
                        "notes": tool.notes,
                        "figures": [_figure(tool.tool, f, peaks.get(node.node, {})) for f in tool.figures],
                    }
                    for tool in node.tools
                ],
            }
            for node in nodes
        ],
    }


def _figure(tool: str, each: JudgedFigure, peaks: dict[str, Any]) -> AcceptedFigure:
    figure, judgement = each.figure, each.judgement
    peak = peaks.get(f"{tool}.{figure.name}")
    data: AcceptedFigure = {
        "name": figure.name,
        "device": figure.device or None,
        "bytes": figure.bytes or None,
        "value": figure.value,
        "unit": figure.unit,
        "outcome": judgement.outcome if judgement else None,
        "why": judgement.why if judgement else "not judged: the run ended before",
        "class_median": judgement.median if judgement else None,
        "mad": judgement.mad if judgement else None,
        "class_nodes": judgement.nodes if judgement else None,
        "reference": judgement.reference if judgement else None,
        "notes": judgement.notes if judgement else [],
    }
    if peak is not None and peak.unit == figure.unit:
        data["peak"] = {"value": peak.value, "share": round(figure.value / peak.value, 4), "algorithm": peak.algorithm}
    return data
