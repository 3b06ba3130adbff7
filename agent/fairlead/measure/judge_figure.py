"""Compares a figure with the class median and the profile's reference. The code is pure.

FAIL     the figure is below 0.85 of the profile's reference, or below 0.85 of the class median
WARN     the figure is below 0.95 of the class median, more than 3 MAD (median absolute deviations) below the class median, or
         below 0.95 of the median of its siblings on the node
UNKNOWN  there is no reference, and too few nodes of the class were measured; such a figure never passes

The class median is the median of the figures of the *other* nodes, so that no node is compared with itself. It is used only if
there are at least 3 other nodes. Each node has one vote, which is divided among its figures. So a node that writes many figures
does not outvote the others. If all nodes have the same number of figures, as honest nodes do, this is the plain median of all
figures.

The MAD is the median of the absolute deviations from the class median, with the same votes and without a scale factor. It is
used only if there are at least 5 figures. It is set to at least 1 % of the median, because equal figures have a MAD of 0, and
two runs on one node differ by about 1 %. A figure more than 3 MAD above the median gets a note, but passes. The theoretical peak
is not used here: healthy nodes reach 78 to 107 % of it, depending on the algorithm.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct

from fairlead.measure.tool import MeasuredOutcome, can_be, worst

FAIL_RATIO = 0.85
WARN_RATIO = 0.95
MADS = 3.0
NODES_MIN = 3  # the least number of other nodes of the class
MAD_MIN = 5  # with fewer figures a deviation means nothing
MAD_FLOOR = 0.01  # as a fraction of the median
OWN_MIN = 3  # the least number of other devices of the node


class Judgement(Struct, frozen=True, kw_only=True):
    """Holds the outcome of comparing a figure. median: the class median, or None if there are too few other nodes. mad: the MAD
    in the figure's unit, or None if there are too few figures. nodes: the number of other nodes."""

    outcome: MeasuredOutcome
    why: str
    median: float | None = None
    mad: float | None = None
    nodes: int = 0
    reference: float | None = None
    notes: tuple[str, ...] = ()


class Class(Struct, frozen=True, kw_only=True):
    """Describes the other nodes' figures of one kind. nodes: the number of other nodes. median, mad: as in ``Judgement``."""

    nodes: int
    median: float | None = None
    mad: float | None = None


def class_of(siblings: Iterable[Sequence[float]]) -> Class:
    """Return the class from ``siblings``, the figures of each other node. Figures that no tool can have measured, and those
    that are not positive, are left out."""
    nodes = [kept for each in siblings if (kept := [v for v in each if _sound(v)])]
    if len(nodes) < NODES_MIN:
        return Class(nodes=len(nodes))
    whole = math.lcm(*(len(each) for each in nodes))  # a node's vote, as a number that each node can divide evenly
    votes: dict[float, int] = {}
    for each in nodes:
        part = whole // len(each)
        for v in each:
            votes[v] = votes.get(v, 0) + part
    centre = _middle(votes)
    away: dict[float, int] = {}
    for v, count in votes.items():
        away[abs(v - centre)] = away.get(abs(v - centre), 0) + count
    mad = max(_middle(away), MAD_FLOOR * centre)
    known = len(nodes) * median(len(each) for each in nodes) >= MAD_MIN and mad > 0
    return Class(nodes=len(nodes), median=centre, mad=mad if known else None)


def _middle(votes: Mapping[float, int]) -> float:
    """Return the weighted median of the values in ``votes``, each of which has a number of votes. If the middle lies between two
    values, return their mean. Raises ValueError if there is no vote."""
    half, seen = sum(votes.values()), 0  # both are doubled, so that half of the votes is a whole number
    low = None
    for v in sorted(votes):
        seen += 2 * votes[v]
        if low is None and seen >= half:
            low = v
        if low is not None and seen > half:
            return (low + v) / 2
    raise ValueError("no votes")


def medians_of_others(values: Sequence[float]) -> list[float | None]:
    """Return, for the figure of each device of a node, the median of the figures of the other devices, or None if there are too
    few. Figures that no tool can have measured, and those that are not positive, are left out."""
    ordered = sorted(v for v in values if _sound(v))
    found: list[float | None] = []
    for v in values:
        own = bisect_left(ordered, v) if _sound(v) else len(ordered)
        count = len(ordered) - (own < len(ordered))
        low, high = ((at + (at >= own)) for at in ((count - 1) // 2, count // 2))
        found.append((ordered[low] + ordered[high]) / 2 if count >= OWN_MIN else None)
    return found


def judge(
    value: float,
    *,
    siblings: Class | Sequence[Sequence[float]] = (),
    own: Sequence[float] | float | None = None,
    reference: float | None = None,
    no_reference: str = "the profile has no reference",
) -> Judgement:
    """Judge one figure. siblings: the figures of each other node of the class, or what ``class_of`` has returned for them. own:
    the figures of the same kind of the node's other devices, or what ``medians_of_others`` has returned for them.
    no_reference: why there is no reference, in words.

    Figures that are not positive, and those that no tool can have measured, are left out. If ``value`` is such a figure, the
    outcome is UNKNOWN. Only a ``value`` of 0 is judged.
    """
    if not _sound(value) and value != 0:
        return Judgement(outcome=MeasuredOutcome.UNKNOWN, why=f"{value} is no measurement")
    reference = reference if reference is not None and _sound(reference) else None
    others = siblings if isinstance(siblings, Class) else class_of(siblings)
    centre, mad = others.median, others.mad
    said: list[tuple[MeasuredOutcome, str]] = []
    notes: list[str] = []
    if reference is not None:
        outcome = MeasuredOutcome.FAIL if value < FAIL_RATIO * reference else MeasuredOutcome.PASS
        said.append((outcome, f"{value / reference:.2f} of the reference {reference:g}"))
    if centre is not None:
        said.append(_by_class(value, centre, mad, others.nodes))
        if mad is not None and value > centre + MADS * mad:
            notes.append(f"{(value - centre) / mad:.0f} MAD above the class: is it measured right?")
    beside = medians_of_others([*own, value])[-1] if isinstance(own, Sequence) else own
    if beside is not None and value < WARN_RATIO * beside:
        said.append((MeasuredOutcome.WARN, f"{value / beside:.2f} of its siblings on the node, {beside:.4g}"))
    if reference is None and centre is None:
        said.append((MeasuredOutcome.UNKNOWN, f"no reference: {no_reference}, and {_few(others.nodes)}"))
    elif reference is None:
        notes.append(f"{no_reference}: the class alone judges")
    elif centre is None:
        notes.append(f"{_few(others.nodes)}: the reference alone judges")
    outcome = worst(tuple(o for o, _ in said))
    why = ", ".join(text for o, text in said if o is outcome or o is MeasuredOutcome.FAIL)
    return Judgement(
        outcome=outcome, why=why, median=centre, mad=mad, nodes=others.nodes, reference=reference, notes=tuple(notes)
    )


def _by_class(value: float, centre: float, mad: float | None, nodes: int) -> tuple[MeasuredOutcome, str]:
    text = f"{value / centre:.2f} of the class median {centre:.4g} ({nodes} other nodes)"
    if value < FAIL_RATIO * centre:
        return MeasuredOutcome.FAIL, text
    if mad is not None and value < centre - MADS * mad:
        return MeasuredOutcome.WARN, f"{text}, {(centre - value) / mad:.1f} MAD below it"
    return (MeasuredOutcome.WARN if value < WARN_RATIO * centre else MeasuredOutcome.PASS), text


def _few(nodes: int) -> str:
    return f"{nodes or 'no'} other node{'s' * (nodes != 1)} of the class measured, {NODES_MIN} needed"


def _sound(value: float) -> bool:
    return can_be(value) and value > 0
