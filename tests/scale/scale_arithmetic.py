"""The arithmetic of docs/explanation/scale.md: what nodes and the controller do, how often, and what that is at 10,000 nodes.

Periods and limits come from the code, so that the page cannot say others. What things cost was measured (``MEASURED``).
`make docs` writes the tables of the page, and tests/scale/test_scale_arithmetic.py holds what the page claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead.config.document import AgentOptions, SlurmOptions
from fairlead.controller.fleet_collection import EACH_SECONDS as COLLECT_SECONDS
from fairlead.daemon.slurmctld.courier import BACKOFF_MAX_SECONDS, BUDGET_BACKOFF_MAX_SECONDS
from fairlead.daemon.slurmctld.pace import (
    ASKS_PER_SECOND,
    FAILED_PER_SECOND,
    LIMITED_PER_SECOND,
    SPREAD_MAX_SECONDS,
    WATCHED,
    Pace,
)
from fairlead.policy.decision_rules import Rules
from fairlead.provision.ssh_fetch import deadline_seconds

SIZES = (128, 1000, 10_000)
AGENT, SLURM, RULES = AgentOptions(), SlurmOptions(), Rules()
DRAIN_RPCS, QUESTION_RPCS, LISTING_RPCS = 5, 2, 2
#: Of the computed figures: the cores of slurmctld's machine that answer, and those of the admin host.
SLURMCTLD_CORES, ADMIN_CORES = 4, 16
SCRAPE_SECONDS = 60


@dataclass(frozen=True)
class Measured:
    """What one thing costs. Bytes are those on the network in both directions; milliseconds are of one core."""

    listing_fixed_bytes: float
    listing_node_bytes: float
    listing_fixed_ms: float
    listing_node_ms: float
    question_bytes: float
    question_ms: float
    update_bytes: float
    update_ms: float
    topology_ms: float
    agent_percent: float
    agent_mib: float
    series: int
    metrics_bytes: int
    ssh_seconds: float

    def listing_bytes(self, nodes: int) -> float:
        return self.listing_fixed_bytes + self.listing_node_bytes * nodes

    def listing_ms(self, nodes: int) -> float:
        return self.listing_fixed_ms + self.listing_node_ms * nodes


#: tests/scale on 2026-11-28, Slurm 24.11, load 18 to 26: a straight line through 16, 64 and 128 nodes, by sdiag. What does not
#: grow with the nodes is slurmctld's whole CPU time of a question. ``ssh_seconds`` is of docs/how-to/fleet.md.
MEASURED = Measured(
    listing_fixed_bytes=1900,
    listing_node_bytes=422,
    listing_fixed_ms=1.5,
    listing_node_ms=0.010,
    question_bytes=2430,
    question_ms=2.0,
    update_bytes=1030,
    update_ms=1.5,
    topology_ms=1.0,
    agent_percent=0.12,
    agent_mib=25.6,
    series=627,
    metrics_bytes=85_217,
    ssh_seconds=0.072,
)


def crowd(nodes: int) -> int:
    """How many agents an agent reckons with (drains/cluster_limits.py)."""
    return nodes // 10


def limited_seconds(nodes: int) -> float:
    """The mean time between two attempts of a node whose drain a limit delays (courier.py: 0.3 to 1.0 of the longest wait)."""
    return Pace(None, lambda: crowd(nodes)).wait_max(BUDGET_BACKOFF_MAX_SECONDS, LIMITED_PER_SECOND) * (0.3 + 1.0) / 2


def failed_seconds(nodes: int) -> float:
    """The longest wait after no answer."""
    return Pace(None, lambda: crowd(nodes)).wait_max(BACKOFF_MAX_SECONDS, FAILED_PER_SECOND)


def question_seconds() -> float:
    """The mean time between two questions about a drain that lasts."""
    return SLURM.reconcile_seconds * WATCHED


def spread_seconds(nodes: int) -> float:
    """The time over which agents spread their questions when slurmctld is back."""
    return min(SPREAD_MAX_SECONDS, crowd(nodes) / ASKS_PER_SECOND)


def drained(nodes: int) -> int:
    """How many nodes the budget of a partition lets fairlead drain."""
    return nodes * RULES.budget_percent // 100


def mass_seconds(nodes: int, fraction: float = 0.25) -> float:
    """The time in which slurmctld answers the first list of nodes to each of the nodes that fail in the same second."""
    return nodes * fraction * MEASURED.listing_ms(nodes) / 1000 / SLURMCTLD_CORES


def limited_core(nodes: int, fraction: float = 0.25) -> float:
    """The fraction of one core of slurmctld that nodes use whose drain a limit delays."""
    return nodes * fraction / limited_seconds(nodes) * MEASURED.listing_ms(nodes) / 1000


def limited_bytes(nodes: int, fraction: float = 0.25) -> float:
    """Bytes a second of the same nodes."""
    return nodes * fraction / limited_seconds(nodes) * MEASURED.listing_bytes(nodes)


def drain_bytes(nodes: int) -> float:
    return 2 * MEASURED.listing_bytes(nodes) + MEASURED.update_bytes


def drain_ms(nodes: int) -> float:
    return 2 * MEASURED.listing_ms(nodes) + MEASURED.update_ms


def first_size(too_much: Callable[[int], bool]) -> int:
    """The least number of nodes, in steps of 100, that is too much; 0 if 100,000 are not."""
    return next((nodes for nodes in range(100, 100_001, 100) if too_much(nodes)), 0)


def mega(count: float) -> str:
    return f"{count / 1e6:,.2g} MB" if count < 1e7 else f"{count / 1e6:,.0f} MB"


def seconds(value: float) -> str:
    return f"{value * 1000:.2g} ms" if value < 0.1 else f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"


#: What happens, the formula, and the value at N nodes.
ROWS: tuple[tuple[str, str, Callable[[int], str]], ...] = (
    ("quiet agents: RPCs a minute", "0", lambda n: "0"),
    (
        f"questions about drains that last, {RULES.budget_percent} % drained: RPCs a minute",
        f"0.{RULES.budget_percent} N x {QUESTION_RPCS} x 60 / {question_seconds():g}",
        lambda n: f"{drained(n) * QUESTION_RPCS * 60 / question_seconds():,.0f}",
    ),
    (
        "... of one core of slurmctld",
        "questions a second x question",
        lambda n: f"{100 * drained(n) / question_seconds() * MEASURED.question_ms / 1000:.2g} %",
    ),
    (f"one drain ({DRAIN_RPCS} RPCs): bytes", "2 x listing(N) + update", lambda n: mega(drain_bytes(n))),
    ("... CPU of slurmctld", "2 x listing(N) + update", lambda n: seconds(drain_ms(n) / 1000)),
    (
        "slurmctld is back, budget used up: questions are spread over",
        f"min({SPREAD_MAX_SECONDS:g}, N / 10 / {ASKS_PER_SECOND:g})",
        lambda n: seconds(spread_seconds(n)),
    ),
    (
        "... RPCs a second",
        f"0.{RULES.budget_percent} N x {QUESTION_RPCS} / spread",
        lambda n: f"{drained(n) * QUESTION_RPCS / spread_seconds(n):,.0f}",
    ),
    ("all agents start at once: RPCs", "N (the topology)", lambda n: f"{n:,}"),
    (
        "a quarter fails in the same second: all first lists are answered in",
        f"N / 4 x listing(N) / {SLURMCTLD_CORES} cores",
        lambda n: seconds(mass_seconds(n)),
    ),
    ("... the lists together: bytes", "N / 4 x listing(N)", lambda n: mega(n / 4 * MEASURED.listing_bytes(n))),
    (
        "a quarter waits for a limit: a node lists again after, mean",
        f"0.65 x max({BUDGET_BACKOFF_MAX_SECONDS:g}, N / 10)",
        lambda n: seconds(limited_seconds(n)),
    ),
    ("... of one core of slurmctld", "N / 4 / mean x listing(N)", lambda n: f"{100 * limited_core(n):.2g} %"),
    ("... bytes a second", "N / 4 / mean x listing(N)", lambda n: mega(limited_bytes(n))),
    (
        "after no answer: the longest wait",
        f"max({BACKOFF_MAX_SECONDS:g}, N / 20)",
        lambda n: seconds(failed_seconds(n)),
    ),
    (
        "`fairlead collect`: nodes asked a minute",
        f"N x 60 / {COLLECT_SECONDS:g}",
        lambda n: f"{n * 60 / COLLECT_SECONDS:.2g}",
    ),
    (
        "`fleet`, `version --fleet`, first round of `collect`: CPU of the admin host",
        f"N x {MEASURED.ssh_seconds:g} s",
        lambda n: seconds(n * MEASURED.ssh_seconds),
    ),
    (
        f"... wall time on {ADMIN_CORES} cores, and the time limit",
        f"N x {MEASURED.ssh_seconds:g} s / {ADMIN_CORES}; {deadline_seconds(0):g} s + N x {deadline_seconds(10) / 10 - 1:g} s",
        lambda n: f"{seconds(n * MEASURED.ssh_seconds / ADMIN_CORES)}, {seconds(deadline_seconds(n))}",
    ),
    ("Prometheus: series", f"N x {MEASURED.series}", lambda n: f"{n * MEASURED.series:,}"),
    (
        f"... samples a second, a scrape each {SCRAPE_SECONDS} s",
        f"N x {MEASURED.series} / {SCRAPE_SECONDS}",
        lambda n: f"{n * MEASURED.series / SCRAPE_SECONDS:,.0f}",
    ),
    (
        "... bytes a second",
        f"N x {MEASURED.metrics_bytes:,} / {SCRAPE_SECONDS}",
        lambda n: mega(n * MEASURED.metrics_bytes / SCRAPE_SECONDS),
    ),
    (
        "`fairlead provision` with nothing to do, one run",
        "1.4 s + N x 20 ms",
        lambda n: seconds(1.4 + n * 0.020),
    ),
    ("`fairlead report`, 10 s at 1,024 nodes", "N / 1,024 x 10 s", lambda n: seconds(n / 1024 * 10)),
    ("jobs.sqlite after a year", "N x 17.7 MB", lambda n: f"{n * 17.7 / 1000:,.1f} GB"),
)


def breaks() -> list[tuple[str, str, int]]:
    """What becomes too much, what that means, and from which size on."""
    limit = SLURM.deadline_seconds
    return [
        (
            "a quarter of all nodes fails in the same second",
            f"the last of them has its first list after `slurm.deadline_seconds` ({limit:g} s): it asks again",
            first_size(lambda n: mass_seconds(n) > limit),
        ),
        (
            "the same with `slurm.deadline_seconds = 60`",
            "as above",
            first_size(lambda n: mass_seconds(n) > 60),
        ),
        (
            "a twentieth of all nodes fails in the same second",
            f"as above, {limit:g} s",
            first_size(lambda n: mass_seconds(n, 0.05) > limit),
        ),
        (
            "a quarter of all nodes waits for a limit",
            "their lists use more than half of a core of slurmctld",
            first_size(lambda n: limited_core(n) > 0.5),
        ),
        (
            "slurmctld is back, the budget is used up",
            "more than 100 RPCs a second",
            first_size(lambda n: drained(n) * QUESTION_RPCS / max(spread_seconds(n), 1e-9) > 100),
        ),
        (
            "`fairlead fleet`, every connection new",
            f"more than 60 s on {ADMIN_CORES} cores",
            first_size(lambda n: n * MEASURED.ssh_seconds / ADMIN_CORES > 60),
        ),
        ("one Prometheus server", "more than 10 million series", first_size(lambda n: n * MEASURED.series > 10_000_000)),
        (
            "one `fairlead provision`, nothing to do",
            "more than 60 s (decision: divide the nodes)",
            first_size(lambda n: 1.4 + n * 0.020 > 60),
        ),
        ("`fairlead report`", "more than 60 s", first_size(lambda n: n / 1024 * 10 > 60)),
    ]


def figures_table() -> str:
    """The table of what happens at each size."""
    head = ["| what | formula | " + " | ".join(f"{n:,} nodes" for n in SIZES) + " |", "|" + "---|" * (2 + len(SIZES))]
    return "\n".join(
        [*head, *(f"| {what} | {formula} | " + " | ".join(at(n) for n in SIZES) + " |" for what, formula, at in ROWS)]
    )


def breaks_table() -> str:
    """The table of what breaks, the least size first."""
    found = sorted(breaks(), key=lambda each: each[2] or 1_000_000)
    head = ["| what | what too much is | from |", "|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {what} | {much} | {f'{n:,} nodes' if n else 'not below 100,000 nodes'} |" for what, much, n in found)]
    )
