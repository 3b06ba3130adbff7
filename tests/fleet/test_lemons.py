"""The list of lemons: who counts, what repeats, the budget, and that chance names no more nodes than is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.fleet.incidents import Ended, Incident
from fairlead.fleet.lemons import Exposed, independent, lemons, prior_of, what_repeats
from tests.fleet import simulation_table
from tests.fleet.made_records import BEGIN, DAY, OTHER_PCI, PCI


def incident(n: int = 0, device: str = PCI, serial: str = "A1", node: str = "n1") -> Incident:
    begin = BEGIN + n * DAY
    return Incident(
        node=node, machine=node, node_class="c", check="xid", begin_unix=begin, device=device, serial=serial, times=(begin,),
        ended=Ended.UNCONFIRMED,
    )  # fmt: skip


def users(*sets: str) -> list[tuple[Incident, frozenset[str]]]:
    return [(incident(n), frozenset(names.split())) for n, names in enumerate(sets)]


@pytest.mark.parametrize(
    ("sets", "count"),
    [
        ((), 0),
        (("", ""), 2),
        (("ann", "ann", "ann"), 1),
        (("ann", "bob", ""), 3),
        (("ann bob", "ann", "bob"), 2),
        (("ann bob", "bob eve", "ann eve"), 3),
    ],
)
def test_only_incidents_of_different_users_count(sets: tuple[str, ...], count: int) -> None:
    assert independent(users(*sets)) == count


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([(PCI, "A1")] * 3, "slot 0000:1b:00.0, always card A1: the card or the slot"),
        ([(PCI, "A1"), (PCI, "C3"), (PCI, "D4")], "slot 0000:1b:00.0, with 3 cards: the slot"),
        ([(PCI, "A1"), (OTHER_PCI, "A1"), (OTHER_PCI, "A1")], "card A1, in several slots"),
        ([(PCI, "A1"), (OTHER_PCI, "B2"), ("", "")], "the node: several parts"),
        ([(PCI, "")] * 3, "slot 0000:1b:00.0, card not known"),
    ],
)
def test_what_repeats(parts: list[tuple[str, str]], words: str) -> None:
    assert what_repeats([incident(n, *part) for n, part in enumerate(parts)]) == words


def fleet(counts: dict[str, int], nodes: int = 100, days: float = 70.0) -> list[Exposed]:
    names = [f"n{n}" for n in range(1, nodes + 1)]
    return [
        Exposed(
            machine=name,
            node=name,
            node_class="c",
            node_days=days,
            incidents=tuple((incident(n, node=name, serial=name), frozenset()) for n in range(counts.get(name, 0))),
        )
        for name in names
    ]


def test_a_lemon_is_listed_with_what_chance_would_list() -> None:
    healthy = {f"n{n}": 1 for n in range(10, 35)}
    found = lemons(fleet({**healthy, "n3": 7}))
    (lemon,) = found.lemons
    assert (lemon.node, lemon.count) == ("n3", 7) and lemon.interval.low < lemon.per_1000 < lemon.interval.high
    assert 0 < found.expected_false <= 0.5 and found.budget == 2
    assert lemon.per_1000 < 1000 * 7 / 70, "the posterior is between the node's own rate and the fleet's"


def test_the_list_has_at_most_one_node_of_fifty() -> None:
    found = lemons(fleet({f"n{n}": 9 for n in range(1, 8)} | {f"n{n}": 1 for n in range(40, 60)}))
    assert len(found.lemons) <= 2 and found.over_budget > 0
    assert len(lemons(fleet({"n1": 9, "n2": 9, "n3": 9}, nodes=20)).lemons) <= 1


def test_one_user_makes_no_lemon_and_no_job_is_no_zero() -> None:
    bad = Exposed(machine="n1", node="n1", node_class="c", node_days=70, incidents=tuple(users(*["eve"] * 12)))
    assert lemons([bad, *fleet({"n9": 1})[1:]]).lemons == ()
    assert lemons(fleet({"n3": 7}, days=0.0)).lemons == (), "nothing is known of allocated time"
    assert lemons([]).budget == 0


def test_a_card_that_moves_is_named() -> None:
    made = fleet({"n9": 1})
    moved = tuple(
        (incident(n, device, "A1", node), frozenset[str]()) for n, (device, node) in enumerate([(PCI, "n1"), (OTHER_PCI, "n2")])
    )
    (card,) = lemons([*made[2:], Exposed(machine="n1", node="n1", node_class="c", node_days=70, incidents=moved)]).cards
    assert (card.serial, card.count, card.where) == ("A1", 2, (f"n1 {PCI}", f"n2 {OTHER_PCI}"))


def test_where_counts_spread_no_more_than_by_chance_all_nodes_are_about_equal() -> None:
    assert prior_of([(1, 100.0)] * 50).shape == 50
    assert prior_of([(0, 100.0)] * 49 + [(20, 100.0)]).shape < 1
    assert prior_of([(0, 0.0)]).days > 0


# -- the simulated year --------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", simulation_table.SIZES)
def test_chance_names_no_more_nodes_than_the_list_says(nodes: int) -> None:
    """The page has 1,000 shuffles. The spread of the mean of these few lists is allowed for."""
    found = simulation_table.shuffled(nodes, 12 if nodes < 500 else 2, every=8)
    spread = 2.5 * (found.expected / found.lists) ** 0.5
    assert found.new <= found.expected + spread, found
    assert found.groups < 0.2


def test_the_page_has_what_the_lists_find() -> None:
    text = simulation_table.PAGE.read_text()
    assert simulation_table.put(text, "planted", simulation_table.found_rows()) == text, (
        "python -m tests.fleet.simulation_table writes the page"
    )


def test_the_page_says_that_chance_names_no_more_than_expected() -> None:
    text = Path(simulation_table.PAGE).read_text().partition("<!-- simulated: shuffled -->")[2]
    rows = [
        line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and line.split("|")[1].strip()[0].isdigit()
    ]
    assert {row[0].strip() for row in rows} == {"96", "1,024"} and "1,000 times" in text
    for row in rows:
        assert float(row[2]) <= float(row[4]), row
