"""Shows the nodes of one job side by side, and what their comparison says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypedDict

from fairlead.cli.output import columns
from fairlead.controller.slow_node_input import signs_of
from fairlead.fleet.slow_node_rule import SIGNALS, Deviation, NodeSigns, NodesJudgement, judged
from fairlead.jobs.usage_merge import JobReport
from fairlead.model.plain_text import one_line

SHOWN = 128
_SIGNAL = {signal.name: signal for signal in SIGNALS}
_HEAD = {
    "clock": "CLOCK MHz",
    "throttle": "SLOWED %",
    "utilisation": "UTIL %",
    "activity": "SM %",
    "power": "POWER W",
    "cpu_pressure": "CPU-P %",
    "io_pressure": "IO-P %",
    "memory_pressure": "MEM-P %",
    "link_errors": "ERR/h",
    "queue_drops": "DROP/h",
    "retransmits": "RETX/h",
}


def nodes_text(report: JobReport) -> str:
    """Return the table of the job's nodes and the judgement."""
    nodes = signs_of(report.run.nodes, report.records)
    found = judged(nodes)
    accused = {each.node for each in found.accused}
    rows = [_row(node, node.node in accused) for node in nodes[:SHOWN]]
    more = [f"and {len(nodes) - SHOWN} more nodes (--json has all)"] if len(nodes) > SHOWN else []
    head = f"job {report.run.label}  {report.run.state}  {len(nodes)} nodes: medians so far, lowest to highest of a node's GPUs"
    table = columns(rows, ("NODE", "READINGS", *_HEAD.values()))
    return "\n".join([head, table, *more, "", *judgement_lines(found)])


class NodesData(TypedDict):
    """The nodes of a job, and how they compare."""

    job: str
    nodes: list[NodeSigns]
    judgement: NodesJudgement


def nodes_data(report: JobReport) -> NodesData:
    """Return the same as values for JSON."""
    nodes = signs_of(report.run.nodes, report.records)
    return {
        "job": report.run.label,
        "nodes": list(nodes),
        "judgement": judged(nodes),
    }


def _row(node: NodeSigns, accused: bool) -> Sequence[str]:
    cells = []
    for name in _HEAD:
        values = [gpu[name] for gpu in node.gpus.values() if name in gpu] if _SIGNAL[name].of_gpu else []
        values += [node.host[name]] if name in node.host else []
        low, high = (f"{min(values):.0f}", f"{max(values):.0f}") if values else ("-", "-")
        cells.append(low if low == high else f"{low}-{high}")
    return (one_line(node.node) + (" *" if accused else ""), str(node.readings) if node.readings else "-", *cells)


def judgement_lines(found: NodesJudgement) -> Iterator[str]:
    """Yield what the comparison says, and what it could have seen."""
    for each in found.accused:
        where = f" (GPU {each.gpu})" if each.gpu else ""
        yield f"{each.cause}: {one_line(each.node)}{where}: {' and '.join(_deviation(d) for d in each.evidence)}"
    if not found.accused and found.uneven:
        yield "uneven work in the job, no node is accused"
    elif not found.accused and found.least:
        yield "no node differs from its peers"
    elif not found.accused:
        yield "the nodes were not compared"
    for deviation in found.uneven[:8]:
        where = f" GPU {deviation.gpu}" if deviation.gpu else ""
        yield f"  {one_line(deviation.node)}{where}: {_deviation(deviation)} (alone this accuses nobody)"
    if len(found.uneven) > 8:
        yield f"  and {len(found.uneven) - 8} more values that differ"
    for why in sorted(set(found.not_judged.values())):
        names = [node for node, reason in found.not_judged.items() if reason == why]
        yield f"not compared: {', '.join(map(one_line, names[:8]))}{' ...' if len(names) > 8 else ''}: {why}"
    if found.least:
        yield f"would have been seen: {', '.join(_least(name, found) for name in found.least)}"
    yield "A report only: fairlead drains and excludes nobody because of it."


def _deviation(deviation: Deviation) -> str:
    signal = _SIGNAL[deviation.signal]
    unit = "%" if signal.unit == "points" else signal.unit
    return f"{signal.words} {deviation.value:.0f} {unit}, its peers {deviation.peers:.0f} {unit}"


def _least(name: str, found: NodesJudgement) -> str:
    signal, least = _SIGNAL[name], found.least[name]
    if signal.relative and found.peers.get(name):
        return f"{signal.words} {100 * least / found.peers[name]:.0f} % {'lower' if signal.slow == 'low' else 'off'}"
    direction = {"low": "lower", "high": "higher"}.get(signal.slow, "off")
    return f"{signal.words} {least:.0f} {signal.unit} {direction}"
