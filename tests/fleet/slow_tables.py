"""Writes the tables of docs/reference/slow-nodes.md: sensitivity by injected slowness, and A/A by shuffled labels.

    python -m tests.fleet.slow_tables --write              both (20 minutes of CPU time)
    python -m tests.fleet.slow_tables --write shuffles     one of them

The labelled jobs are not part of the project, so that `make docs` cannot write the tables. tests/fleet/test_slow_tables.py
compares the sensitivity with what would be written, where the data is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairlead.fleet.exact_intervals import garwood
from fairlead.fleet.slow_node_rule import judged
from fairlead.fleet.slow_recurrence import FALSE
from tests.fleet.traces import PATTERNS, SIGNALS, Steps, Worker, signs, steps_of
from tests.fleet.year_of_jobs import WINDOW_DAYS, days_until_named, false_for_each_report

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/slow-nodes.md"
SLOWER = (1.05, 1.08, 1.10, 1.15, 1.20, 1.30, 1.50)
STEPS = (8, 20)
SHUFFLES = {96: {1: 1000}, 1024: {1: 200, 2: 200, 3: 300, 4: 300}}  # by number of nodes and seed of the year
CULPRIT: Worker = ("0", "0")


def jobs() -> dict[str, Steps]:
    """Even work is AR with its slow worker's figures put in the place of a healthy peer's; SE has uneven sequences."""
    even = steps_of("AR")
    even[CULPRIT] = [dict(step) for step in even["1", "0"]]
    return {"even work (AR without its slow worker)": even, "uneven sequences (SE)": steps_of("SE")}


def sensitivity(job: Steps, steps: int, slower: float) -> tuple[float, float]:
    """In which part of all windows an injected slow worker is named, and in which part somebody else is."""
    last = min(map(len, job.values()))
    named = others = windows = 0
    for worker in job:
        for at in range(0, last - steps + 1, steps):
            found = judged(signs(job, at, steps, slower={worker: slower}), SIGNALS, PATTERNS)
            names = {each.node for each in found.accused}
            named += ".".join(worker) in names
            others += bool(names - {".".join(worker)})
            windows += 1
    return named / windows, others / windows


def sensitivity_table() -> str:
    out = ["| job | median of | named, by how much slower the worker was made | somebody else named |", "|---|---|---|---|"]
    for name, job in jobs().items():
        for steps in STEPS:
            found = {slower: sensitivity(job, steps, slower) for slower in SLOWER}
            named = ", ".join(f"{100 * (slower - 1):.0f} %: {100 * part:.0f} %" for slower, (part, _) in found.items())
            others = max(part for _, part in found.values())
            out.append(f"| {name} | {steps} steps | {named} | {100 * others:.1f} % |")
    return "\n".join([*out, ""])


def shuffle_table() -> str:
    head = "| nodes | weekly reports with shuffled labels | names in all | for each report | at most (95 %) | printed |"
    out = [head, "|---|---|---|---|---|---|"]
    for nodes, years in SHUFFLES.items():
        found = [false_for_each_report(nodes, shuffles, seed) for seed, shuffles in years.items()]
        reports, named = sum(of for _, of, _ in found), sum(names for _, _, names in found)
        most = garwood(named).high / reports
        out.append(f"| {nodes} | {reports} | {named} | {named / reports:.5f} | {most:.5f} | {FALSE} |")
    out += ["", "| a node is the extreme in | named after (96 nodes) |", "|---|---|"]
    for part in (0.3, 0.5, 0.6, 0.8, 1.0):
        days = days_until_named(96, part)
        out.append(f"| {100 * part:.0f} % of its jobs | {f'{days} days' if days else f'not in {WINDOW_DAYS} days'} |")
    return "\n".join([*out, ""])


def with_block(text: str, name: str, block: str) -> str:
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{block}{end}{rest.partition(end)[2]}"


def main(names: list[str]) -> None:
    tables = {"sensitivity": sensitivity_table, "shuffles": shuffle_table}
    for name in names or tables:
        PAGE.write_text(with_block(PAGE.read_text(), name, tables[name]()))


if __name__ == "__main__":
    if sys.argv[1:2] != ["--write"]:
        raise SystemExit(__doc__)
    main(sys.argv[2:])
