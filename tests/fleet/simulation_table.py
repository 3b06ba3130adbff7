"""Makes the tables of docs/reference/fleet-report.md: what the list of lemons finds in a simulated year, and whom it accuses
wrongly.

python -m tests.fleet.simulation_table [--years 40] [--shuffles 1000] writes them into the page. The years take three minutes of
CPU time, the shuffles half an hour. ``found`` is made anew by a test, which compares it with the page. The others are run by
tests with fewer years and shuffles.

Wrong is every name but those of the planted nodes, the bad switch and the bad driver: also a node of the bad switch, which the
list should tell as the switch, a node with the bad driver, and a node that one user's program broke.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev

from fairlead.fleet.lemons import lemons
from tests.fleet.simulated_year import NEW, Planted, Year, year

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/fleet-report.md"
SIZES = (96, 1024)
DRIVER_DAY = 220
DRIVER = "driver 3 times as bad, on half of the nodes"
EVENT = (3, 150)  # all nodes of the fourth leaf switch at once
WEEKS = range(13, 53)  # the first list has a whole window of 90 days
PLANTED = (
    Planted("node 5 times as bad", (3,), 5, 60, 2),
    Planted("node 10 times as bad", (20,), 10, 60, 4),
    Planted("node 20 times as bad", (40,), 20, 100, 1),
    Planted("leaf switch 6 times as bad", tuple(range(64, 80)), 6, 100),
)


def made_year(nodes: int, seed: int = 1) -> Year:
    return year(nodes, PLANTED, driver_day=DRIVER_DAY, event=EVENT, seed=seed)


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


@dataclass
class Lists:
    """What the 52 lists of a year say. first: when each name was first there. weeks: how often. wrong: names on each list.
    expected, most: what each list prints."""

    first: dict[str, int] = field(default_factory=dict)
    weeks: dict[str, int] = field(default_factory=dict)
    wrong: list[set[str]] = field(default_factory=list)
    expected: list[float] = field(default_factory=list)
    most: list[int] = field(default_factory=list)


def lists_of(made: Year) -> Lists:
    right = {name_of(made, planted) for planted in PLANTED} | {f"driver {NEW}"}
    said = Lists()
    for week in range(1, 53):
        result = lemons(made.exposed(7 * week))
        names = {each.node for each in result.lemons} | {group.name for group in result.groups}
        for name in names:
            said.first.setdefault(name, 7 * week)
            said.weeks[name] = said.weeks.get(name, 0) + 1
        said.wrong.append(names - right)
        said.expected.append(result.expected_false)
        said.most.append(result.most_false)
    return said


def name_of(made: Year, planted: Planted) -> str:
    return made.leaf(planted.nodes[0]) if len(planted.nodes) > 1 else made.name(planted.nodes[0])


def found(nodes: int) -> list[str]:
    """Say when the weekly list first named what was planted, and how many others it named in the year."""
    made = made_year(nodes)
    said = lists_of(made)
    rows = []
    for planted in PLANTED:
        name = name_of(made, planted)
        rows.append(_row(nodes, planted.name, planted.from_day, said.first.get(name), said.weeks.get(name, 0)))
    rows.append(_row(nodes, DRIVER, DRIVER_DAY, said.first.get(f"driver {NEW}"), said.weeks.get(f"driver {NEW}", 0)))
    wrong, times = len(set().union(*said.wrong)), sum(map(len, said.wrong))
    words = f"{wrong} names, {times} times in 52 lists; the lists expected {sum(said.expected):.0f}"
    return [*rows, f"| {nodes:,} | wrongly named | - | {words} | |"]


@dataclass(frozen=True)
class Years:
    """What the lists of many years say. wrong, expected: of each year, the sum over its lists. above: the part of all lists with
    more wrong names than the list's bound. found: by what was planted, the years in which it was named, and the median of the
    days until then."""

    nodes: int
    wrong: tuple[int, ...]
    expected: tuple[float, ...]
    above: float
    found: tuple[tuple[str, int, float], ...]

    @property
    def high(self) -> float:
        """The upper end of the 95 % interval of the mean of ``wrong``. Years are independent, and their lists are not."""
        return float(mean(self.wrong) + 1.96 * stdev(self.wrong) / math.sqrt(len(self.wrong)))


def years(nodes: int, count: int, *, first_seed: int = 1001) -> Years:
    wrong, expected, above = list[int](), list[float](), 0
    days: dict[str, list[int]] = {name: [] for name in (*(planted.name for planted in PLANTED), DRIVER)}
    for seed in range(first_seed, first_seed + count):
        made = made_year(nodes, seed)
        said = lists_of(made)
        wrong.append(sum(map(len, said.wrong)))
        expected.append(sum(said.expected))
        above += sum(len(names) > most for names, most in zip(said.wrong, said.most, strict=True))
        named = [(planted.name, name_of(made, planted), planted.from_day) for planted in PLANTED]
        for what, name, day in (*named, (DRIVER, f"driver {NEW}", DRIVER_DAY)):
            if name in said.first:
                days[what].append(max(0, said.first[name] - day))
    planted_found = tuple((what, len(of), median(of) if of else 0.0) for what, of in days.items())
    return Years(nodes, tuple(wrong), tuple(expected), above / (52 * count), planted_found)


def years_rows(results: list[Years]) -> list[str]:
    out = [
        f"Means over {len(results[0].wrong)} years with other seeds, each with 52 lists:",
        "",
        "| nodes | wrong names in a year (95 %) | expected, as printed | lists with more than the printed bound |",
        "|---|---|---|---|",
    ]
    for each in results:
        low = max(0.0, 2 * mean(each.wrong) - each.high)
        words = f"{mean(each.wrong):.1f} ({low:.1f} to {each.high:.1f})"
        out.append(f"| {each.nodes:,} | {words} | {mean(each.expected):.1f} | {100 * each.above:.1f} % |")
    out += ["", "| nodes | planted | named in so many years | median of the days until then |", "|---|---|---|---|"]
    for each in results:
        for what, count, days in each.found:
            out.append(f"| {each.nodes:,} | {what} | {count} of {len(each.wrong)} | {f'{days:.0f}' if count else '-'} |")
    return out


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
    parser.add_argument("--years", type=int, default=0, help="0: leave the table of years as it is")
    parser.add_argument("--shuffles", type=int, default=0, help="0: leave the table of shuffles as it is")
    args = parser.parse_args()
    text = put(PAGE.read_text(), "planted", found_rows())
    if args.years:
        text = put(text, "years", years_rows([years(nodes, args.years) for nodes in SIZES]))
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
