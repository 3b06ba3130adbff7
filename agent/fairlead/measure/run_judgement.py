"""Judges a run at its end: compares each figure with those of the other nodes of the class, in this run and in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import DataError, InputMissing
from fairlead.measure.acceptance_plan import AcceptancePlan, PlannedNode
from fairlead.measure.collective import size_text
from fairlead.measure.judge_figure import Class, Judgement, class_of, judge, medians_of_others
from fairlead.measure.results_store import Kind, ResultStore
from fairlead.measure.tool import Figure, MeasuredOutcome, worst
from fairlead.model.isolated import isolated
from fairlead.model.json_text import NOT_JSON

WHYS_MAX = 3


class JudgedFigure(Struct, frozen=True, kw_only=True):
    """Holds a figure and its judgement, which is None if the run ended before the figure was judged."""

    figure: Figure
    judgement: Judgement | None


class ToolResult(Struct, frozen=True, kw_only=True):
    """Holds the result of one tool on one node. ``said``: the outcome by the tool's output alone."""

    tool: str
    said: MeasuredOutcome
    why: str
    command: str
    seconds: int
    notes: tuple[str, ...]
    versions: dict[str, str]
    figures: tuple[JudgedFigure, ...]

    @property
    def outcome(self) -> MeasuredOutcome:
        """Return the worst of ``said`` and the outcomes of the figures, which are UNKNOWN until they are judged."""
        return worst((self.said, *(f.judgement.outcome if f.judgement else MeasuredOutcome.UNKNOWN for f in self.figures)))


class MeasuredNode(Struct, frozen=True, kw_only=True):
    node: str
    job: int | None
    class_name: str
    kind: str
    driver: str
    outcome: MeasuredOutcome
    why: str
    serials: tuple[str, ...]
    tools: tuple[ToolResult, ...]


class RunResult(Struct, frozen=True, kw_only=True):
    run: str
    began: float
    ended: float | None
    user: str
    folder: str
    fairlead: str
    plan: AcceptancePlan
    nodes: tuple[MeasuredNode, ...]

    @property
    def outcome(self) -> MeasuredOutcome:
        return worst(tuple(n.outcome for n in self.nodes))


def load(store: ResultStore, run: str) -> RunResult:
    """Return a run as the store has it. Raises InputMissing, DataError, HostError."""
    rows = store.read("SELECT run, began, ended, user, folder, fairlead, plan FROM run WHERE run = ?", (run,))
    if not rows:
        raise InputMissing(f"{store.path} has no run {run}", hint="fairlead accept --history lists them")
    name, began, ended, user, folder, version, packed = rows[0]
    try:
        plan = msgspec.json.decode(packed, type=AcceptancePlan)
    except NOT_JSON as e:
        raise DataError(f"{store.path}: the plan of run {run} cannot be read: {e}") from None
    nodes = store.read("SELECT node, job, class, kind, driver, outcome, why FROM node WHERE run = ?", (run,))
    order = {t.node: at for at, t in enumerate(plan.targets)}
    made = [_node(store, run, row) for row in sorted(nodes, key=lambda row: order.get(row[0], len(order)))]
    return RunResult(run=name, began=began, ended=ended, user=user, folder=folder, fairlead=version, plan=plan, nodes=tuple(made))


def _node(store: ResultStore, run: str, row: tuple[Any, ...]) -> MeasuredNode:
    node, job, class_name, kind, driver, outcome, why = row
    figures: dict[str, list[JudgedFigure]] = {}
    for tool, name, size, device, value, unit, word, text, median, mad, nodes, reference, notes in store.read(
        "SELECT tool, name, bytes, device, value, unit, outcome, why, median, mad, nodes, reference, notes FROM figure"
        " WHERE run = ? AND node = ? ORDER BY tool, name, bytes, length(device), device",
        (run, node),
    ):
        judgement = None
        if word is not None:
            judgement = Judgement(
                outcome=MeasuredOutcome(word),
                why=text,
                median=median,
                mad=mad,
                nodes=nodes,
                reference=reference,
                notes=tuple(msgspec.json.decode(notes)),
            )
        figure = Figure(name=name, value=value, unit=unit, device=device, bytes=size)
        figures.setdefault(tool, []).append(JudgedFigure(figure=figure, judgement=judgement))
    tools = []
    for tool, command, word, text, notes, seconds, versions in store.read(
        "SELECT tool, command, outcome, why, notes, seconds, versions FROM result WHERE run = ? AND node = ?", (run, node)
    ):
        tools.append(
            ToolResult(
                tool=tool,
                said=MeasuredOutcome(word),
                why=text,
                command=command,
                seconds=seconds,
                notes=tuple(msgspec.json.decode(notes)),
                versions=msgspec.json.decode(versions),
                figures=tuple(figures.get(tool, ())),
            )
        )
    serials = store.read("SELECT serial FROM gpu WHERE run = ? AND node = ? ORDER BY number", (run, node))
    return MeasuredNode(
        node=node,
        job=job,
        class_name=class_name,
        kind=kind,
        driver=driver,
        outcome=MeasuredOutcome(outcome),
        why=why,
        serials=tuple(s for (s,) in serials),
        tools=tuple(tools),
    )


def judge_run(store: ResultStore, run: str) -> RunResult:
    """Judge every node of a run, and store the judgements. Raises InputMissing, DataError, HostError."""
    result = load(store, run)
    targets = {t.node: t for t in result.plan.targets}
    names = [n.node for n in result.nodes]
    here = _measured(result.nodes)
    stored: dict[tuple[str, ...], dict[Kind, dict[str, list[float]]]] = {}
    for node in result.nodes:
        if not node.tools:
            continue  # its job gave no result, so its row in the store is not changed
        there = {}
        for tool in node.tools:
            key = (node.class_name, node.kind, node.driver, tool.tool, tool.command)
            if key not in stored:
                class_name, kind, driver, name, command = key
                stored[key] = store.siblings(
                    without=names, class_name=class_name, kind=kind, driver=driver, tool=name, command=command
                )
            there[tool.tool] = stored[key]
        outcome, why, judgements = _judged(node, targets[node.node], here, there)
        store.judged(run, node.node, outcome, why, judgements)
    store.ended(run)
    return load(store, run)


#: Figures of a run by class, GPUs, tool, command and kind, then by node.
Measured = dict[tuple[str, str, str, str, Kind], dict[str, list[float]]]


def _measured(nodes: Sequence[MeasuredNode]) -> Measured:
    """Return the figures that other nodes are compared with."""
    found: Measured = {}
    for node in nodes:
        for tool in node.tools:
            for kind, figures in _by_kind(tool).items() if _sound(tool) else ():
                key = (node.class_name, node.kind, tool.tool, tool.command, kind)
                found.setdefault(key, {})[node.node] = [f.value for f in figures]
    return found


def _by_kind(tool: ToolResult) -> dict[Kind, list[Figure]]:
    found: dict[Kind, list[Figure]] = {}
    for each in tool.figures:
        found.setdefault((each.figure.name, each.figure.bytes, each.figure.unit), []).append(each.figure)
    return found


Judgements = dict[tuple[str, Figure], Judgement]


def _judged(
    node: MeasuredNode, target: PlannedNode, here: Measured, there: Mapping[str, Mapping[Kind, Mapping[str, list[float]]]]
) -> tuple[MeasuredOutcome, str, Judgements]:
    """Return a node's outcome, the reason for it, and the judgement of each figure. An unexpected error makes only this node's
    outcome UNKNOWN."""

    def each() -> tuple[MeasuredOutcome, str, Judgements]:
        judgements: Judgements = {}
        for tool in node.tools:
            for kind, figures in _by_kind(tool).items():
                beside = here.get((node.class_name, node.kind, tool.tool, tool.command, kind), {})
                siblings = [values for name, values in beside.items() if name != node.node]
                siblings += there[tool.tool].get(kind, {}).values()
                judgements.update(_alike(target, tool.tool, figures, class_of(siblings)))
        outcome, why = verdict(node, target, judgements)
        return outcome, why, judgements

    return isolated(each, lambda why: (MeasuredOutcome.UNKNOWN, f"not judged: {why}", {}))


def _alike(target: PlannedNode, tool: str, figures: Sequence[Figure], others: Class) -> Judgements:
    """Judge the figures of one kind of a node's devices. All are compared with the same class and reference, and each with the
    figures of the node's other devices."""
    beside = medians_of_others([f.value for f in figures])
    reference, without = reference_of(target, tool, figures[0])
    found: Judgements = {}
    for figure, own in zip(figures, beside, strict=True):
        found[tool, figure] = judge(figure.value, siblings=others, own=own, reference=reference, no_reference=without)
    return found


def _sound(tool: ToolResult) -> bool:
    """Say whether the tool itself found nothing wrong. Other nodes are then compared with its figures, even if these figures are
    judged to be bad."""
    return tool.said in (MeasuredOutcome.PASS, MeasuredOutcome.WARN)


def reference_of(target: PlannedNode, tool: str, figure: Figure) -> tuple[float | None, str]:
    """Return the profile's reference for a figure, or None and the reason why the profile has none."""
    fits = [r for r in target.references if r.measure == f"{tool}.{figure.name}" and r.unit == figure.unit]
    for r in fits:
        if r.bytes in (0, figure.bytes):
            return r.value, ""
    if fits:
        return None, f"the profile's reference is for {size_text(fits[0].bytes)}, not for {size_text(figure.bytes)}"
    return None, f"profile {target.profile} has no reference" if target.profile else "no profile is declared"


def verdict(
    node: MeasuredNode, target: PlannedNode, judgements: Mapping[tuple[str, Figure], Judgement]
) -> tuple[MeasuredOutcome, str]:
    """Return the node's outcome, and in one line the reasons for it. Of each tool, the line names the worst figure and the number
    of other figures with the same outcome."""
    said: list[tuple[MeasuredOutcome, str]] = []
    for tool in node.tools:
        if tool.said is MeasuredOutcome.ABSENT:
            said.append(
                (MeasuredOutcome.UNKNOWN if tool.tool in target.needed else MeasuredOutcome.ABSENT, f"{tool.tool}: {tool.why}")
            )
            continue
        said.append((tool.said, f"{tool.tool}: {tool.why}"))
        by_outcome: dict[MeasuredOutcome, list[tuple[Figure, Judgement]]] = {}
        for (name, figure), judgement in judgements.items():
            if name == tool.tool:
                by_outcome.setdefault(judgement.outcome, []).append((figure, judgement))
        for outcome, all_of_it in by_outcome.items():
            figure, judgement = min(all_of_it, key=lambda pair: fraction_of_class(*pair))
            more = f" (and {len(all_of_it) - 1} more figures)" if len(all_of_it) > 1 else ""
            said.append((outcome, f"{tool.tool} {figure_text(figure)}: {judgement.why}{more}"))
    known = tuple(o for o, _ in said if o is not MeasuredOutcome.ABSENT)
    outcome = worst(known)
    if outcome is MeasuredOutcome.PASS:
        return outcome, ""
    whys = [text for o, text in said if o is outcome] or ["nothing was measured"]
    rest = f"; and {len(whys) - WHYS_MAX} more" if len(whys) > WHYS_MAX else ""
    return outcome, "; ".join(whys[:WHYS_MAX]) + rest


def fraction_of_class(figure: Figure, judgement: Judgement | None) -> float:
    """Return the figure as a fraction of the class median, so that figures of several kinds can be sorted. Without a median it is
    a fraction of the reference. Without a reference it is the value itself."""
    to = (judgement.median or judgement.reference) if judgement else None
    return figure.value / (to or 1)


def figure_text(figure: Figure) -> str:
    """Return a figure as text, such as ``busbw at 16 GiB 470.2 GB/s``."""
    size = f" at {size_text(figure.bytes)}" if figure.bytes else ""
    device = f" {figure.device}" if figure.device else ""
    return f"{figure.name}{device}{size} {figure.value:.4g} {figure.unit}"
