"""Makes the tables of docs/reference/fleet-report.md: what the list of lemons finds in a simulated year, and whom it accuses
wrongly.

python -m tests.fleet.simulation_table [--shuffles 1000] writes them into the page (the shuffles take half an hour of CPU time).
``found`` is made anew by a test, which compares it with the page. ``shuffled`` is run by a test with fewer shuffles.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from fairlead.fleet.lemons import lemons
from tests.fleet.simulated_year import NEW, Planted, Year, year

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/fleet-report.md"
SIZES = (96, 1024)
DRIVER_DAY = 220
WEEKS = range(13, 53)  # the first list has a whole window of 90 days
PLANTED = (
    Planted("node 5 times as bad", (3,), 5, 60, 2),
    Planted("node 10 times as bad", (20,), 10, 60, 4),
    Planted("node 20 times as bad", (40,), 20, 100, 1),
    Planted("leaf switch 6 times as bad", tuple(range(64, 80)), 6, 100),
)


def made_year(nodes: int) -> Year:
    return year(nodes, PLANTED, driver_day=DRIVER_DAY)


@dataclass(frozen=True)
class Shuffled:
    """What lists named although no node was bad. named: nodes on a list; new: nodes that were not on the list before; expected:
    what the lists said. All are means for one list."""

    nodes: int
    lists: int
    named: float
    new: float
    expected: float
    groups: float


def shuffled(nodes: int, shuffles: int, *, every: int = 4, seed: int = 5) -> Shuffled:
    """Give each incident of the year to a node by chance, and make the list every few weeks."""
    made = made_year(nodes)
    chance = random.Random(seed)
    lists = named = new = groups = 0
    expected = 0.0
    for _ in range(shuffles):
        nodes_of = [chance.randrange(nodes) for _ in made.incidents]
        before: set[str] = set()
        for week in WEEKS[::every]:
            found = lemons(made.exposed(7 * week, nodes_of))
            now = {each.node for each in found.lemons}
            lists, named, new, before = lists + 1, named + len(now), new + len(now - before), now
            expected += found.expected_false
            groups += sum(group.name.startswith("switch") for group in found.groups)
    return Shuffled(nodes, lists, named / lists, new / lists, expected / lists, groups / lists)


def shuffled_rows(results: list[Shuffled], shuffles: int) -> list[str]:
    out = [
        f"Each incident was given to a node by chance, {shuffles:,} times. Means for one list:",
        "",
        "| nodes | lists | nodes named | of these new | expected, as printed | leaf switches named |",
        "|---|---|---|---|---|---|",
    ]
    return [
        *out,
        *(f"| {r.nodes:,} | {r.lists:,} | {r.named:.2f} | {r.new:.2f} | {r.expected:.2f} | {r.groups:.3f} |" for r in results),
    ]


def found(nodes: int) -> list[str]:
    """Say when the weekly list first named what was planted, and how many healthy nodes it named in the year."""
    made = made_year(nodes)
    bad = {made.name(node) for planted in PLANTED for node in planted.nodes}
    first: dict[str, int] = {}
    weeks_on: dict[str, int] = {}
    false: set[str] = set()
    false_weeks, expected = 0, 0.0
    for week in range(1, 53):
        result = lemons(made.exposed(7 * week))
        expected += result.expected_false
        names = {each.node for each in result.lemons} | {group.name for group in result.groups}
        for name in names:
            first.setdefault(name, 7 * week)
            weeks_on[name] = weeks_on.get(name, 0) + 1
        wrong = {each.node for each in result.lemons} - bad
        wrong |= {g.name for g in result.groups if g.name.startswith("switch")} - {made.leaf(64)}
        false |= wrong
        false_weeks += len(wrong)
    rows = []
    for planted in PLANTED:
        name = made.leaf(planted.nodes[0]) if len(planted.nodes) > 1 else made.name(planted.nodes[0])
        rows.append(_row(nodes, planted.name, planted.from_day, first.get(name), weeks_on.get(name, 0)))
    rows.append(
        _row(
            nodes,
            "driver 3 times as bad, on half of the nodes",
            DRIVER_DAY,
            first.get(f"driver {NEW}"),
            weeks_on.get(f"driver {NEW}", 0),
        )
    )
    healthy = f"{len(false)} healthy nodes or switches, {false_weeks} times in 52 lists; the lists expected {expected:.0f}"
    return [*rows, f"| {nodes:,} | wrongly named | - | {healthy} | |"]


def _row(nodes: int, name: str, from_day: int, day: int | None, weeks: int) -> str:
    after = (
        f"{day - from_day} days after" if day is not None and day >= from_day else "never" if day is None else "by chance before"
    )
    return f"| {nodes:,} | {name} | {from_day} | {after} | {weeks} |"


def found_rows() -> list[str]:
    head = ["| nodes | planted | from day | first named | weeks on the list |", "|---|---|---|---|---|"]
    return [*head, *(row for nodes in SIZES for row in found(nodes))]


def put(text: str, name: str, rows: list[str]) -> str:
    """Return the page with other rows between the two marks of a table."""
    begin, end = f"<!-- simulated: {name} -->", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n" + "\n".join(rows) + f"\n{end}" + rest.partition(end)[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shuffles", type=int, default=0, help="0: leave the table of shuffles as it is")
    args = parser.parse_args()
    text = put(PAGE.read_text(), "planted", found_rows())
    if args.shuffles:
        results = []
        for nodes in SIZES:
            results.append(shuffled(nodes, args.shuffles))
            print(results[-1], file=sys.stderr, flush=True)
        text = put(text, "shuffled", shuffled_rows(results, args.shuffles))
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
