"""The list of lemons: who counts, what repeats, the budget, and that chance names no more nodes than is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.fleet.exact_intervals import poisson_at_least
from fairlead.fleet.incidents import Ended, Incident
from fairlead.fleet.lemons import Exposed, independent, lemons, most_by_chance, prior_of, what_repeats
from tests.fleet import simulation_table
from tests.fleet.made_records import BEGIN, DAY, OTHER_PCI, PCI


def incident(n: float = 0, device: str = PCI, serial: str = "A1", node: str = "n1") -> Incident:
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
        ((*["ann"] * 10, "", "", ""), 1),
        (("ann", "ann", "bob", "", "", ""), 4),
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
    """Nodes with so many incidents, no two at the same time."""
    return [
        Exposed(
            machine=f"n{number}",
            node=f"n{number}",
            node_class="c",
            node_days=days,
            incidents=tuple(
                (incident(k + number * 0.0517, node=f"n{number}", serial=f"n{number}"), frozenset())
                for k in range(counts.get(f"n{number}", 0))
            ),
        )
        for number in range(1, nodes + 1)
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


def test_what_one_user_s_program_left_broken_makes_no_lemon() -> None:
    """A fifth of its incidents is found after its end, and touches no job."""
    bad = [
        Exposed(machine=f"n{n}", node=f"n{n}", node_class="c", node_days=70, incidents=tuple(users(*["eve"] * 12, *[""] * 3)))
        for n in (1, 2)
    ]
    assert lemons([*bad, *fleet({"n9": 1})[2:]]).lemons == ()


def test_incidents_that_begin_together_on_a_switch_are_one_event_of_it() -> None:
    """A rack without power for a moment gives each of its nodes an incident, and its nodes are no lemons by that."""
    made = fleet({**{f"n{n}": 1 for n in range(3, 100, 5)}, "n1": 2, "n2": 7})
    rack = []
    for each in made[:16]:
        together = [
            (replace(incident(90 + k, node=each.node), begin_unix=BEGIN + k * DAY + 20), frozenset[str]()) for k in range(4)
        ]
        rack.append(replace(each, incidents=(*each.incidents, *together), groups=("switch leaf1",)))
    others = [replace(each, groups=(f"switch leaf{2 + n // 16}",)) for n, each in enumerate(made[16:])]
    found = lemons([*rack, *others])
    assert [lemon.node for lemon in found.lemons] == ["n2"] and found.lemons[0].count == 7
    assert [(event.name, len(event.nodes)) for event in found.events] == [("switch leaf1", 16)] * 4
    assert found.groups == (), "an event says nothing of the switch's rate"


def test_a_node_of_a_switch_that_may_be_bad_is_compared_with_its_neighbours() -> None:
    """The switch is not certain yet, and its nodes are not told as lemons in the meantime."""
    counts = {f"n{n}": 1 for n in (*range(1, 8), *range(17, 160, 5))} | {"n8": 3}
    plain = fleet(counts, nodes=160)
    grouped = [replace(each, groups=(f"switch leaf{n // 16}",)) for n, each in enumerate(plain)]
    assert [lemon.node for lemon in lemons(plain).lemons] == ["n8"]
    found = lemons(grouped)
    assert found.lemons == () and found.groups == ()


def test_one_lemon_does_not_make_a_bad_switch() -> None:
    counts = {f"n{n}": 1 for n in range(3, 100, 6)} | {"n2": 9}
    found = lemons([replace(each, groups=(f"switch leaf{n // 16}",)) for n, each in enumerate(fleet(counts))])
    assert [lemon.node for lemon in found.lemons] == ["n2"] and found.groups == ()


@pytest.mark.parametrize(("mean", "most"), [(0.0, 0), (0.05, 0), (0.3, 1), (0.8, 2), (1.9, 4)])
def test_the_number_that_chance_seldom_exceeds(mean: float, most: int) -> None:
    assert most_by_chance(mean) == most
    assert poisson_at_least(most + 1, mean) <= 0.05


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

SIZES = [pytest.param(nodes, marks=pytest.mark.heavy if nodes > 500 else ()) for nodes in simulation_table.SIZES]


@pytest.mark.parametrize("nodes", SIZES)
def test_chance_names_no_more_nodes_than_the_list_says(nodes: int) -> None:
    """The page has 1,000 shuffles. The spread of the mean of these few lists is allowed for."""
    found = simulation_table.shuffled(nodes, 12 if nodes < 500 else 2, every=8)
    spread = 2.5 * (found.expected / found.lists) ** 0.5
    assert found.new <= found.expected + spread, found
    assert found.groups < 0.2


@pytest.mark.heavy
def test_the_page_has_what_the_lists_find() -> None:
    text = simulation_table.PAGE.read_text()
    assert simulation_table.put(text, "planted", simulation_table.found_rows()) == text, (
        "python -m tests.fleet.simulation_table writes the page"
    )


@pytest.mark.parametrize("nodes", SIZES)
def test_planted_causes_do_not_make_more_wrong_names_than_the_lists_say(nodes: int) -> None:
    """The page has 40 years. A list names few, so the spread of these few years is allowed for."""
    found = simulation_table.years(nodes, 4 if nodes < 500 else 2, first_seed=1)
    spread = 2.5 * (sum(found.expected) * 13) ** 0.5  # a window of 90 days is on 13 lists
    assert sum(found.wrong) <= sum(found.expected) + spread, found


def test_the_page_says_that_years_name_no_more_than_expected() -> None:
    """The upper end of the interval is below what the lists print, and the printed bound holds in 19 of 20 lists."""
    text = simulation_table.PAGE.read_text().partition("<!-- simulated: years -->")[2].partition("<!-- end of years -->")[0]
    rows = re.findall(r"\| ([\d,]+) \| [\d.]+ \([\d.]+ to ([\d.]+)\) \| ([\d.]+) \| ([\d.]+) % \|", text)
    assert [row[0] for row in rows] == ["96", "1,024"] and "Means over 40 years" in text
    assert all(float(high) <= float(expected) and float(above) <= 5.0 for _, high, expected, above in rows)


def test_the_page_says_that_chance_names_no_more_than_expected() -> None:
    text = Path(simulation_table.PAGE).read_text().partition("<!-- simulated: shuffled -->")[2]
    rows = [
        line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and line.split("|")[1].strip()[0].isdigit()
    ]
    assert {row[0].strip() for row in rows} == {"96", "1,024"} and "1,000 times" in text
    for row in rows:
        assert float(row[2]) <= float(row[4]), row
