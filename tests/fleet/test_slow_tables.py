"""The tables of docs/reference/slow-nodes.md are what the programs give."""

from __future__ import annotations

import re

import pytest

from tests.fleet.slow_tables import PAGE, sensitivity_table


def block(name: str) -> str:
    found = re.search(f"<!-- generated: {name} -->\n(.*?)<!-- end: {name} -->", PAGE.read_text(), re.DOTALL)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_sensitivity_is_that_of_today_s_rule() -> None:
    assert block("sensitivity") == sensitivity_table()


def test_no_row_names_somebody_else() -> None:
    rows = [line for line in block("sensitivity").splitlines()[2:] if line]
    assert len(rows) == 4 and all(row.endswith("| 0.0 % |") for row in rows)


def test_equal_nodes_are_named_no_more_often_than_printed() -> None:
    """The upper end of the interval counts: so many shuffles were made that it is below what a report prints."""
    rows = re.findall(r"\| (\d+) \| (\d+) \| \d+ \| [0-9.]+ \| ([0-9.]+) \| ([0-9.]+) \|", block("shuffles"))
    assert [(row[0], row[1]) for row in rows] == [("96", "4000"), ("1024", "4000")]
    assert all(float(most) <= float(printed) for *_, most, printed in rows)
