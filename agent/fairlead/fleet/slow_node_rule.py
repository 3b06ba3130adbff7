"""Says which node of one job is slower than its peers, and why, or that nobody can be accused.

The medians of a node are compared only with those of like nodes in the same job, and those of a GPU only with the GPUs of the
same local index. A node is accused if two independent signals of one pattern deviate. What differs without such a pattern is
uneven work: the slowest rank of a synchronous job is the busiest, and its peers wait, so that no single value tells who is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field

from fairlead.fleet.small_group_statistics import GROUP_MIN, GroupComparison, compared, few, median

#: The median of so many readings is compared. Single readings name somebody in each job.
READINGS_MIN = 8
Side = Literal["high", "low"]


class Signal(Struct, frozen=True, kw_only=True):
    """Describes one measured value. slow: the side on which a value is a sign of slowness; "" if either side is only uneven work.

    floor: a smaller distance is not reported. relative: floor is a part of the group's median, otherwise it has the value's unit.
    of_gpu: each GPU has the value, otherwise the node.
    """

    name: str
    words: str
    unit: str
    floor: float
    slow: Side | Literal[""] = ""
    relative: bool = False
    of_gpu: bool = False


#: In percent if the unit is "points". Errors and retransmissions are counts for each hour.
SIGNALS = (
    Signal(name="clock", words="SM clock under load", unit="MHz", slow="low", floor=0.04, relative=True, of_gpu=True),
    Signal(name="throttle", words="time with slowed clocks", unit="points", slow="high", floor=5.0, of_gpu=True),
    Signal(name="utilisation", words="utilisation", unit="points", slow="low", floor=10.0, of_gpu=True),
    Signal(name="activity", words="SM activity", unit="points", floor=10.0, of_gpu=True),
    Signal(name="power", words="power", unit="W", floor=0.1, relative=True, of_gpu=True),
    Signal(name="cpu_pressure", words="CPU pressure", unit="points", slow="high", floor=15.0),
    Signal(name="io_pressure", words="I/O pressure", unit="points", slow="high", floor=15.0),
    Signal(name="memory_pressure", words="memory pressure", unit="points", slow="high", floor=10.0),
    Signal(name="link_errors", words="errors of the network ports", unit="1/h", slow="high", floor=20.0),
    Signal(name="queue_drops", words="packets that its own interfaces dropped", unit="1/h", slow="high", floor=1000.0),
    Signal(name="retransmits", words="retransmissions", unit="1/h", slow="high", floor=1000.0),
)


class SlowPattern(Struct, frozen=True, kw_only=True):
    """Describes a cause by the signals that must deviate: one of each entry of ``needs``, on the same GPU or on its node.

    unless: the node is not accused if one of these deviates to this side ("" is either side).
    """

    cause: str
    needs: tuple[tuple[str, ...], ...]
    unless: tuple[tuple[str, Side | Literal[""]], ...] = ()


PATTERNS = (
    SlowPattern(cause="slow GPU", needs=(("clock",), ("throttle",)), unless=(("activity", "low"),)),
    SlowPattern(cause="slow host", needs=(("utilisation",), ("cpu_pressure", "io_pressure", "memory_pressure"))),
    SlowPattern(
        cause="slow network link",
        needs=(("retransmits",), ("link_errors", "queue_drops")),
        unless=(("clock", "low"), ("utilisation", "low")),
    ),
)


class NodeSigns(Struct, frozen=True, kw_only=True):
    """Holds the values of one node of a job: its own, and those of its GPUs by local index. An unknown value is not there.

    kind: only nodes of the same kind are compared (GPU model, number of GPUs, or a role that is known). readings: how many
    readings the medians are of. lacking: why values are not there, or "".
    """

    node: str
    kind: str = ""
    host: Mapping[str, float] = field(default_factory=dict)
    gpus: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    readings: int = READINGS_MIN
    lacking: str = ""


class Deviation(Struct, frozen=True, kw_only=True):
    """Says that one value of a node differs from its peers'. gpu: its local index, or "" for the node's own value."""

    node: str
    gpu: str
    signal: str
    value: float
    peers: float
    side: Side


class Accusation(Struct, frozen=True, kw_only=True):
    """Names a node, the cause, and the deviations that show it."""

    node: str
    gpu: str
    cause: str
    evidence: tuple[Deviation, ...]


class NodesJudgement(Struct, frozen=True, kw_only=True):
    """Holds what one job shows. accused: nobody, if work is uneven. uneven: deviations without a pattern, or of too many nodes.

    least: the smallest distance that would have been seen in each compared signal, in the signal's unit. not_judged: the nodes
    that were not compared, with the reason.
    """

    accused: tuple[Accusation, ...] = ()
    uneven: tuple[Deviation, ...] = ()
    least: dict[str, float] = {}
    peers: dict[str, float] = {}
    not_judged: dict[str, str] = {}


def judged(
    nodes: Sequence[NodeSigns], signals: Sequence[Signal] = SIGNALS, patterns: Sequence[SlowPattern] = PATTERNS
) -> NodesJudgement:
    """Return what the medians of one job's nodes show."""
    not_judged = dict(_not_judged(nodes))
    groups: dict[str, list[NodeSigns]] = {}
    for node in nodes:
        if node.node not in not_judged:
            groups.setdefault(node.kind, []).append(node)
    deviations: list[Deviation] = []
    least: dict[str, float] = {}
    peers: dict[str, float] = {}
    too_many: list[Deviation] = []
    for signal in signals:
        for group in groups.values():
            for gpu, values in _columns(signal, group):
                comparison = compared(values, _floor(signal, values))
                if comparison is None:
                    continue
                least[signal.name] = max(least.get(signal.name, 0.0), comparison.least)
                peers.setdefault(signal.name, comparison.centre)
                found = tuple(_deviations(signal, gpu, values, comparison))
                (deviations if len(found) <= few(len(values)) else too_many).extend(found)
    accused = tuple(_accused(deviations, patterns, {s.name: s for s in signals}))
    if len({each.node for each in accused}) > few(len(nodes)):
        accused = ()
    shown = {(d.node, d.gpu, d.signal) for each in accused for d in each.evidence}
    uneven = tuple(d for d in (*deviations, *too_many) if (d.node, d.gpu, d.signal) not in shown)
    return NodesJudgement(accused=accused, uneven=uneven, least=least, peers=peers, not_judged=not_judged)


def _not_judged(nodes: Sequence[NodeSigns]) -> Iterator[tuple[str, str]]:
    sizes: dict[str, int] = {}
    for node in nodes:
        if not node.lacking and node.readings >= READINGS_MIN:
            sizes[node.kind] = sizes.get(node.kind, 0) + 1
    for node in nodes:
        if node.lacking:
            yield node.node, node.lacking
        elif node.readings < READINGS_MIN:
            yield node.node, f"{node.readings} readings so far, and {READINGS_MIN} are needed"
        elif sizes[node.kind] < GROUP_MIN:
            yield node.node, f"{sizes[node.kind]} nodes of its kind, and {GROUP_MIN} are needed"


def _columns(signal: Signal, group: Sequence[NodeSigns]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the local index ("" for a value of the node) and the values of those nodes that know the value."""
    if not signal.of_gpu:
        yield "", {node.node: node.host[signal.name] for node in group if signal.name in node.host}
        return
    for gpu in sorted({gpu for node in group for gpu in node.gpus}):
        yield gpu, {node.node: node.gpus[gpu][signal.name] for node in group if signal.name in node.gpus.get(gpu, {})}


def _floor(signal: Signal, values: Mapping[str, float]) -> float:
    return signal.floor * abs(median(values.values())) if signal.relative and values else signal.floor


def _deviations(signal: Signal, gpu: str, values: Mapping[str, float], found: GroupComparison) -> Iterator[Deviation]:
    for side, members in (("high", found.high), ("low", found.low)):
        for node in sorted(members):
            peers = median(value for other, value in values.items() if other != node)
            yield Deviation(node=node, gpu=gpu, signal=signal.name, value=values[node], peers=peers, side=side)  # type: ignore[arg-type]


def _accused(
    deviations: Iterable[Deviation], patterns: Sequence[SlowPattern], signals: Mapping[str, Signal]
) -> Iterator[Accusation]:
    of_node: dict[str, list[Deviation]] = {}
    for deviation in deviations:
        of_node.setdefault(deviation.node, []).append(deviation)
    for node, found in sorted(of_node.items()):
        for pattern in patterns:
            if (accusation := _fits(node, found, pattern, signals)) is not None:
                yield accusation


def _fits(node: str, found: Sequence[Deviation], pattern: SlowPattern, signals: Mapping[str, Signal]) -> Accusation | None:
    """Return the accusation if the node's deviations fit the pattern, on one of its GPUs or on the node itself."""
    for gpu in sorted({deviation.gpu for deviation in found}, reverse=True):  # a GPU before the node as a whole
        here = [d for d in found if d.gpu in ("", gpu)]
        against = here if gpu else found  # any GPU speaks against a cause that is of the node
        if any(d.signal == name and side in ("", d.side) for name, side in pattern.unless for d in against):
            continue
        slow = {d.signal: d for d in here if d.side == signals[d.signal].slow}
        chosen = [next((slow[name] for name in names if name in slow), None) for names in pattern.needs]
        evidence = tuple(d for d in chosen if d is not None)
        if len(evidence) == len(chosen):
            return Accusation(node=node, gpu=gpu, cause=pattern.cause, evidence=evidence)
    return None


def single_signs(judgement: NodesJudgement) -> tuple[Deviation, ...]:
    """Return the deviations to the slow side of nodes that are not accused: one signal alone accuses nobody."""
    slow = {signal.name: signal.slow for signal in SIGNALS}
    return tuple(d for d in judgement.uneven if slow.get(d.signal) == d.side)
