"""Measures on a site's own history whether a mechanical distance announces confirmed repairs, and prints it beside counting
incidents.

The unit is a node and a week. The label is an incident that began in the week and ended in a confirmed repair. The score is what
was known a day before the week began. A week at whose begin the node was out of service is left out, and so is, for a signal, a
week whose repair was found by the check of the same signal. The weeks are split by time: the signal is chosen on the older half
and reported on the newer half. Each week, one node for each ``NODES_EACH`` nodes may be named (the alert budget). A week is
treated if the same score has named the node up to four weeks earlier and a person has acted on the node since; the precision is
given without treated weeks, and with them as hits and as misses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from fairlead.fleet.early_warning import SIGNALS
from fairlead.fleet.exact_intervals import Interval, wilson

NODES_EACH = 50
REPAIRS_MIN = 10
TREATED_WEEKS = 4
#: The checks that find by themselves what a signal measures.
OWN_CHECKS: Mapping[str, frozenset[str]] = {
    "rows": frozenset(("row_remap", "retired_pages", "memory_errors")),
    "lanes": frozenset(("pcie_link", "nvlink")),
    "replays": frozenset(("pcie_errors",)),
    "link_errors": frozenset(("nvlink", "gpu_fabric", "xid")),
    "throttle": frozenset(("gpu_throttle", "gpu_power_brake", "gpu_temperature", "gpu_clocks")),
    "ber": frozenset(("rdma_errors", "rdma_flaps", "nvlink", "gpu_fabric", "xid")),
}


class NodeWeek(Struct, frozen=True, kw_only=True):
    """Holds one node in one week. scores: by signal, only those above 0. incidents: how many it had before. repaired_for: the
    check of the incident with a confirmed repair that began in this week, or "". acted: a person has drained or repaired the node
    in this week for another reason than a drain by fairlead."""

    node: str
    week: int
    scores: Mapping[str, float] = {}
    incidents: int = 0
    repaired_for: str = ""
    acted: bool = False


class AlertOutcome(Struct, frozen=True, kw_only=True):
    """Holds what a score has named in a part of the history. treated: named weeks whose truth is not known, because somebody
    acted before. precision: without treated weeks, with them as hits, and as misses."""

    name: str
    alerts: int
    hits: int
    treated: int
    repairs: int

    @property
    def precision(self) -> tuple[Interval | None, Interval | None, Interval | None]:
        known = self.alerts - self.treated
        return (
            wilson(self.hits, known),
            wilson(self.hits + self.treated, self.alerts),
            wilson(self.hits, self.alerts),
        )

    @property
    def recall(self) -> Interval | None:
        return wilson(self.hits, self.repairs)


class ScoreCard(Struct, frozen=True, kw_only=True):
    """Holds the card. score: of the chosen signal on the newer half, or None if no signal named anybody. counting: of "most
    incidents so far". random_hits: how many hits a random choice of as many nodes would have. better: the score beats
    counting."""

    nodes: int
    weeks: int
    newer_weeks: int
    budget: int
    repairs: int
    node_weeks: int
    score: AlertOutcome | None
    counting: AlertOutcome
    random_hits: float

    @property
    def enough(self) -> bool:
        return self.repairs >= REPAIRS_MIN

    @property
    def better(self) -> bool:
        return self.enough and self.score is not None and self.score.hits > self.counting.hits


def score_card(rows: Sequence[NodeWeek]) -> ScoreCard:
    """Return the card of a history. ``rows``: each node and week once."""
    weeks = sorted({row.week for row in rows})
    nodes = len({row.node for row in rows})
    budget = max(1, nodes // NODES_EACH)
    middle = weeks[len(weeks) // 2] if weeks else 0
    older, newer = [r for r in rows if r.week < middle], [r for r in rows if r.week >= middle]
    tried = [(_outcome(older, signal, _signal(signal), budget), signal) for signal in SIGNALS]
    chosen = max(tried, key=lambda pair: (pair[0].hits, -pair[0].alerts), default=None)
    score = None
    if chosen is not None and chosen[0].hits > 0:
        score = _outcome(newer, chosen[1], _signal(chosen[1]), budget)
    counting = _outcome(newer, "most incidents so far", lambda row: float(row.incidents), budget)
    repairs = sum(bool(row.repaired_for) for row in newer)
    alerts = score.alerts if score is not None else counting.alerts
    return ScoreCard(
        nodes=nodes,
        weeks=len(weeks),
        newer_weeks=len({row.week for row in newer}),
        budget=budget,
        repairs=repairs,
        node_weeks=len(newer),
        score=score,
        counting=counting,
        random_hits=alerts * repairs / len(newer) if newer else 0.0,
    )


def _signal(name: str) -> Callable[[NodeWeek], float]:
    own = OWN_CHECKS[name]

    def score(row: NodeWeek) -> float:
        return 0.0 if row.repaired_for in own else row.scores.get(name, 0.0)

    return score


def _outcome(rows: Iterable[NodeWeek], name: str, score: Callable[[NodeWeek], float], budget: int) -> AlertOutcome:
    own = OWN_CHECKS.get(name, frozenset())
    by_week: dict[int, list[NodeWeek]] = {}
    acted: dict[str, list[int]] = {}
    repairs = 0
    for row in rows:
        by_week.setdefault(row.week, []).append(row)
        repairs += bool(row.repaired_for) and row.repaired_for not in own
        if row.acted:
            acted.setdefault(row.node, []).append(row.week)
    named: dict[str, int] = {}  # the last week in which a node was named
    alerts = hits = treated = 0
    for week in sorted(by_week):
        scored = sorted(((score(row), row.node, row) for row in by_week[week]), key=lambda each: (-each[0], each[1]))
        for value, node, row in scored[:budget]:
            if value <= 0:
                break
            alerts += 1
            before = named.get(node, week - TREATED_WEEKS - 1)
            was_treated = week - before <= TREATED_WEEKS and any(before <= at < week for at in acted.get(node, ()))
            named[node] = week
            if was_treated and not row.repaired_for:
                treated += 1
            else:
                hits += bool(row.repaired_for)
    return AlertOutcome(name=name, alerts=alerts, hits=hits, treated=treated, repairs=repairs)
