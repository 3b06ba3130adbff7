"""A simulated fabric with a known truth: what the rounds find, how many node-runs they cost, and the published table.

The model is that of the published comparison of methods. A pair's value is the quality of its slower node (spread 0.8 %) with 1 %
of noise. In 2 % of the measurements a passing disturbance takes 5 to 30 % away. A pair of nodes of two leaves is limited by the
uplinks of both leaves. A pair over all rails is as slow as its slowest rail. While a node goes down, 60 % of the pairs lose 10 to
60 %. Nothing here knows how a real fabric behaves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from fairlead.measure.pairs.fabric_text import size_of
from fairlead.measure.pairs.fabric_verdict import PartKind
from fairlead.measure.pairs.pair_judgement import judge
from fairlead.measure.pairs.pair_table import LeafSource, Leaves, PairValue, Stage, unknown_leaves
from fairlead.measure.pairs.round_plan import PairPlan, next_round

SPREAD, NOISE, DISTURBED, DYING, RAILS = 0.008, 0.01, 0.02, 0.6, 8
BAD_LEAF = "leaf1"


@dataclass(frozen=True)
class Case:
    """What is wrong in a simulated fabric. slow: how many nodes have the quality ``factor``. uplink: what the uplink of one leaf
    carries. half_rails: how many nodes have one rail at half rate. passing: what a disturbance leaves of all pairs of one round
    across leaves, such as another job that ran for a minute. known: whether the topology is known. dies: whether a node goes down
    in one of the first five rounds."""

    words: str
    nodes: int = 64
    per_leaf: int = 16
    slow: int = 0
    factor: float = 1.0
    uplink: float = 1.0
    half_rails: int = 0
    passing: float = field(default=1.0, repr=False)  # the words of a case choose its random numbers
    known: bool = True
    dies: bool = field(default=False, repr=False)


CASES = (
    Case("all healthy"),
    Case("3 nodes slow by 15 %", slow=3, factor=0.85),
    Case("3 nodes slow by 10 %", slow=3, factor=0.90),
    Case("8 nodes slow by 15 %", slow=8, factor=0.85),
    Case("8 nodes slow by 10 %", slow=8, factor=0.90),
    Case("one uplink at 0.80", uplink=0.80),
    Case("3 nodes slow by 15 %, one uplink at 0.80", slow=3, factor=0.85, uplink=0.80),
    Case("one rail of one node at half rate", half_rails=1),
    Case("all healthy, one round across leaves at 0.90", passing=0.90),
    Case("3 nodes slow by 15 %, one round across leaves at 0.80", slow=3, factor=0.85, passing=0.80),
    Case("3 nodes slow by 15 %, topology unknown", slow=3, factor=0.85, known=False),
    Case("one uplink at 0.80, topology unknown", uplink=0.80, known=False),
    Case("one node goes down in mid-run", dies=True),
    Case("one node goes down in mid-run, 3 nodes slow by 15 %", slow=3, factor=0.85, dies=True),
    Case("one node goes down in mid-run, one uplink at 0.80", uplink=0.80, dies=True),
    Case("1,024 nodes, all healthy", nodes=1024),
    Case("1,024 nodes, 20 slow by 15 %, one uplink at 0.80", nodes=1024, slow=20, factor=0.85, uplink=0.80),
    Case("1,024 nodes, one rail of one node at half rate", nodes=1024, half_rails=1),
)


@dataclass
class Found:
    """Sums over the runs. named, missed: guilty nodes. accused: healthy nodes that were named. alone: runs in which the bad
    uplink was named and nothing else between leaves. rails: guilty rails with the right number. ways: ways of nodes that were
    named. undecided: nodes without a verdict."""

    case: Case
    runs: int = 0
    named: int = 0
    missed: int = 0
    accused: int = 0
    alone: int = 0
    other_leaves: int = 0
    rails: int = 0
    ways: int = 0
    undecided: int = 0
    rounds: list[int] = field(default_factory=list)
    node_runs: list[int] = field(default_factory=list)

    @property
    def recall(self) -> float:
        return self.named / (self.named + self.missed) if self.named + self.missed else 1.0

    @property
    def precision(self) -> float:
        return self.named / (self.named + self.accused) if self.named + self.accused else 1.0

    def per_run(self, count: float) -> float:
        return count / self.runs


class SimulatedFabric:
    """One fabric. ``guilty``: the guilty nodes. ``bad_rail``: the rail at half rate of some of them."""

    def __init__(self, case: Case, chance: random.Random) -> None:
        self.case, self.chance = case, chance
        self.names = [f"n{i:04}" for i in range(case.nodes)]
        self.leaf = {name: f"leaf{at // case.per_leaf + 1}" for at, name in enumerate(self.names)}
        chosen = chance.sample(self.names, case.slow + case.half_rails)
        slow = set(chosen[: case.slow])
        self.quality = {name: chance.gauss(1, SPREAD) * (case.factor if name in slow else 1) for name in self.names}
        self.bad_rail = {name: str(chance.randrange(RAILS)) for name in chosen[case.slow :]}
        self.guilty = set(chosen)
        self.disturbed = chance.randrange(3) if case.passing < 1 else 0  # which of the rounds across leaves
        self.victim = chance.choice([name for name in self.names if name not in self.guilty]) if case.dies else ""
        self.round_of_death = chance.randint(1, 5) if case.dies else 0
        self.gone: dict[str, str] = {}

    def value(self, a: str, b: str, rail: str) -> float:
        found = min(self.quality[a], self.quality[b])
        for name in (a, b):
            if name in self.bad_rail and rail in ("", self.bad_rail[name]):
                found = min(found, self.quality[name] / 2)
        if self.leaf[a] != self.leaf[b] and BAD_LEAF in (self.leaf[a], self.leaf[b]):
            found = min(found, self.case.uplink)
        found *= self.chance.gauss(1, NOISE)
        if self.chance.random() < DISTURBED:
            found *= 1 - self.chance.uniform(0.05, 0.30)
        return found / (RAILS if rail else 1)

    def leaves(self) -> Leaves:
        if not self.case.known:
            return unknown_leaves(self.names)
        return Leaves(source=LeafSource.DECLARED, of=self.leaf, detail="simulated")

    def run(self, seed: str) -> tuple[PairPlan, list[PairValue]]:
        """All rounds."""
        plan = PairPlan(leaves=self.leaves(), rails=RAILS if self.case.half_rails else 1, seed=seed)
        values: list[PairValue] = []
        rounds_across = 0
        while planned := next_round(plan, values, self.gone):
            across = planned.stage in (Stage.ACROSS, Stage.CROWDED)
            passing = self.case.passing if across and rounds_across == self.disturbed else 1.0
            rounds_across += across
            dying = self.case.dies and planned.number >= self.round_of_death and not self.gone
            for a, b in planned.pairs:
                row = PairValue(round=planned.number, stage=planned.stage, node_a=a, node_b=b)
                if dying and self.victim in (a, b):
                    self.gone[self.victim] = "no step starts on it"
                    values.append(replace(row, why=f"{self.victim} went down"))
                    continue
                for rail in planned.rails:
                    gbps = self.value(a, b, rail) * passing
                    if dying and self.chance.random() < DYING:
                        gbps *= 1 - self.chance.uniform(0.10, 0.60)
                    values.append(replace(row, rail=rail, gbps=gbps))
        return plan, values


def simulate(case: Case, runs: int, seed: int = 1) -> Found:
    chance, found = random.Random(f"{seed} {case}"), Found(case)
    for number in range(runs):
        fabric = SimulatedFabric(case, chance)
        plan, values = fabric.run(str(number))
        verdict = judge(values, plan.leaves, plan.limits, fabric.gone)
        accused = {*verdict.named(PartKind.NODE), *verdict.named(PartKind.RAIL)}
        size = size_of(values)
        between = {*verdict.named(PartKind.UPLINK)} - {BAD_LEAF} if case.uplink < 1 else {*verdict.named(PartKind.UPLINK)}
        found.runs += 1
        found.named += len(accused & fabric.guilty)
        found.missed += len(fabric.guilty - accused)
        found.accused += len(accused - fabric.guilty)
        others = len(between) + sum(len(verdict.named(kind)) for kind in (PartKind.LEAF, PartKind.LEAF_PAIR, PartKind.SCALE))
        found.other_leaves += others
        found.alone += verdict.named(PartKind.UPLINK) == (BAD_LEAF,) and not others
        found.rails += sum(part.rails == (fabric.bad_rail.get(part.name),) for part in verdict.parts)
        found.ways += len(verdict.named(PartKind.WAY))
        found.undecided += sum(node.outcome == "unknown" for name, node in verdict.nodes.items() if name not in fabric.gone)
        found.rounds.append(size.rounds)
        found.node_runs.append(size.node_runs)
    return found


def page(found: Sequence[Found]) -> str:
    """The rows of the published table."""
    titles = (
        "what is wrong",
        "runs",
        "rounds",
        "node-runs",
        "recall, precision",
        "healthy nodes accused",
        "named between leaves",
    )
    head = f"| {' | '.join(titles)} |"
    out = [head, "|---|---|---|---|---|---|---|"]
    for each in found:
        case = each.case
        guilty = f"{each.recall:.2f}, {each.precision:.2f}" if case.slow or case.half_rails else "-"
        if case.half_rails:
            guilty += f"; the right rail in {each.rails / (case.half_rails * each.runs):.0%}"
        between = f"nothing in {1 - each.other_leaves / each.runs:.0%}"
        if case.uplink < 1:
            between = f"the leaf alone in {each.alone / each.runs:.0%}" if case.known else f"{between}; it cannot be named"
        rounds = f"{sum(each.rounds) / each.runs:.1f}, at most {max(each.rounds)}"
        node_runs = f"{sum(each.node_runs) / each.runs:,.0f}, at most {max(each.node_runs):,}"
        out.append(
            f"| {case.words} | {each.runs} | {rounds} | {node_runs} | {guilty} | {each.accused / each.runs:.3f} | {between} |"
        )
    return "\n".join([*out, ""])
