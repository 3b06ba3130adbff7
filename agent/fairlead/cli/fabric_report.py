"""Prints what ``fairlead accept --fabric`` found: a run, a recorded table, the list of runs, what differs between two runs."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NotRequired, TypedDict

from msgspec import Struct

from fairlead import config
from fairlead.cli.accept_text import EXITS
from fairlead.cli.fabric_drain import drain_failed, failed_nodes
from fairlead.cli.fabric_facts import rails_at
from fairlead.cli.input_files import text_if_there, text_of
from fairlead.cli.output import columns, print_json
from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import DataError, ExitCode, HostError, InputMissing, SlurmError
from fairlead.measure.fabric_jobs import FabricJobs
from fairlead.measure.fabric_store import FabricRecord, FabricStore
from fairlead.measure.pairs import fabric_text, heat_map, leaf_file, pair_csv
from fairlead.measure.pairs.fabric_text import JudgedFabric
from fairlead.measure.pairs.fabric_verdict import FabricVerdict, PairLimits, PartKind
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, PairValue, unknown_leaves
from fairlead.measure.pairs.port_report import evidence, rises
from fairlead.measure.pairs.rail_ends import NodeRails, rail_ends
from fairlead.measure.tool import MeasuredOutcome
from fairlead.model.nodelist import fold, in_order

FILE_BYTES = 64 << 20


class JudgedTable(Struct, frozen=True, kw_only=True):
    """Holds a judged table, and the stored run that it comes from, or None for a recorded table."""

    verdict: FabricVerdict
    leaves: Leaves
    values: Sequence[PairValue]
    limits: PairLimits
    record: FabricRecord | None = None

    @property
    def run(self) -> str:
        return self.record.plan.run if self.record is not None else ""


def limits_of(args: argparse.Namespace, options: AcceptOptions) -> PairLimits:
    """Return the limits from the command line, else from the site. Raises UsageError."""
    limits = PairLimits(
        fail=args.fail_below,
        warn=args.warn_below,
        reference_gbps=args.expect or options.pair_gbps or None,
        rail_reference_gbps=args.expect_rail or options.rail_gbps or None,
    )
    limits.check()
    return limits


def leaves_at(path: str, nodes: Sequence[str], jobs: FabricJobs | None) -> Leaves:
    """Return the leaf of each node from the file, from slurmctld, or unknown. Raises DataError, InputMissing."""
    if path and os.path.isdir(path):
        return leaf_file.read_lldp(_lldp(path), path, nodes)
    if path:
        return leaf_file.read(_text(path), path, nodes)
    if jobs is None:
        return unknown_leaves(nodes)
    try:
        groups = {group.name: group.nodes for group in jobs.topology() if group.nodes & set(nodes)}
        if groups:
            return leaf_file.leaves_of(groups, nodes, LeafSource.DISCOVERED, "slurmctld")
    except (SlurmError, DataError) as e:
        print(f"slurmctld's topology cannot be used: {e}", file=sys.stderr)
    return unknown_leaves(nodes)


def _lldp(path: str) -> dict[str, str]:
    names = sorted(name for name in os.listdir(path) if name.endswith(".json"))
    return {name.removesuffix(".json"): _text(os.path.join(path, name)) for name in names}


def _text(path: str) -> str:
    text = text_if_there(path, FILE_BYTES)
    if text is None:
        raise InputMissing(f"{path}: No such file or directory", hint="check that it exists and that you may read it")
    return text


def switch_ports_at(path: str, nodes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return by node, and by HCA or interface, the switch and its port, from the file about the topology if it has them."""
    if path and os.path.isdir(path):
        return leaf_file.switch_ports_by_lldp(_lldp(path), nodes)
    return leaf_file.switch_ports(_text(path), path, nodes) if path else {}


def judge_table(args: argparse.Namespace, site: config.Site | None) -> ExitCode:
    """Judge a recorded table. Raises DataError, InputMissing, UsageError."""
    values = pair_csv.parse(text_of(args.judge, FILE_BYTES), args.judge)
    nodes = in_order({node for v in values for node in v.pair})
    leaves = leaves_at(args.topology, nodes, None)
    limits = limits_of(args, AcceptOptions())
    ends = rail_ends(values, rails_at(args.facts, nodes), switch_ports_at(args.topology, nodes))
    gone = pair_csv.went_down(values)
    verdict = judge(values, leaves, limits, gone, ends)
    return _print(args, site, JudgedTable(verdict=verdict, leaves=leaves, values=values, limits=limits))


def show(args: argparse.Namespace, site: config.Site | None, store: FabricStore) -> ExitCode:
    """Print a stored run: the one that is named, or the last one."""
    runs = store.runs()
    if args.show == "last" and not runs:
        raise InputMissing(
            f"{store.store.path} has no run over the fabric", hint="fairlead accept --fabric NODELIST measures one"
        )
    return report(args, site, store, args.show if args.show != "last" else runs[-1])


class PrintedFabricRun(JudgedFabric):
    """A judged table of pairs. The keys from run on are there if fairlead measured it. ports: how much the counters rose.
    drained: with --drain, what each drain came to, by node."""

    run: NotRequired[str]
    began: NotRequired[float]
    ended: NotRequired[float | None]
    user: NotRequired[str]
    left_out: NotRequired[dict[str, str]]
    ports: NotRequired[dict[str, dict[str, dict[str, int]]]]
    cables: NotRequired[dict[str, dict[str, str]]]
    switch_ports: NotRequired[dict[str, dict[str, str]]]
    drained: NotRequired[dict[str, str]]


class ComparedFabricRuns(TypedDict):
    """Two runs, and what differs, in words."""

    first: str
    second: str
    differences: list[str]


class RecordedFabricRun(TypedDict):
    """A run of the store. ended: null for a run that did not end. guilty: the parts that failed, in words."""

    run: str
    began: float
    ended: float | None
    user: str
    nodes: str
    outcome: str
    guilty: str


def report(args: argparse.Namespace, site: config.Site | None, store: FabricStore, run: str) -> ExitCode:
    """Judge and print a run, and drain its failed nodes if --drain asks for it."""
    record = store.load(run)
    return _print(args, site, _judged(record, rails_at(args.facts, record.plan.nodes)), store)


def _judged(record: FabricRecord, facts: Mapping[str, NodeRails] | None = None) -> JudgedTable:
    plan = record.plan
    rails = {node: ports.rails for node, ports in record.ports[0].items()} | dict(facts or {})
    ends = rail_ends(record.values, rails, plan.switch_ports)
    verdict = judge(record.values, plan.leaves, plan.limits, record.gone, ends)
    return JudgedTable(verdict=verdict, leaves=plan.leaves, values=record.values, limits=plan.limits, record=record)


def _cleared(record: FabricRecord, nodes: Collection[str], store: FabricStore | None) -> dict[str, str]:
    """Return those of the nodes that failed in a run, and did not fail in the last newer run that judged them, and why."""
    found: dict[str, str] = {}
    if store is None or not nodes:
        return found
    runs = store.runs()
    for name in runs[runs.index(record.plan.run) + 1 :]:
        for node, judged in _judged(store.load(name)).verdict.nodes.items():
            if node in nodes and judged.outcome is MeasuredOutcome.FAIL:
                found.pop(node, None)
            elif node in nodes and judged.outcome is not MeasuredOutcome.UNKNOWN:
                found[node] = f"run {name}, which is newer, says {judged.outcome}"
    return found


def _print(args: argparse.Namespace, site: config.Site | None, table: JudgedTable, store: FabricStore | None = None) -> ExitCode:
    verdict, leaves, values = table.verdict, table.leaves, table.values
    title = f"Pairs of nodes{f', run {table.run}' if table.run else ''}"
    if args.svg:
        _write(args.svg, heat_map.draw(values, leaves, verdict, table.limits, title))
    if args.html:
        _write(args.html, heat_map.page(values, leaves, verdict, table.limits, title))
    if args.csv:
        _write(args.csv, pair_csv.render(values, verdict.named(PartKind.GONE)))
    drained = {}
    if args.drain and table.record is not None:
        cleared = _cleared(table.record, failed_nodes(verdict), store)
        drained = drain_failed(verdict, table.record, site, cleared=cleared, program=args.ssh, dry_run=args.dry_run)
    if args.json:
        data = fabric_text.as_data(verdict, leaves, values)
        print_json(data | _record_data(table.record) | ({"drained": drained} if args.drain else {}))
        return EXITS[verdict.outcome]
    for line in fabric_text.lines(verdict, leaves, values):
        counters = _counters(line.partition(":")[0], table.record)
        print(f"{line}; {counters}" if counters else line)
    for node, why in (table.record.left_out if table.record is not None else {}).items():
        print(f"note: {node} was left out: {why}")
    for node, said in drained.items():
        print(f"{node}: {said}")
    if table.record is not None:
        ended = "" if table.record.complete else "; it was cancelled before its last round"
        if table.record.ended is None:
            ended = f"; it has not ended: fairlead accept --fabric --resume {table.run}"
        print(f"run {table.run} of {table.record.user}{ended}")
    return EXITS[verdict.outcome]


def _record_data(record: FabricRecord | None) -> dict[str, object]:
    if record is None:
        return {}
    return {
        "run": record.plan.run,
        "began": record.began,
        "ended": record.ended,
        "user": record.user,
        "left_out": {**record.plan.left_out, **record.left_out},
        "ports": _rises(record),
        "cables": {node: ports.cables for node, ports in record.ports[0].items()},
        "switch_ports": record.plan.switch_ports,
    }


def _rises(record: FabricRecord) -> dict[str, dict[str, dict[str, int]]]:
    """Return by node and port how much the counters rose in the run."""
    before, after = record.ports
    return {node: rises(before[node], after[node]) for node in after if node in before}


def _counters(node: str, record: FabricRecord | None) -> str:
    """Return the counters of a guilty node's ports in words, or ""."""
    if record is None or node not in record.ports[0]:
        return ""
    cables: Mapping[str, str] = record.ports[0][node].cables
    return evidence(node, _rises(record), cables, record.plan.switch_ports.get(node, {}))


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise HostError(f"{path}: {e.strerror}") from None


def compare(args: argparse.Namespace, store: FabricStore) -> ExitCode:
    """Print what differs between two runs."""
    first, second = (_judged(store.load(name)) for name in args.compare)
    found = fabric_text.compared(first.verdict, second.verdict, first.values, second.values)
    if args.json:
        print_json(ComparedFabricRuns(first=args.compare[0], second=args.compare[1], differences=list(found)))
    else:
        print("\n".join(found))
    return ExitCode.OK


def history(args: argparse.Namespace, store: FabricStore) -> ExitCode:
    """Print the list of runs."""
    data: list[RecordedFabricRun] = []
    rows = []
    for name in store.runs():
        record = store.load(name)
        verdict, nodes = _judged(record).verdict, fold(record.plan.nodes)
        names = ", ".join(f"{part.kind} {part.name}".strip() for part in verdict.parts)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.began))
        data.append(
            RecordedFabricRun(
                run=name,
                began=record.began,
                ended=record.ended,
                user=record.user,
                nodes=nodes,
                outcome=verdict.outcome,
                guilty=names,
            )
        )
        ended = "" if record.ended is not None else "; not ended"
        rows.append((name, when, record.user, nodes, f"{verdict.outcome}{f': {names}' if names else ''}{ended}"))
    if args.json:
        print_json(data)
    else:
        print(columns(rows, ("RUN", "BEGAN", "USER", "NODES", "RESULT")))
    return ExitCode.OK
